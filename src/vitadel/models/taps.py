"""Taps: named points inside a model, to read, edit, scale, mask and skip.

    with model.taps.read("blocks.*.attn.logits") as seen:
        z = model(x)
    penalty = sum(a.square().mean() for a in seen.values())

Names: `embed`, `blocks.i.attn.{q,k,v,logits,probs,out}`, `blocks.i.mlp.out`, `blocks.i.out`, `head.in`; families with
class-attention blocks have the same names under `class_blocks.i`. Tensors are not detached. After the `with` statement,
also after an exception, the model is as before. A tap that never fires raises a UsageError.

Logits are the input of the softmax, probabilities its output. The factor of `scale` multiplies the product of queries
and keys only, not position biases and window masks.
"""

import copy
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitadel.core.device import is_compiled
from vitadel.core.errors import UsageError
from vitadel.models.attention import AttentionMode
from vitadel.models.families import family_of
from vitadel.models.families.base import Layer, classifiers

Edit = Callable[[Tensor], Tensor]
_INSIDE = ("q", "k", "v", "logits", "probs")


@dataclass(eq=False, slots=True)
class _Request:
    """The requests of one `with` statement, and which of them have fired."""

    reads: frozenset[str] = frozenset()
    seen: dict[str, Tensor] = field(default_factory=dict)
    edits: Mapping[str, Edit] = field(default_factory=dict)
    factors: Mapping[str, Tensor | float] = field(default_factory=dict)
    biases: Mapping[str, Tensor] = field(default_factory=dict)
    skips: frozenset[str] = frozenset()
    fired: set[str] = field(default_factory=set)

    @property
    def names(self) -> set[str]:
        return {*self.reads, *self.edits, *self.factors, *self.biases, *self.skips}

    @property
    def inside_attention(self) -> bool:
        tensors = (name.rsplit(".", 1)[-1] for name in (*self.reads, *self.edits))
        return bool(self.factors or self.biases) or any(tensor in _INSIDE for tensor in tensors)


@dataclass(eq=False, slots=True)
class _Listener:
    """Applies the open requests to tensors at taps; an `AttentionListener`."""

    open: list[_Request]

    def on_tensor(self, name: str, value: Tensor) -> Tensor:
        """The tensor after all edits, which reads return."""
        for request in self.open:
            if name in request.edits:
                value = request.edits[name](value)
                request.fired.add(name)
        for request in self.open:
            if name in request.reads:
                request.seen[name] = value
                request.fired.add(name)
        return value

    def is_requested(self, name: str) -> bool:
        """Whether a tensor is read or edited."""
        return any(name in request.reads or name in request.edits for request in self.open)

    def factor(self, attention: str) -> Tensor | float | None:
        """The product of the factors for an attention layer; None without any."""
        product: Tensor | float | None = None
        for request in self.open:
            if attention in request.factors:
                request.fired.add(attention)
                factor = request.factors[attention]
                product = factor if product is None else product * factor
        return product

    def bias(self, attention: str) -> Sequence[Tensor]:
        """The masks for the logits of an attention layer."""
        biases = []
        for request in self.open:
            if attention in request.biases:
                request.fired.add(attention)
                biases.append(request.biases[attention])
        return biases


