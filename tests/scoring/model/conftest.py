from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tiny tensors are slower on several threads, and sums of several have no fixed order."""
    torch = pytest.importorskip("torch", reason="PyTorch comes with the extra `model`")
    torch.set_num_threads(1)
