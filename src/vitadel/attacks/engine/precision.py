"""The model that a search runs on: in half precision, compiled, or unchanged.

An adversarial example counts only if the float32 model confirms it. float16 has three more bits of precision than
bfloat16; bfloat16 has the range of float32 and does not overflow.
"""

import copy

import torch
from torch import Tensor, nn

from vitadel.attacks.oracle import Model, in_own_precision
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.oom import is_out_of_memory

# the precision in which a search continues after NaN or infinite numbers
FALLBACK = {"fp16": "bf16", "bf16": "float32"}
PRECISIONS = ("float32", "bf16", "fp16")


def search_model(
    model: nn.Module, x: Tensor, precision: str, *, compile: bool = False
) -> tuple[Model, str, tuple[Flag, ...]]:
    """The model to search on: the first variant whose forward and backward pass work on `x`.

    Candidates are `precision`, compiled first if requested, and then wider precisions.

    Args:
        model: The float32 model.
        x: [B, C, H, W] a few images.
        precision: The precision to start with, one of `PRECISIONS`.
        compile: Whether to compile the model with `torch.compile`.

    Returns:
        The model, its precision, and flags for variants that failed.
    """
    wider = [precision]
    while wider[-1] in FALLBACK:
        wider.append(FALLBACK[wider[-1]])
    variants = [*([(precision, True)] if compile else []), *((one, False) for one in wider)]
    flags: list[Flag] = []
    for variant in variants:
        tried, compiled = variant
        try:
            candidate = in_precision(model, tried, compile=compiled)
            _check_passes(candidate, x)
        except Exception as error:  # a compiler or a cast may raise anything; the plain model is the fallback
            if is_out_of_memory(error) or variant == variants[-1]:
                raise
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            name = f"{tried}, compiled" if compiled else tried
            flags.append(Flag("search-fallback", f"the search could not run as {name}: {first[:200]}", {}))
        else:
            return candidate, tried, tuple(flags)
    raise UsageError(
        "the model gives no gradient at all. Check its forward pass."
    )  # pragma: no cover - the last variant raises its own error


def in_precision(model: nn.Module, precision: str, *, compile: bool = False) -> Model:
    """The model in `precision`, without a check that it works."""
    if precision == "fp16":
        small = copy.deepcopy(model).half()
        fast = torch.compile(small, dynamic=True) if compile else small
        return lambda x: fast(x.half())
    fast = torch.compile(model, dynamic=True) if compile else model
    if precision == "float32":
        return fast  # an Oracle gives it pixels in the precision of its weights

    def in_bf16(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return fast(x)

    return in_bf16


def _check_passes(model: Model, x: Tensor) -> None:
    # two batch sizes, so that a compiler generates code for any
    for rows in (x, x[:1].expand(3, *x.shape[1:])):
        pixels = rows.detach().clone().requires_grad_()
        with torch.enable_grad():
            z_BK = model(in_own_precision(model, pixels))
            if z_BK.requires_grad:
                torch.autograd.grad(z_BK.float().sum(), pixels, materialize_grads=True)
        with torch.no_grad():
            finite = bool(torch.isfinite(model(in_own_precision(model, rows))).all())
        if not finite:
            raise ArithmeticError("logits beyond the range of the precision")
