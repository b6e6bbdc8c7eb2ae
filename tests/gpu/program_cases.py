"""The walk of a program on the device, against plain recursion."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, int64, uint32, uint64

from kernels.cuda.program import ENDS, PROGRAM_THREADS, DeviceFacts, request_holds
from kernels.cuda.raw import read_i64, store_u32
from kernels.cuda.types import Device
from kernels.cuda.words import flat_i64, flat_u32
from tests.gpu.ads import upload
from tests.gpu.cases import case
from tests.programs import TERM_MAX, programs, truth, words_of


@cuda.jit
def run_programs(words: Any, starts: Any, terms: Any, term_count: Any, out: Any) -> None:
    """Thread i runs the program at words[starts[i]]; to out[i] 1 where it is true of the terms."""
    ends = cuda.shared.array(ENDS, uint32)[uint32(cuda.threadIdx.x) :]
    i = int64(cuda.grid(1))
    facts = DeviceFacts(flat_u32(terms), term_count, flat_i64(starts), flat_i64(starts))
    held = request_holds(flat_u32(words), read_i64(starts, i), facts, ends)
    store_u32(out, uint64(i), uint32(1) if held else uint32(0))


@case
def check_random_programs(device: Device) -> None:
    """A block's threads walk different programs, up to the language's limit, each with ends of its own."""
    trees = programs(seed=5, count=2 * PROGRAM_THREADS)
    listed = [words_of(tree) for tree in trees]
    starts = np.cumsum([0, *map(len, listed)])[:-1].astype(np.int64)
    terms = range(1, TERM_MAX, 3)
    sent = upload(device, np.concatenate(listed).astype(np.uint32)), upload(device, starts)
    out = device.empty(len(trees), np.uint32)
    facts = upload(device, np.array(terms, np.uint32))
    device.launch(run_programs, 2, PROGRAM_THREADS, (*sent, facts, len(terms), out))
    assert device.download(out).tolist() == [truth(tree, set(terms)) for tree in trees]
