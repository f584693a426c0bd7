r"""Is the attack strong enough? Loss and accuracy against its steps, over restarts; and the loss around images.

Debenedetti's code attacks correctly classified images with 0, 1, 2, 5, ... steps of PGD, many times each: an attack
that has converged gains nothing from more steps, and restarts end alike. Zero steps are the clean image. Each number of
steps is a search of its own, whose steps are 2.5 eps / steps long if nobody says otherwise.

A slice of the loss around an image x is :math:`L(\mathrm{clip}(x + a\,d + b\,r))` for a and b from -1 to 1: d is a step
of length eps along the gradient, r one along random numbers, both as the threat steps; the clip keeps pixels in [0, 1].
In the middle is the loss of the image itself. A smooth rise along a is what gradients can follow; a rough or flat one
hides from them.

Shape letters: B images, R restarts, A and B points along a and b.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from vitadel import threats as threats
from vitadel.analyze.attack_runner import AttackRunner
from vitadel.analyze.attacked_images import check_images, floats, numbers
from vitadel.analyze.json_arrays import packed, unpacked
from vitadel.analyze.study import Bench, Parts
from vitadel.attacks import PGD, Oracle, isolated
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, Range, check_ranges
from vitadel.core.oom import in_batches
from vitadel.core.progress import Notify
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.core.stats import accuracy
from vitadel.evaluate.images import Images
from vitadel.goals import Untargeted
from vitadel.losses import cross_entropy
from vitadel.runs import describe
from vitadel.runs.exhibits import Cell, Exhibit, Heat, Line, Lines, Matrix, Table, findings
from vitadel.threats import Threat

_VALUES = 1 << 21  # pixel values attacked at once, where nobody says otherwise


@dataclass(frozen=True, slots=True)
class Convergence:
    """Loss and accuracy of PGD against its steps, with the band of its restarts; slices of the loss around images.

    The first `images` that the model gets right are attacked with each of `steps`, `restarts` times. `step_size` is
    2.5 eps / steps if not said, whatever the number of steps. Of `slices` images the loss is shown on a plane of
    `points` by `points`, an odd number; 0 slices leave that out.
    """

    about: ClassVar[str] = "is the attack strong enough? Loss and accuracy against steps, and the loss around images"
    needs_threat: ClassVar[bool] = True

    steps: tuple[CountOrZero, ...] = (0, 1, 2, 5, 10, 50, 100)
    restarts: Count = 5
    images: Count = 100
    step_size: Annotated[float, Range(gt=0, hint="Leave it out.")] | None = None
    slices: CountOrZero = 4
    points: Annotated[int, Range(ge=3, le=1001)] = 21

    def __post_init__(self) -> None:
        check_ranges(self)
        if not any(self.steps) or len(set(self.steps)) < len(self.steps):
            raise UsageError(
                f"Convergence.steps wants numbers of steps from 0, each once and not 0 alone, got {self.steps}."
            )
        if self.points % 2 == 0:
            raise UsageError(f"Convergence.points must be odd, so that the image is in the middle, got {self.points}.")

    def refuse(self, model: nn.Module) -> None:
        """Every model can be studied."""

    def carry_out(self, bench: Bench) -> dict[str, object]:
        """Curves over steps and slices around images, of the first images that the model gets right."""
        model, images, threat = bench.model, bench.images, bench.threat
        check_images(images)
        rows = self._rows(model, images, bench.parts, bench.seed, bench.batch, bench.notify)
        found: dict[int, list[Mapping[str, object]]] = {}
        done, total = 0, sum(self.restarts if steps else 1 for steps in self.steps)
        for steps in sorted(self.steps):
            for restart in range(self.restarts if steps else 1):  # the clean image is the same every time
                name = f"steps-{steps:05d}-restart-{restart:03d}"
                found.setdefault(steps, []).append(
                    bench.parts.once(
                        name,
                        lambda steps=steps, restart=restart: self._attacked(  # type: ignore[misc]
                            model, images, rows, threat, steps, fold_seed(bench.seed, restart), bench.batch
                        ),
                    )
                )
                done += 1
                bench.notify("convergence", done, total, {"steps": steps})
        curve = {steps: _over_restarts(runs) for steps, runs in found.items()}
        slices = self._slices(model, images, rows, bench.parts, threat, bench.seed, bench.batch)
        exhibits: list[Exhibit] = [
            self._loss(curve, len(rows), threat),
            self._accuracy(curve, len(rows), threat),
            _table(curve, len(rows), self.restarts),
            *([] if not slices else [self._heat(slices, images.labels[rows].tolist(), threat)]),
        ]
        result = findings(
            "convergence",
            "Does the attack converge?",
            _summary(curve, len(rows), threats.spell(threat)),
            exhibits,
            {
                "n": len(rows),
                "tried": len(images),
                "settings": describe(self),
                "threat": {"text": threats.spell(threat), "eps": threat.eps},
                "curve": [{"steps": steps, **one} for steps, one in curve.items()],
                "slices": [one.tolist() for one in slices],
                "seconds": bench.parts.seconds,
            },
        )
        bench.parts.close(result)
        return result

    def _rows(
        self, model: nn.Module, images: Images, parts: Parts, seed: int, batch: int | None, notify: Notify
    ) -> Tensor:
        field = AttackRunner(model, images, seed, batch, notify)
        right = parts.once("right", lambda: {"rows": field.right()[0]})["rows"]
        assert isinstance(right, list)
        if not right:
            raise UsageError(
                f"the model gets none of {len(images)} images right, so there is nothing to attack. Choose more "
                "images, or look at `vitadel evaluate` first."
            )
        return torch.tensor(right[: self.images], dtype=torch.int64)

    def _attacked(
        self,
        model: nn.Module,
        images: Images,
        rows: Tensor,
        threat: Threat,
        steps: int,
        seed: int,
        batch: int | None,
    ) -> dict[str, object]:
        device = device_of(model)

        def run_attack(at: Tensor) -> tuple[Tensor, Tensor]:
            x, label_B = images.images(at).to(device), images.labels[at].to(device)
            if steps:
                attack = PGD(steps, self.step_size)
                x = attack(model, x, Untargeted(label_B), threat, seed=fold_seed(seed, steps), index_B=at).x_adv
            return _losses(model, x, label_B, seed)

        made = [one for _, one in in_batches(rows, _at_once(images, batch), run_attack)]
        loss_B, right_B = (torch.cat(list(one)) for one in zip(*made, strict=True))
        return {"loss": numbers(loss_B), "right": right_B.tolist()}

    def _slices(
        self,
        model: nn.Module,
        images: Images,
        rows: Tensor,
        parts: Parts,
        threat: Threat,
        seed: int,
        batch: int | None,
    ) -> list[Tensor]:
        """[A, B] losses around each of the first images."""

        def slice_(row: int) -> dict[str, object]:
            x, label_1 = images.images(torch.tensor([row])), images.labels[[row]]
            return {
                "loss": packed(loss_slice(model, x, label_1, threat, self.points, seed, row, _at_once(images, batch)))
            }

        return [
            unpacked(parts.once(f"slice-{row:06d}", lambda row=row: slice_(row))["loss"])  # type: ignore[misc]
            for row in rows[: self.slices].tolist()
        ]

    def _how(self, n: int, threat: Threat) -> str:
        length = "2.5 eps / steps" if self.step_size is None else f"{self.step_size:g}"
        return (
            f"PGD at {threats.spell(threat)} with steps of {length}, {self.restarts} restarts from random points, on "
            f"{n} images that the model gets right."
        )

    def _loss(self, curve: Mapping[int, Mapping[str, float]], n: int, threat: Threat) -> Lines:
        at, columns = _columns(curve, "loss", "loss_low", "loss_high")
        return Lines(
            "Loss against steps",
            f"Mean cross-entropy of what the attack returns. {self._how(n, threat)} The line is the mean over "
            "restarts, the band holds all of them.",
            [Line("mean over restarts", at, columns["loss"], columns["loss_low"], columns["loss_high"])],
            x_label="steps",
            y_label="cross-entropy",
            log_x=True,
            references=[("clean", curve[0]["loss"])] if 0 in curve else [],
        )

    def _accuracy(self, curve: Mapping[int, Mapping[str, float]], n: int, threat: Threat) -> Lines:
        at, columns = _columns(curve, "accuracy", "accuracy_low", "accuracy_high", "worst")
        return Lines(
            "Accuracy against steps",
            f"Share of images that the model still gets right. {self._how(n, threat)} The line is the mean over "
            "restarts, the band holds all of them; dashed: right under every restart.",
            [
                Line("mean over restarts", at, columns["accuracy"], columns["accuracy_low"], columns["accuracy_high"]),
                Line("all restarts together", at, columns["worst"], dashed=True),
            ],
            x_label="steps",
            y_label="accuracy",
            log_x=True,
            y_range=(0.0, 1.02),
        )

    def _heat(self, slices: Sequence[Tensor], labels: Sequence[int], threat: Threat) -> Heat:
        ticks = [f"{value:+.2g}" for value in _places(self.points).tolist()]
        return Heat(
            "The loss around images",
            "Cross-entropy at x + a d + b r, pixels clipped to [0, 1]: d is a step of length eps along the gradient "
            f"at x, r one along random numbers, both as {threats.spell(threat)} steps. The image itself is in the "
            "middle.",
            [Matrix(f"label {label}", one.tolist()) for one, label in zip(slices, labels, strict=False)],
            value_label="cross-entropy",
            row_label="a, along the gradient",
            column_label="b, along a random direction",
            rows=ticks,
            columns=ticks,
        )


def loss_slice(
    model: nn.Module, x: Tensor, label_1: Tensor, threat: Threat, points: int, seed: int, row: int, at_once: int
) -> Tensor:
    """[A, B] in float32: the loss of one image [1, C, H, W] on the plane of its gradient and a random direction."""
    device = device_of(model)
    x, label_1 = x.to(device), label_1.to(device)
    with isolated(model, seed, device):
        _, grad, _ = Oracle(model, int(label_1.max())).gradient(x, Untargeted(label_1))
    noise = RandomStreams.of(fold_seed(seed, *b"slice"), torch.tensor([row], device=device)).normal(
        *x.shape[1:], dtype=x.dtype
    )
    along, aside = (threat.ascend(x, one, threat.eps) - x for one in (grad, noise))
    place = _places(points).to(x)
    a_Q, b_Q = (one.flatten() for one in torch.meshgrid(place, place, indexing="ij"))

    def ask(at: Tensor) -> Tensor:
        a, b = (one[at.to(device)].view(-1, 1, 1, 1) for one in (a_Q, b_Q))
        return _losses(model, (x + a * along + b * aside).clamp(0, 1), label_1.expand(len(at)), seed)[0]

    found = torch.cat([made for _, made in in_batches(torch.arange(len(a_Q)), at_once, ask)])
    return found.view(points, points).float()


def _places(points: int) -> Tensor:
    """From -1 to 1, with a zero in the middle that is one."""
    half = points // 2
    return torch.arange(-half, half + 1, dtype=torch.float64) / half


def _losses(model: nn.Module, x: Tensor, label_B: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """[B] cross-entropies and right answers, on the CPU."""
    with isolated(model, seed, x.device), torch.no_grad():
        z_BK = Oracle(model, int(label_B.max()))(x)
    return cross_entropy(z_BK, label_B).cpu(), (z_BK.argmax(1) == label_B).cpu()


def _at_once(images: Images, batch: int | None) -> int:
    return batch or max(1, _VALUES // images.images(torch.arange(1)).numel())


def _over_restarts(runs: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Means over images, and over restarts their mean, least and greatest; `worst` counts images right in all."""
    loss_RB = torch.tensor([floats(_list(one["loss"])) for one in runs], dtype=torch.float64)
    right_RB = torch.tensor([_list(one["right"]) for one in runs], dtype=torch.float64)
    loss_R, right_R = loss_RB.mean(1), right_RB.mean(1)
    worst = accuracy(int(right_RB.amin(0).sum()), right_RB.shape[1])
    return {
        "loss": float(loss_R.mean()),
        "loss_low": float(loss_R.min()),
        "loss_high": float(loss_R.max()),
        "accuracy": float(right_R.mean()),
        "accuracy_low": float(right_R.min()),
        "accuracy_high": float(right_R.max()),
        "worst": worst.accuracy,
        "worst_low": worst.low,
        "worst_high": worst.high,
    }


