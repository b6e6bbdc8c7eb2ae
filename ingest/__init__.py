"""The write path: Kafka to ad events, and the dead letters."""

MIRACH_ROOM = "ingest"  # api/startup.py looks for this line: public packages have such names too
