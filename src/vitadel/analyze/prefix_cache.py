"""Right answers of a model with something changed in its layers, for many changes on the same images.

A plan says for every layer what is done to it. Plans are carried out in the order of a dictionary, and whatever the
layers gave up to the first difference is taken from the plan before: every beginning that plans share runs once. The
network's own code joins the layers; one whose output is known hands it on instead of running. Answers are those of
whole forward passes bit for bit (tests/unit/analyze/test_analyze_lesion_surgery.py).

Shape letters: B images, K classes, N tokens.
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vitadel.analyze.study import Parts
from vitadel.attacks import isolated
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError
from vitadel.core.oom import in_batches
from vitadel.core.progress import Notify
from vitadel.evaluate.images import Images
from vitadel.models import Layer, Model

_PORTION = 64  # images whose answers are written down together


class Cut(enum.IntEnum):
    """What is done to a layer; the numbers after `MASK` are those of masks for its attention."""

    NOTHING = 0
    LAYER = 1
    ATTENTION = 2
    MLP = 3
    MASK = 4


Plan = tuple[int, ...]


def intact(layers: Sequence[Layer]) -> Plan:
    """The plan that leaves the model as it is."""
    return (Cut.NOTHING,) * len(layers)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of every plan the number of right answers; and what it took, in layers run and forward passes' worth of them."""

    n: int
    right: dict[Plan, int]
    layers_run: int
    forwards: float


