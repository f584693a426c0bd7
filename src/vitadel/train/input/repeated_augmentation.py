"""Repeated augmentation: an image more than once in a batch, each time changed in another way."""

import torch
from torch import Tensor

from vitadel.core.errors import UsageError


def repeated(shuffled: Tensor, repeats: int) -> tuple[Tensor, Tensor]:
    """An epoch of the same length from the first of the shuffled rows, each `repeats` times in a row.

    Hoffer et al. 2020, in the form of DeiT (Touvron et al. 2021), which repeats 3 times: an epoch costs what it did
    before and shows a third of the images. Returned beside the rows is the number of each copy, from 0: fold it into
    the image's draws, or all copies come out alike. The last image has fewer copies if the epoch's length does not
    divide. A process that takes every nth place gets other copies than its neighbors, as with DeiT's sampler; unlike
    there, the epoch is not cut to a multiple of 256.
    """
    if repeats < 1:
        raise UsageError(f"repeated(repeats=) must be at least 1, got {repeats}. 1 shows every image once; DeiT has 3.")
    place = torch.arange(len(shuffled), device=shuffled.device)
    return shuffled[place // repeats], place % repeats
