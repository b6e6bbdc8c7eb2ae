"""Arrays that grow without being copied: address space is reserved, memory is taken by touching it.

`reserve` maps zeroed pages that the system supplies at first use, so an array may be declared at the capacity of the
index and costs what it holds. Nothing is ever moved, hence growth causes no pause. Rows of bits lie far apart and are
kept out of huge pages, which would take 2 MiB for the first bit of each.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20
_HUGE_PAGES, _COLLAPSE = 14, 25  # MADV_HUGEPAGE, and MADV_COLLAPSE of Linux 6.1
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0x40  # MAP_NORESERVE, which mmap does not name on every Python


class AddressSpaceError(RuntimeError):
    """The system would not reserve the address space that the capacity asks for."""


def reserve(
    shape: int | tuple[int, ...], dtype: DTypeLike, *, sparse: bool = False, forked: bool = True
) -> NDArray[Any]:
    """Zeroed array of `shape`, of which only touched pages take memory; `sparse` keeps it out of huge pages. A fork of
    the process has it only where `forked`: leaving out what it does not need makes forking quicker.

    Raises AddressSpaceError where the system refuses (a limit on address space, or strict overcommit)."""
    shape = (shape,) if isinstance(shape, int) else shape
    count, item = math.prod(shape), np.dtype(dtype)
    size = max(count * item.itemsize, 1)
    try:
        region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, OverflowError, ValueError) as error:
        raise AddressSpaceError(
            f"cannot reserve {size / 2**30:.1f} GiB of address space ({error}): lower ads_max or targetings_max, "
            "or lift the limit (ulimit -v, vm.overcommit_memory)"
        ) from error
    if sparse and hasattr(mmap, "MADV_NOHUGEPAGE"):
        region.madvise(mmap.MADV_NOHUGEPAGE)
    if not forked and hasattr(mmap, "MADV_DONTFORK"):
        region.madvise(mmap.MADV_DONTFORK)
    return np.frombuffer(region, dtype=item, count=count).reshape(shape)


def pages_bytes(size: int) -> int:
    """Bytes of the pages that `size` bytes take."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def use_huge_pages(array: NDArray[Any], *, later: bool = False) -> None:
    """Asks the system to put the memory of a contiguous array, all of it in use, into huge pages: now, or `later` when
    it is first touched. Forks become quicker by far, reads a little. Does nothing where the system cannot; any thread
    may call it, whoever writes."""
    assert array.flags.c_contiguous, array.strides
    first = -(-array.ctypes.data // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    end = (array.ctypes.data + array.nbytes) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if sys.platform != "linux" or first >= end:
        return
    madvise = ctypes.CDLL(None).madvise
    if later:
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _HUGE_PAGES)
        return
    for at in range(first, end, HUGE_PAGE_BYTES):  # one by one: others wait for the memory meanwhile
        madvise(ctypes.c_void_p(at), ctypes.c_size_t(HUGE_PAGE_BYTES), _COLLAPSE)
