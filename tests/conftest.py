"""What every test shares."""

import os

# some virtual machines announce AMX and then refuse it; oneDNN would die of an illegal instruction in bfloat16
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest
import torch


@pytest.fixture(autouse=True)
def _two_threads() -> None:
    """The suite is meant for two cores; more threads on more cores would change sums in the last bit."""
    torch.set_num_threads(2)
