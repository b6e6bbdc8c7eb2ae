"""The benchmarks of this machine, and the ads that the demo shows."""

MIRACH_ROOM = "bench"  # api/startup.py looks for this line: public packages have such names too
