# The project's verbs; CI uses the same. Each sets up .venv first (scripts/setup: quick, and offline, once it fits).
#   make demo                 everything on this machine: embedded Kafka, a live stream of ads, the service, one answer
#   make test                 all tests; ARGS="-k name" is passed on
#   make simulate             ten thousand simulated histories with crashes, each from a seed; ARGS="--seed 7 --trace" for one
#   make chaos                fifty kills of the service at random moments under a live stream (about ten minutes)
#   make flat                 memory over two million modifies and a million attribute values passing through
#   make soak                 the service for half an hour under events, requests and faults; ARGS="--minutes 2" for less
#   make check                lint, strict types, the architecture
#   make bench                the benchmarks, each with its limit; ARGS="--ads 100000" is passed on
#   make gpu                  the CUDA kernels on this machine's GPU: tests, then benchmarks, eight minutes at most
PYTHON_BIN := .venv/bin
ARGS ?=

.PHONY: help setup check test simulate chaos soak flat demo bench gpu

help:
	@sed -n '2,10s/^#   //p' Makefile

setup:
	@scripts/setup

check: setup
	$(PYTHON_BIN)/ruff check .
	$(PYTHON_BIN)/mypy
	$(PYTHON_BIN)/python -m pytest tests/test_architecture.py $(ARGS)

test: setup
	$(PYTHON_BIN)/python -m pytest $(ARGS)

simulate: setup
	$(PYTHON_BIN)/python -m tests.simulation --seeds 10000 $(ARGS)

chaos: setup
	KILLS=50 SEED=$${SEED:-$$(date +%s)} $(PYTHON_BIN)/python -m pytest tests/test_restart.py -k killed -s $(ARGS)

soak: setup
	$(PYTHON_BIN)/python -m bench.soak $(ARGS)

flat: setup
	FLAT=full $(PYTHON_BIN)/python -m pytest tests/gpu_index/test_memory_flat.py -s $(ARGS)

demo: setup
	$(PYTHON_BIN)/mirach demo $(ARGS)

bench: setup
	$(PYTHON_BIN)/mirach bench $(ARGS)

gpu:
	@scripts/gpu $(ARGS)