class Taps:
    """The taps of one model, as `model.taps`: `read`, `edit`, `scale`, `mask` and `skip` are context managers.

    Names of tensors: `embed`, `blocks.i.attn.{q,k,v,logits,probs,out}`, `blocks.i.mlp.out`, `blocks.i.out`, `head.in`;
    families with class-attention blocks have the same under `class_blocks.i`. `names` lists those of this model. A star
    matches any part of a name. `with` statements nest: a read returns tensors after the edits, factors and masks of
    all open ones.

    Example:
        >>> with model.taps.scale(0.5), model.taps.read("blocks.*.attn.probs") as seen:
        ...     z = model(x)
        >>> seen["blocks.0.attn.probs"].shape  # [B, heads, N, N]
        torch.Size([2, 3, 197, 197])
    """

    def __init__(self, model: nn.Module, net: nn.Module) -> None:
        self._model = model
        self._net = net
        self._open: list[_Request] = []
        self._handles: list[RemovableHandle] = []
        self._listener = _Listener(self._open)
        self._mode = AttentionMode(self._listener)
        self._called = False

    def __deepcopy__(self, memo: dict[int, object]) -> "Taps":
        if self._open:  # the copy would keep the hooks forever
            raise UsageError("a model cannot be copied while its taps are in use. Copy it outside the `with` block.")
        return Taps(copy.deepcopy(self._model, memo), copy.deepcopy(self._net, memo))

    def names(self) -> list[str]:
        """All taps of this model, in the order of the forward pass."""
        points = [*(f"attn.{tensor}" for tensor in (*_INSIDE, "out")), "mlp.out", "out"]
        inner = [f"{block.name}.{point}" for block in self._blocks() for point in points]
        return [*(["embed"] if inner else []), *inner, *(["head.in"] if self._classifier() is not None else [])]

    def attentions(self) -> list[str]:
        """The names of all attention layers, in the order in which `scale` takes factors."""
        return [f"{block.name}.attn" for block in self._blocks()]

    @contextmanager
    def read(self, pattern: str) -> Iterator[dict[str, Tensor]]:
        """The tensors whose names match, from the latest forward pass inside the `with` statement.

        Args:
            pattern: A name, with * for any part: `blocks.*.attn.logits`.

        Returns:
            A dictionary that the forward pass fills, from names to tensors, which are not detached.

        Raises:
            UsageError: If no name matches, or at the end, if a tap has not fired.

        Example:
            >>> with model.taps.read("blocks.*.attn.probs") as seen:
            ...     z = model(x)
            >>> attention = seen["blocks.0.attn.probs"]  # [B, heads, N, N]
        """
        request = _Request(reads=frozenset(_matching(pattern, self.names(), "tap")))
        with self._open_request(request):
            yield request.seen

    @contextmanager
    def edit(self, pattern: str, fn: Edit) -> Iterator[None]:
        """Replace every tensor whose name matches by `fn(tensor)`.

        Args:
            pattern: A name, with * for any part.
            fn: Takes a tensor and returns one of the same shape.

        Yields:
            None; the change applies inside the `with` statement.

        Raises:
            UsageError: If nothing matches, or at the end, if a tap has not fired.

        Example:
            >>> with model.taps.edit("blocks.0.mlp.out", torch.zeros_like):
            ...     z = model(x)
        """
        with self._open_request(_Request(edits=dict.fromkeys(_matching(pattern, self.names(), "tap"), fn))):
            yield

    @contextmanager
    def scale(self, factors: float | Tensor | Sequence[float]) -> Iterator[None]:
        """Multiply the products of queries and keys by one factor for all attention layers, or by one for each.

        Args:
            factors: A number or scalar tensor for all, or one for each of `attentions`; tensors get gradients.

        Yields:
            None; the change applies inside the `with` statement.

        Raises:
            UsageError: If nothing matches, or at the end, if a tap has not fired.

        Example:
            >>> with model.taps.scale([0.5] * len(model.taps.attentions())):
            ...     z = model(x)
        """
        names = self._attentions_or_refuse()
        each = _each(factors, len(names))
        if len(each) != len(names):
            raise UsageError(
                f"this model has {len(names)} attention layers, got {len(each)} factors. Give one, or one each."
            )
        with self._open_request(_Request(factors=dict(zip(names, each, strict=True)))):
            yield

    @contextmanager
    def mask(self, masks: Tensor | Mapping[str, Tensor]) -> Iterator[None]:
        """Mask attention logits, by one tensor for all attention layers or tensors by patterns of their names.

        Args:
            masks: A mask, or masks by patterns of `attentions`. A bool mask keeps the pairs where it is true, as in
                `scaled_dot_product_attention` and unlike in `nn.MultiheadAttention`; any other is added. It must
                broadcast to the logits' shape [B, heads, N, N], and every query must keep a key.

        Yields:
            None; the change applies inside the `with` statement.

        Raises:
            UsageError: If nothing matches, or at the end, if a tap has not fired.

        Example:
            >>> with model.taps.mask({"blocks.0.attn": torch.eye(197, dtype=torch.bool)}):
            ...     z = model(x)
        """
        known = self._attentions_or_refuse()
        by_pattern = masks if isinstance(masks, Mapping) else {"*": masks}
        biases = {name: mask for pattern, mask in by_pattern.items() for name in _matching(pattern, known, "attention")}
        with self._open_request(_Request(biases=biases)):
            yield

    @contextmanager
    def skip(self, *patterns: str) -> Iterator[None]:
        """Skip whole blocks, their attention or their MLP: a skipped block returns its input.

        Args:
            *patterns: `blocks.3`, `blocks.3.attn` or `blocks.3.mlp`, with * for any part.

        Yields:
            None; the change applies inside the `with` statement.

        Raises:
            UsageError: If nothing matches, or at the end, if a tap has not fired.

        Example:
            >>> with model.taps.skip("blocks.3", "blocks.*.mlp"):
            ...     z = model(x)
        """
        known = [f"{block.name}{part}" for block in self._blocks() for part in ("", ".attn", ".mlp")]
        names = {name for pattern in patterns for name in _matching(pattern, known, "part to skip")}
        self._check_skippable(names)
        with self._open_request(_Request(skips=frozenset(names))):
            yield

    # requests and hooks

    @contextmanager
    def _open_request(self, request: _Request) -> Iterator[None]:
        """Apply a request inside the `with` statement, then check that all of it fired."""
        if torch.is_grad_enabled() and any(vars(m).get("grad_checkpointing") for m in self._net.modules()):
            raise UsageError(
                "taps do not work with gradient checkpointing: the backward pass would run blocks again, without them. "
                "Switch it off: model.net.set_grad_checkpointing(False)."
            )
        called, self._called = self._called, False
        self._open.append(request)
        self._set_hooks()
        try:
            yield
        finally:
            self._mode.leave_all()
            self._open.remove(request)
            self._set_hooks()
        if silent := sorted(request.names - request.fired):
            raise UsageError(self._never_fired_message(silent))
        self._called = self._called or called

    def _never_fired_message(self, silent: Sequence[str]) -> str:
        shown = ", ".join(silent[:3]) + (f" and {len(silent) - 3} more" if len(silent) > 3 else "")
        if any(is_compiled(module) for module in self._model.modules()):
            return f"taps never fired: {shown}. The model is compiled, and compiled code does not see taps."
        if not self._called:
            return f"taps never fired: {shown}. The model was not called inside the `with` block."
        return (
            f"taps never fired: {shown}. The model was called, but not through them: code compiled by torch.compile "
            "does not see taps, so call the model itself."
        )

    def _set_hooks(self) -> None:
        """Register exactly the hooks that the open requests need."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if not self._open:
            return
        self._handles.append(self._model.register_forward_pre_hook(self._note_call))
        names = {name for request in self._open for name in request.names}
        inside = any(request.inside_attention for request in self._open)
        for number, block in enumerate(self._blocks()):
            if number == 0 and "embed" in names:
                self._handles.append(block.module.register_forward_pre_hook(self._argument_hook("embed")))
            if inside:
                self._handles += self._attention_hooks(block)
            self._handles += self._block_hooks(block, names)
        classifier = self._classifier()
        if classifier is not None and "head.in" in names:
            self._handles.append(classifier.register_forward_pre_hook(self._argument_hook("head.in")))

    def _block_hooks(self, block: Layer, names: set[str]) -> list[RemovableHandle]:
        parts = (("", block.module), (".attn", block.attention), (".mlp", block.mlp))
        return [
            module.register_forward_hook(
                self._output_hook(f"{block.name}{part}", block.residual_argument if not part else None)
            )
            for part, module in parts
            if module is not None and names & {f"{block.name}{part}", f"{block.name}{part}.out"}
        ]

    def _attention_hooks(self, block: Layer) -> list[RemovableHandle]:
        assert block.attention is not None
        name = f"{block.name}.attn"
        mixing = (
            [block.head_mixing.register_forward_hook(self._mixing_hook(name))] if block.head_mixing is not None else []
        )
        return [
            *mixing,
            block.attention.register_forward_pre_hook(lambda module, args: self._mode.enter(name)),
            block.attention.register_forward_hook(lambda module, args, out: self._mode.leave(), always_call=True),
        ]

    def _mixing_hook(self, attention: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        """Masked pairs must also be zero after the heads are mixed, which adds a bias to the zeros."""

        def hook(module: nn.Module, args: tuple[Tensor, ...], mixed_BNNH: Tensor) -> Tensor:
            mixed_BHNN = mixed_BNNH.permute(0, 3, 1, 2)
            for bias in self._listener.bias(attention):
                mixed_BHNN = mixed_BHNN.masked_fill(~bias, 0) if bias.dtype == torch.bool else mixed_BHNN
            return mixed_BHNN.permute(0, 2, 3, 1)

        return hook

    def _output_hook(self, part: str, stream: int | None) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        """Report a part's output; a skipped block returns its input, a skipped branch zeros."""

        def hook(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
            for request in self._open:
                if part in request.skips:
                    request.fired.add(part)
                    out = torch.zeros_like(out) if stream is None else args[stream]
            return self._listener.on_tensor(f"{part}.out", out)

        return hook

    def _argument_hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (self._listener.on_tensor(name, args[0]), *args[1:])

        return hook

    def _note_call(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self._called = True

    # the layers of the network

    def _blocks(self) -> Sequence[Layer]:
        return family_of(self._net).blocks(self._net)

    def _check_skippable(self, names: set[str]) -> None:
        fixed = [name for block in self._blocks() if block.changes_shape for name in (block.name, f"{block.name}.attn")]
        if refused := [name for name in fixed if name in names]:
            raise UsageError(
                f"{', '.join(refused)} cannot be skipped: later blocks rely on the smaller number of tokens. "
                f"Name the other blocks one by one, or skip its MLP: {refused[0].removesuffix('.attn')}.mlp."
            )

    def _attentions_or_refuse(self) -> list[str]:
        if names := self.attentions():
            return names
        raise UsageError(
            f"{type(self._net).__name__} has no attention Vitadel supports. "
            "Choose a ViT, DeiT, CaiT, XCiT, Swin or LeViT (not levit_conv_*)."
        )

    def _classifier(self) -> nn.Module | None:
        """The last linear layer, by the name timm gives it."""
        names = classifiers(self._net)
        return self._net.get_submodule(names[0]) if names else None


def _each(factors: float | Tensor | Sequence[float], count: int) -> list[Tensor | float]:
    if isinstance(factors, Tensor):
        return [factors] * count if factors.ndim == 0 else list(factors)
    return [factors] * count if isinstance(factors, float | int) else list(factors)


def _matching(pattern: str, known: Sequence[str], kind: str) -> list[str]:
    """The names that match. A star matches within a part of the name if any name matches so, else across dots.

    So `blocks.*.out` are the outputs of blocks without those of their branches, and `*.logits` the logits of all
    attention layers; a single star matches all names.
    """
    names = list(known)
    matches = fnmatch.filter(names, pattern)
    if pattern != "*":
        matches = [name for name in matches if name.count(".") == pattern.count(".")] or matches
    if not matches:
        shown = f"{', '.join(names[:8])}, ..." if names else "none: its family has no blocks Vitadel supports"
        raise UsageError(f"no {kind} matches {pattern!r}. This model has {len(names)}: {shown}")
    return matches