def _columns(curve: Mapping[int, Mapping[str, float]], *keys: str) -> tuple[list[int], dict[str, list[float]]]:
    """What is drawn over steps, on an axis that has no zero."""
    at = [steps for steps in curve if steps]
    return at, {key: [curve[steps][key] for steps in at] for key in keys}


def _table(curve: Mapping[int, Mapping[str, float]], n: int, restarts: int) -> Table:
    keys = (
        "loss",
        "loss_low",
        "loss_high",
        "accuracy",
        "accuracy_low",
        "accuracy_high",
        "worst",
        "worst_low",
        "worst_high",
    )
    rows: list[list[Cell]] = [[steps, *(one[key] for key in keys)] for steps, one in curve.items()]
    return Table(
        "In numbers",
        f"Means over {n} images; of {restarts} restarts the mean, the least and the greatest. The last three columns "
        "are the share of images right under every restart, with Wilson's 95% interval.",
        ["steps", "loss", "least", "most", "accuracy", "least", "most", "all restarts", "low", "high"],
        rows,
    )


def _summary(curve: Mapping[int, Mapping[str, float]], n: int, threat: str) -> str:
    *before, last = curve
    text = (
        f"With {last} steps at {threat}, {curve[last]['accuracy']:.1%} of {n} images stand in the mean over restarts, "
        f"{curve[last]['worst']:.1%} under all of them"
    )
    if not before:
        return f"{text}."
    gained = curve[last]["loss"] - curve[before[-1]]["loss"]
    return (
        f"{text}. From {before[-1]} to {last} steps the loss changes by {gained:+.3f} and the accuracy by "
        f"{100 * (curve[last]['accuracy'] - curve[before[-1]]['accuracy']):+.1f} points; restarts lie between "
        f"{curve[last]['accuracy_low']:.1%} and {curve[last]['accuracy_high']:.1%}."
    )


def _list(value: object) -> list[float]:
    assert isinstance(value, list)
    return value