def operate(
    model: Model,
    layers: Sequence[Layer],
    plans: Sequence[Plan],
    images: Images,
    parts: Parts,
    *,
    masks: Sequence[Tensor] = (),
    seed: int,
    batch: int | None,
    notify: Notify,
    what: str,
) -> Outcome:
    """Carry out all plans on all images; portions that are known are not done again."""
    ordered = sorted({intact(layers), *plans})
    device = device_of(model)
    theatre = _PrefixCache(model, layers, [mask.to(device) for mask in masks])

    def look(rows: Tensor) -> tuple[list[int], int]:
        # what was left over when a larger batch did not fit belongs to other images
        theatre.forget()
        x, label_B, right = images.images(rows).to(device), images.labels[rows], []
        before = theatre.layers_run
        with isolated(model, seed, device), torch.no_grad():
            for number, plan in enumerate(ordered):
                z_BK = theatre.answer(x, plan)
                _check(z_BK, label_B, clean=number == 0)
                right.append(int((z_BK.argmax(1).cpu() == label_B).sum()))
                done = int(rows[0]) * len(ordered) + (number + 1) * len(rows)
                notify(what, done, len(ordered) * len(images), {})
        theatre.forget()
        return right, theatre.layers_run - before

    def portion(rows: Tensor) -> dict[str, object]:
        found = [(len(some), made) for some, made in in_batches(rows, batch or _PORTION, look)]
        right = [sum(counts) for counts in zip(*(counts for _, (counts, _) in found), strict=True)]
        # layers run for a batch are run for each of its images; how images are put together changes nothing
        return {"right": right, "layers_run": sum(size * run for size, (_, run) in found)}

    right, run = [0] * len(ordered), 0
    for rows in torch.arange(len(images)).split(_PORTION):
        told = parts.once(f"{what}-{int(rows[0]):09d}", lambda rows=rows: portion(rows))  # type: ignore[misc]
        counts, ran = told["right"], told["layers_run"]
        assert isinstance(counts, list)
        right, run = [a + b for a, b in zip(right, counts, strict=True)], run + int(str(ran))
    n = len(images)
    return Outcome(n, dict(zip(ordered, right, strict=True)), run // n, run / n / len(layers))


def _check(z_BK: Tensor, label_B: Tensor, *, clean: bool) -> None:
    if int(label_B.max()) >= z_BK.shape[1] or int(label_B.min()) < 0:
        raise UsageError(
            f"the model knows {z_BK.shape[1]} classes, the data has labels from {int(label_B.min())} to "
            f"{int(label_B.max())}. Is it the model for this data set?"
        )
    if clean and (bad := int((~z_BK.isfinite()).any(1).sum())):
        raise UsageError(f"the model returned NaN or infinite logits for {bad} of {len(z_BK)} clean images.")


@dataclass(slots=True)
class _PrefixCache:
    """A model, and what its layers gave under the latest plan."""

    model: Model
    layers: Sequence[Layer]
    masks: Sequence[Tensor]
    layers_run: int = 0
    _plan: Plan = ()
    _given: dict[int, Tensor] = field(default_factory=dict)
    _nothing: dict[nn.Module, Tensor] = field(default_factory=dict)
    _stem: dict[nn.Module, list[Tensor]] = field(default_factory=dict)

    def forget(self) -> None:
        self._plan, self._given, self._nothing, self._stem = (), {}, {}, {}

    def answer(self, x: Tensor, plan: Plan) -> Tensor:
        """[B, K]: the logits of the model changed by a plan, on the same images as the plan before."""
        # factors for attention that the model keeps are applied by taps, which want to see every attention run
        whole = self.model.attention_scales is not None
        known = 0 if whole else _in_common(self._plan, plan)
        with ExitStack() as stack:
            if whole:
                self._cut_by_taps(stack, plan)
            else:
                self._cut(stack, plan, known)
            self._mask(stack, plan, known)
            for place in range(known, len(plan)):
                stack.enter_context(_told(self.layers[place].module, self._keeping(place)))
            z_BK = self.model(x)
        self.layers_run += len(plan) if whole else sum(cut != Cut.LAYER for cut in plan[known:])
        self._plan = plan
        return z_BK

    def _cut(self, stack: ExitStack, plan: Plan, known: int) -> None:
        """Layers whose output is known, or that are left out, do not run; neither do branches that are left out."""
        self._pass_by_stem(stack)
        for place, (layer, cut) in enumerate(zip(self.layers, plan, strict=True)):
            if place < known:
                stack.enter_context(_acting(layer.module, _giving(self._given[place])))
            elif cut == Cut.LAYER:
                stack.enter_context(_acting(layer.module, _handing_on(layer.stream)))
            elif cut in (Cut.ATTENTION, Cut.MLP):
                branch = layer.attention if cut == Cut.ATTENTION else layer.mlp
                assert branch is not None
                stack.enter_context(_acting(branch, _giving(self._nothing[branch])))
            elif not self._plan:  # the first plan changes nothing, and shows what the branches give
                for one in (layer.attention, layer.mlp):
                    if one is not None:
                        stack.enter_context(_told(one, self._noting(one)))

    def _pass_by_stem(self, stack: ExitStack) -> None:
        """What the network did once, before its first layer, under the first plan, need not be done again."""
        if self._plan:
            for module, given in self._stem.items():
                if len(given) == 1:
                    stack.enter_context(_acting(module, _giving(given[0])))
            return
        inside = {id(layer.module) for layer in self.layers}
        for module in self.model.net.children():
            if not any(id(one) in inside for one in module.modules()):
                stack.enter_context(_told(module, self._stemming(module)))

    def _cut_by_taps(self, stack: ExitStack, plan: Plan) -> None:
        endings = {Cut.LAYER: "", Cut.ATTENTION: ".attn", Cut.MLP: ".mlp"}
        names = [
            f"{layer.name}{endings[Cut(cut)]}" for layer, cut in zip(self.layers, plan, strict=True) if cut in endings
        ]
        if names:
            stack.enter_context(self.model.taps.skip(*names))

    def _mask(self, stack: ExitStack, plan: Plan, known: int) -> None:
        masks = {
            f"{self.layers[place].name}.attn": self.masks[plan[place] - Cut.MASK]
            for place in range(known, len(plan))
            if plan[place] >= Cut.MASK
        }
        if masks:
            stack.enter_context(self.model.taps.mask(masks))

    def _keeping(self, place: int) -> Callable[[Tensor], None]:
        def keep(out: Tensor) -> None:
            self._given[place] = out

        return keep

    def _stemming(self, module: nn.Module) -> Callable[[Tensor], None]:
        def note(out: Tensor) -> None:
            # one that runs again later is noted a second time, and passed by never
            if module in self._stem or not self._given:
                self._stem.setdefault(module, []).append(out)

        return note

    def _noting(self, branch: nn.Module) -> Callable[[Tensor], None]:
        def note(out: Tensor) -> None:
            # of the right shape, and without memory of its own
            self._nothing[branch] = out.new_zeros(()).expand(out.shape)

        return note


def _in_common(one: Plan, other: Plan) -> int:
    """How many layers two plans begin with alike."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _giving(value: Tensor) -> Callable[..., Tensor]:
    return lambda *args, **settings: value


def _handing_on(stream: int) -> Callable[..., Tensor]:
    return lambda *args, **settings: args[stream]


@contextmanager
def _acting(module: nn.Module, act: Callable[..., Tensor]) -> Iterator[None]:
    """Inside, the module does something else when it is called."""
    own = module.__dict__.get("forward")
    module.forward = act
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


@contextmanager
def _told(module: nn.Module, tell: Callable[[Tensor], None]) -> Iterator[None]:
    def hook(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        tell(out)

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
