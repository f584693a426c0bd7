"""Access to the tensors inside attention without rewriting it.

Inside an attention module, queries, keys, values, logits and probabilities are local variables, out of reach of hooks.
But they are arguments of one to three torch functions: the fused kernel, or product, softmax, product. While this mode
is active and an attention module runs, these calls are intercepted. The fused kernel is used unless logits or
probabilities themselves are requested.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_PRODUCTS = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm}
_SOFTMAXES = {torch.softmax, torch.Tensor.softmax, F.softmax}


class AttentionListener(Protocol):
    """Receives the tensors inside attention modules by name, and may change them."""

    def on_tensor(self, name: str, value: Tensor) -> Tensor:
        """The tensor to continue with: `value` or a replacement."""

    def is_requested(self, name: str) -> bool:
        """Whether this tensor is read or edited."""

    def factor(self, attention: str) -> Tensor | float | None:
        """The factor of the products of queries and keys, if any."""

    def bias(self, attention: str) -> Sequence[Tensor]:
        """Tensors to add to the logits; a bool tensor keeps the pairs where it is true."""


class AttentionMode(TorchFunctionMode):
    """Passes the tensors inside an attention module to a listener, between `enter` and `leave`.

    It is active only in between, because a mode slows down every call of a torch function.
    """

    def __init__(self, listener: AttentionListener) -> None:
        super().__init__()
        self._listener = listener
        self._running: list[str] = []
        self._products = 0

    def enter(self, attention: str) -> None:
        if not self._running:
            self.__enter__()
        self._running.append(attention)
        self._products = 0

    def leave(self) -> None:
        self._running.pop()
        if not self._running:
            self.__exit__(None, None, None)

    def leave_all(self) -> None:
        """Leave all, after an exception that hooks do not catch, such as Ctrl-C inside an attention module."""
        while self._running:
            self.leave()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if not self._running:
            return func(*args, **kwargs)
        attention = self._running[-1]
        if func is F.scaled_dot_product_attention:
            return self._fused(attention, *args, **kwargs)  # type: ignore[arg-type]
        if func in _PRODUCTS:
            return self._product(attention, *args)  # type: ignore[arg-type]
        if func in _SOFTMAXES:
            logits, *rest = args
            assert isinstance(logits, Tensor)
            logits = self._listener.on_tensor(f"{attention}.logits", self._biased(attention, logits))
            probs = func(logits, *rest, **kwargs)
            assert isinstance(probs, Tensor)
            return self._listener.on_tensor(f"{attention}.probs", probs)
        return func(*args, **kwargs)

    def _product(self, attention: str, left: Tensor, right: Tensor) -> Tensor:
        """The first product in an attention layer is of queries and keys, the second of probabilities and values."""
        self._products += 1
        if self._products == 1:
            k = self._listener.on_tensor(f"{attention}.k", right.transpose(-2, -1))
            return self._scaled(attention, self._listener.on_tensor(f"{attention}.q", left)) @ k.transpose(-2, -1)
        return left @ self._listener.on_tensor(f"{attention}.v", right)

    def _fused(
        self,
        attention: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        q = self._scaled(attention, self._listener.on_tensor(f"{attention}.q", query))
        k = self._listener.on_tensor(f"{attention}.k", key)
        v = self._listener.on_tensor(f"{attention}.v", value)
        if not (
            self._listener.is_requested(f"{attention}.logits") or self._listener.is_requested(f"{attention}.probs")
        ):
            biases = [m for m in (attn_mask, *self._listener.bias(attention)) if m is not None]
            mask = torch.stack(torch.broadcast_tensors(*(_additive(b, q) for b in biases))).sum(0) if biases else None
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
            )
        logits = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)
        logits = logits if attn_mask is None else logits + _additive(attn_mask, logits)
        logits = self._listener.on_tensor(f"{attention}.logits", self._biased(attention, logits))
        probs = self._listener.on_tensor(f"{attention}.probs", logits.softmax(-1))
        return F.dropout(probs, dropout_p).to(v.dtype) @ v

    def _scaled(self, attention: str, q: Tensor) -> Tensor:
        factor = self._listener.factor(attention)
        return q if factor is None else q * factor

    def _biased(self, attention: str, logits: Tensor) -> Tensor:
        for bias in self._listener.bias(attention):
            logits = logits + _additive(bias, logits)
        return logits


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, float("-inf"))
