"""A model as a search computes it: in half precision, compiled, or as it is.

Half precision decides nothing: what a search finds counts only if the float32 model agrees. float16 keeps three more
bits than bfloat16 and so sees smaller changes; bfloat16 has the range of float32 and never overflows.
"""

import copy

import torch
from torch import Tensor, nn

from vitadel.attacks.oracle import Model, in_own_precision
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag

# what a search that meets numbers beyond its range goes on with
FALLBACK = {"fp16": "bf16", "bf16": "float32"}
PRECISIONS = ("float32", "bf16", "fp16")


def searcher(
    model: nn.Module, x: Tensor, precision: str, *, compile: bool = False
) -> tuple[Model, str, tuple[Flag, ...]]:
    """The first way to compute `model` that works on `x` both ways, its precision, and flags for those that do not.

    Tried are `precision`, compiled first if that is wished, and then what is wider.
    """
    wider = [precision]
    while wider[-1] in FALLBACK:
        wider.append(FALLBACK[wider[-1]])
    ways = [*([(precision, True)] if compile else []), *((one, False) for one in wider)]
    flags: list[Flag] = []
    for way in ways:
        tried, compiled = way
        try:
            found = _in_precision(model, tried, compile=compiled)
            _try_both_ways(found, x)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler or a cast may fail in any way, and the plain model is always there
            if way == ways[-1]:
                raise
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            name = f"{tried}, compiled" if compiled else tried
            flags.append(Flag("search-fell-back", f"the search could not run as {name}: {first[:200]}", {}))
        else:
            return found, tried, tuple(flags)
    raise UsageError("the model gives no gradient at all")  # pragma: no cover - the last way raises its own error


def in_precision(model: nn.Module, precision: str) -> Model:
    """The model computed in `precision`, untried."""
    return _in_precision(model, precision, compile=False)


def _in_precision(model: nn.Module, precision: str, *, compile: bool) -> Model:
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


def _try_both_ways(model: Model, x: Tensor) -> None:
    # two batch sizes, so that a compiler learns that they change
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
