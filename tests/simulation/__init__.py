"""The real engine, ingest and snapshot code in a simulated world, on one thread, from one seed (docs/testing.md).

Begin with world.py: what may happen. service.py is one life of the process, broker.py and disk.py are what it talks to,
threads.py takes turns in its threads' place, truth.py is the fold of the log that it is held to, faults.py are planted
faults that must be found. `python -m tests.simulation --seeds 10000` runs many seeds, `--seed N --trace` replays one.
"""
