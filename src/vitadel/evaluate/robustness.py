"""One call for images in hand: how robust is this model?"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitadel import threats as threats
from vitadel.attacks import Engine, Factors, Scaling, rescaled
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError, unknown
from vitadel.core.numeric import check_seed
from vitadel.core.progress import Notify, silent
from vitadel.core.stats import Accuracy
from vitadel.evaluate.attack_suites import SUITES, Entry, Suite
from vitadel.evaluate.attention_scaling import PAPER_PROTOCOL, find, in_float32, with_scaled
from vitadel.evaluate.cascade import Cascade
from vitadel.evaluate.journal import Notebook
from vitadel.evaluate.runner import ready
from vitadel.evaluate.summary import summarize
from vitadel.evaluate.verdicts import verdicts
from vitadel.threats import Threat


@dataclass(frozen=True, slots=True)
class Robustness:
    """What a suite found out about a model on some images.

    `fell_to` names, per image, the attack it fell to first: "clean" if it was wrong before any, "" if it stands. `x`
    are the images found, or the last attempts on those that stand. Of scaled attacks, `factors` are those found, and
    `paper_protocol` is what the paper reports: the accuracy of the rescaled model, attacked in the model's place.
    """

    clean: Accuracy
    robust: Accuracy
    fell_to: Sequence[str]
    prediction: Sequence[int]
    size: Sequence[float]
    x: Tensor
    attacks: Sequence[Mapping[str, object]]
    flags: Sequence[Mapping[str, object]]
    seconds: float
    factors: Factors | None = None
    paper_protocol: Accuracy | None = None


def robustness(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat | str = "linf:8/255",
    suite: str | Sequence[Entry] = "adversarial",
    *,
    seed: int = 0,
    engine: Engine | None = None,
    scaling: Scaling | None = None,
    notify: Notify = silent,
) -> Robustness:
    """Attack the images `x` with pixels in [0, 1] and labels `y`; the default suite is AutoAttack.

    `suite` is a name or attacks of your own, one after the other. The model decides where the work is done, and in
    which precision: a model in float64, bfloat16 or float16 is judged as it is, on pixels that are searched in float32
    and rounded to its precision on their way in; its logits are compared in float32. With
    `scaling`, images that stand are attacked once more by attacks that learn from the rescaled model.
    """
    check_seed(seed)
    if isinstance(suite, str) and suite not in SUITES:
        raise unknown("suite", suite, SUITES)
    chosen = SUITES[suite] if isinstance(suite, str) else Suite("own", "", tuple(suite))
    if len(chosen.shares) > 1:
        raise UsageError(f"robustness judges one radius, and the suite {chosen.name!r} has several. Use `evaluate`.")
    radius = threats.as_threat(threat)
    images, entries, engine = InHand(x, y), chosen.cascade(radius), engine or Engine()
    # neither a caller's inference mode nor mixed precision may reach the verdicts
    with torch.inference_mode(False), torch.autocast(device_of(model).type, enabled=False):
        if scaling is None:
            return _judged(model, images, radius, chosen.name, entries, seed, engine, notify)
        engine = in_float32(engine)
        factors = find(model, images, radius, scaling, seed).best
        paper = _judged(rescaled(model, factors), images, radius, PAPER_PROTOCOL, entries, seed, engine, notify).robust
        result = _judged(model, images, radius, chosen.name, with_scaled(entries, factors), seed, engine, notify)
        return replace(result, factors=factors, paper_protocol=paper)


def _judged(
    model: nn.Module,
    images: "InHand",
    radius: Threat,
    name: str,
    entries: tuple[Entry, ...],
    seed: int,
    engine: Engine,
    notify: Notify,
) -> Robustness:
    x = images.pixels
    found, notebook = x.detach().float().cpu().clone(), Notebook()
    attempts: dict[int, list[Tensor]] = defaultdict(list)

    def keep(row: int, image: Tensor, fell: bool) -> None:
        found[row] = image
        if cascade.is_random:
            attempts[row].append(image)

    cascade = Cascade(model, images, entries, radius, notebook, seed, engine, keep=keep, notify=notify, name=name)
    standing = cascade.classify()
    ready(cascade, images.images(torch.arange(min(len(x), 64))).to(device_of(model)))
    cascade.attack(standing)
    rows = verdicts(notebook, images, [str(row) for row in range(len(x))], entries, {})
    if cascade.is_random:  # the worst of the attempts, which need not be the last
        for row, which in enumerate(rows["worst"]):
            found[row] = x[row].float().cpu() if int(str(which)) < 0 else attempts[row][int(str(which))]
    find_flags, seconds = cascade.find_flags(), cascade.clean_seconds
    summary = summarize(name, name, entries, radius, rows, find_flags, cascade.precision, seconds)
    assert summary.clean is not None
    assert summary.robust is not None
    content = summary.to_json()
    return Robustness(
        summary.clean,
        summary.robust,
        [str(to) for to in rows["fell_to"]],
        [int(str(answer)) for answer in rows["prediction"]],
        [float(str(size)) for size in rows["size"]],
        found,
        content["attacks"],  # type: ignore[arg-type]
        content["flags"],  # type: ignore[arg-type]
        summary.seconds,
    )


class InHand:
    """Tensors as a caller has them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        for name, value in (("images", x), ("labels", y)):
            if not isinstance(value, Tensor):
                raise UsageError(f"{name} must be a tensor, got {type(value).__name__}. Write torch.as_tensor({name}).")
        if x.ndim != 4 or not x.is_floating_point() or len(x) == 0:
            raise UsageError(f"images must be floats [n, channels, rows, columns], got {x.dtype} of {list(x.shape)}.")
        if x.is_meta or y.is_meta:
            raise UsageError("images and labels on the meta device have no values. Make them outside of it.")
        if y.ndim != 1 or len(y) != len(x):
            raise UsageError(f"got {len(x)} images and labels of shape {list(y.shape)}. Give one label per image.")
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise UsageError(f"labels must be class numbers, got {y.dtype}. Write y.long() if they are whole.")
        low, high = float(x.min()), float(x.max())
        if not (low >= 0 and high <= 1):
            raise UsageError(
                f"attacks take pixels in [0, 1], got [{low:.3g}, {high:.3g}]. "
                "Normalization belongs inside the model: vitadel.models.wrap(net, mean=..., std=...)."
            )
        # made by a caller in inference mode, they would be of no use in a gradient
        self.pixels = x.detach().clone() if x.is_inference() else x.detach()
        self.labels = y.detach().cpu().long().clone()

    def __len__(self) -> int:
        return len(self.pixels)

    def images(self, rows: Tensor) -> Tensor:
        return self.pixels[rows.to(self.pixels.device)].float()
