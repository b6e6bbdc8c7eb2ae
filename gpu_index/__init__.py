"""What is indexed: ads and their targetings, one writer, and what a query sees."""

MIRACH_ROOM = "gpu_index"  # api/startup.py looks for this line: public packages have such names too
