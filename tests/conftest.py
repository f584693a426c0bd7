"""Settings of all tests."""

import os

# some virtual machines announce AMX and then refuse it; oneDNN would crash with an illegal instruction in bfloat16
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Sums in the same order on every machine; tiny tensors are no faster with more threads."""
    torch.set_num_threads(1)
