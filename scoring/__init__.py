"""The read path: requests, scores and the best of them."""

MIRACH_ROOM = "scoring"  # api/startup.py looks for this line: public packages have such names too
