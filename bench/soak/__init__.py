"""`make soak`: the real service for half an hour under events, requests and faults.

Read run.py (what happens when), then world.py (service, broker), stream.py (events and what must follow from them),
load.py (requests), judge.py (what counts as a failure).
"""
