"""The measurements of the study of gradient masking: gaps, zero gradients and attacks, each with a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from vitadel.analyze import masking_verdict as tests
from vitadel.analyze.attack_runner import AttackOutcome, has_zero_gradient, run_attack
from vitadel.analyze.attention_gaps import EDGES, LINES, measure_gaps
from vitadel.attacks import PGD, Factors, IterativeAttack, Square
from vitadel.attacks.attention_scaling.attack import find_attack_factors, rescale_attack
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel
from vitadel.core.stats import Accuracy, accuracy
from vitadel.evaluate.context import Batch, Context
from vitadel.losses import Loss, cross_entropy, margin
from vitadel.models import Model
from vitadel.runs.typed_json import from_json
from vitadel.threats import Threat

if TYPE_CHECKING:
    from vitadel.analyze.masking import Masking

# no classifier is robust at this radius: images of different classes can be made almost equal
FAR = 100 / 255
_LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "margin": margin}

# the outcome of an attack ("pgd" or "aas") by its name and its number of steps
OutcomesBySteps = Mapping[tuple[str, int], AttackOutcome]


@dataclass(frozen=True, slots=True)
class EpsPoint:
    """Accuracy under PGD at one radius."""

    eps: float
    text: str
    accuracy: Accuracy


@dataclass(frozen=True, slots=True)
class StepsPoint:
    """Accuracy under PGD with a number of steps, and under PGD or the same attack on rescaled attention."""

    steps: int
    pgd: Accuracy
    aas: Accuracy


@dataclass(frozen=True, slots=True)
class BlocksPoint:
    """Accuracy under PGD with gradients of the model whose first `blocks` attention layers are rescaled.

    Args:
        blocks: Number of rescaled attention layers.
        original: Evaluated on the model itself.
        with_plain: The same, together with PGD on the model itself.
        rescaled: Evaluated on the rescaled model, as in the paper.
        rescaled_clean: Accuracy of the rescaled model without an attack.
    """

    blocks: int
    original: Accuracy
    with_plain: Accuracy
    rescaled: Accuracy
    rescaled_clean: Accuracy


@dataclass(frozen=True, slots=True)
class AttackCost:
    """How many images one attack tried and broke, and its cost."""

    name: str
    tried: int
    broken: int
    share: Accuracy | None
    forwards: int
    backwards: int
    zero_gradients: int
    seconds: float

    @classmethod
    def of(cls, name: str, outcome: AttackOutcome) -> "AttackCost":
        costs = {column: round(outcome.total(column)) for column in ("forwards", "backwards", "zero_gradients")}
        broken, seconds = len(outcome.broken), outcome.total("seconds")
        return cls(name, outcome.tried, broken, outcome.share, **costs, seconds=seconds)


@dataclass(frozen=True, slots=True)
class MaskingResults:
    """All measurements, and the verdict."""

    n: int
    classes: int
    clean: Accuracy
    verdict: tests.Verdict
    factors: Mapping[str, Any]
    plain: Sequence[Mapping[str, Any]]
    scaled: Sequence[Mapping[str, Any]]
    gradients: Mapping[str, Accuracy]
    eps: Sequence[EpsPoint]
    iterations: Sequence[StepsPoint]
    blocks: Sequence[BlocksPoint]
    attacks: Sequence[AttackCost]

    def numbers(self) -> dict[str, object]:
        """As JSON values."""
        kept = {name: value for name, value in asdict(self).items() if name not in ("plain", "scaled")}
        evidence = [{**asdict(one), "decisive": one.is_decisive} for one in self.verdict.evidence]
        return {
            **kept,
            "verdict": {**asdict(self.verdict), "evidence": evidence},
            "lines": [{"name": name, "gap": gap} for name, gap in LINES.items()],
            "edges": list(EDGES),
            "gaps": {"plain": self.plain, "scaled": self.scaled},
        }


@dataclass(frozen=True)
class Measurements:
    """The measurements of a model; results in the context's store are not computed again."""

    settings: "Masking"
    ctx: Context

    def all(self) -> MaskingResults:
        """Every measurement in sequence; called in every process."""
        plain = measure_gaps(self.ctx, "gaps")
        scaled_gaps = measure_gaps(self.ctx, "gaps-scaled", self.factors.attentions)
        zero = self._zero_gradients()
        eps, broken_at_radii, far = self._eps()
        by_steps = self._iterations()
        others = self._others(by_steps, broken_at_radii)
        evidence = self._evidence(plain, zero, far, by_steps, others)
        return MaskingResults(
            n=self.n,
            classes=self.classes,
            clean=self._share(len(self.correct)),
            verdict=tests.verdict_from(evidence, correct=len(self.correct), n=self.n, num_classes=self.classes),
            factors=self._search,
            plain=plain,
            scaled=scaled_gaps,
            gradients={name: self._share(count) for name, count in zero.items()},
            eps=eps,
            iterations=[self._steps_point(by_steps, steps) for steps in self._lengths],
            blocks=self._blocks(),
            attacks=self._costs(by_steps, others),
        )

    # ---------------------------------------------------------------- the model

    @property
    def n(self) -> int:
        return len(self.ctx.images)

    @property
    def threat(self) -> Threat:
        return self.ctx.required_threat

    @cached_property
    def correct(self) -> list[int]:
        """The images that the model classifies correctly."""

        def clean(batch: Batch) -> dict[str, object]:
            z_BK = self.ctx.logits(batch.x)
            return {"prediction": self.ctx.predicted(z_BK), "classes": [z_BK.shape[1]] * len(batch)}

        self.ctx.map("clean", clean)
        return self._correct("clean")

    def _correct(self, table: str) -> list[int]:
        correct = self.ctx.correct(self.ctx.table(table)["prediction"])
        return [index for index, one in enumerate(correct) if one]

    @cached_property
    def classes(self) -> int:
        return int(self.ctx.table("clean").of_type("classes", int)[0])

    def _share(self, count: int) -> Accuracy:
        return accuracy(count, self.n)

    def _zero_gradients(self) -> dict[str, int]:
        """How many input gradients are exactly zero, by loss and point."""
        points: dict[str, Threat | None] = {"images": None, "random points": self.threat}
        chosen = {f"{loss}, {point}": (_LOSSES[loss], threat) for loss in _LOSSES for point, threat in points.items()}

        def zero(batch: Batch) -> dict[str, object]:
            return {name: has_zero_gradient(self.ctx, batch, *one) for name, one in chosen.items()}

        self.ctx.map("gradients", zero)
        rows = self.ctx.table("gradients")
        return {name: sum(rows.of_type(name, bool)) for name in chosen}

    @cached_property
    def _tuning(self) -> tuple[list[int], int]:
        """The images that factors are searched on, and how many of them select among the candidates."""
        scaling = self.settings.scaling
        index = list(self.correct or range(self.n))[: max(scaling.trial_images, scaling.batches * scaling.batch_size)]
        return index, min(scaling.trial_images, max(1, len(self.correct) // 4))

    @cached_property
    def _search(self) -> dict[str, Any]:
        """The factors, and facts about their search."""
        index, num_trial_images = self._tuning

        def search() -> dict[str, object]:
            batch, chosen = self.ctx.batch(index), replace(self.settings.scaling, trial_images=num_trial_images)
            search = find_attack_factors(self.ctx.model, batch.x, batch.y, self.threat, chosen, seed=self.ctx.seed)
            cost = {"forwards": search.forwards, "backwards": search.backwards}
            return {**asdict(search.best), "tried": len(search.tried), "held": num_trial_images, **cost}

        return self.ctx.compute_once("factors", search)

    @property
    def factors(self) -> Factors:
        source = f"{self.ctx.store.folder}/parts/factors.json"
        return from_json(Factors, self._search, source, "Delete it and run the same command again.")

    # ------------------------------------------------------------------ attacks

    def _attack(
        self,
        name: str,
        attack: IterativeAttack,
        index: Sequence[int],
        *,
        threat: Threat | None = None,
        loss: Loss = cross_entropy,
    ) -> AttackOutcome:
        return run_attack(self.ctx, name, attack, index, threat or self.threat, loss=loss)

    def _without(self, broken: frozenset[int]) -> list[int]:
        return [index for index in self.correct if index not in broken]

    def _eps(self) -> tuple[list[EpsPoint], frozenset[int], tests.Evidence]:
        """Accuracy at growing radii, the images broken within the threat, and whether any is robust at the last radius.

        Images that are robust there are attacked once more, for longer and on the margin.
        """
        left, points, broken_at_radii = self.correct, list[EpsPoint](), frozenset[int]()
        for radius in self._radii:
            name = f"eps-{str(radius).replace(':', '-').replace('/', '_')}"
            broken = self._attack(name, PGD(steps=self.settings.curve_steps), left, threat=radius).broken
            left = [index for index in left if index not in broken]
            broken_at_radii |= broken if radius.eps <= self.threat.eps else frozenset()
            points.append(EpsPoint(radius.eps, str(radius), self._share(len(left))))
        last = self._radii[-1]
        longer = self._attack("eps-again", PGD(steps=self.settings.steps), left, threat=last, loss=margin)
        again = len(left) - len(longer.broken)
        return points, broken_at_radii, tests.large_eps(len(left), again, len(self.correct), str(last))

    @cached_property
    def _radii(self) -> list[Threat]:
        """Fractions of the threat's radius, then the smallest ball that contains that of L-infinity at 100/255."""
        shape = self.ctx.images.images(torch.tensor([0])).shape[1:]
        last = max(FAR * self.threat.diameter(shape), self.threat.eps)
        inside = {share * self.threat.eps for share in self.settings.shares}
        return [self.threat.with_eps(eps) for eps in sorted({eps for eps in inside if eps < last} | {last})]

    @property
    def _lengths(self) -> list[int]:
        return sorted({*self.settings.iterations, self.settings.steps})

    def _iterations(self) -> dict[tuple[str, int], AttackOutcome]:
        """PGD with every number of steps, and PGD on the rescaled model for images that each leaves robust."""
        results: dict[tuple[str, int], AttackOutcome] = {}
        for steps in self._lengths:
            pgd = PGD(steps=steps)
            results["pgd", steps] = self._attack(f"pgd-{steps}", pgd, self.correct)
            left = self._without(results["pgd", steps].broken)
            results["aas", steps] = self._attack(f"aas-{steps}", _scaled(pgd, self.factors), left)
        return results

    def _steps_point(self, by_steps: OutcomesBySteps, steps: int) -> StepsPoint:
        pgd, aas = (by_steps[kind, steps].broken for kind in ("pgd", "aas"))
        return StepsPoint(
            steps, self._share(len(self.correct) - len(pgd)), self._share(len(self.correct) - len(pgd | aas))
        )

    def _others(self, by_steps: OutcomesBySteps, broken_at_radii: frozenset[int]) -> dict[str, AttackOutcome]:
        """The attack again and other losses, then Square on images that no gradient of the model itself broke."""
        steps = self.settings.steps
        again = PGD(steps=steps)
        done = {"again": self._attack("again", again, self._without(by_steps["pgd", steps].broken))}
        plain = (outcome.broken for (kind, _), outcome in by_steps.items() if kind == "pgd")
        broken = frozenset[int]().union(*plain, broken_at_radii, done["again"].broken)
        targeted = PGD(steps=steps, targets=self.settings.targets)
        for name, attack, loss in (("margin", again, margin), ("targeted", targeted, cross_entropy)):
            done[name] = self._attack(name, attack, self._without(broken), loss=loss)
            broken |= done[name].broken
        if self.settings.queries:
            square = Square(queries=self.settings.queries)
            done["square"] = self._attack("square", square, self._without(broken), loss=margin)
        return done

    def _blocks(self) -> list[BlocksPoint]:
        """Attacks with gradients of a model whose first k attention layers are rescaled, evaluated on both models."""
        pgd, correct = PGD(steps=self.settings.curve_steps), len(self.correct)
        plain = self._attack("blocks-0", pgd, self.correct).broken
        points = []
        for count in self._block_counts:
            broken, clean, robust = plain, correct, correct - len(plain)
            if count:
                attentions = self.factors.attentions
                factors = replace(self.factors, attentions=(*attentions[:count], *[1.0] * (len(attentions) - count)))
                broken = self._attack(f"blocks-{count}", _scaled(pgd, factors), self.correct).broken
                clean, robust = self._on_rescaled_model(f"rescaled-{count}", pgd, factors)
            shares = (correct - len(broken), correct - len(broken | plain), robust, clean)
            points.append(BlocksPoint(count, *map(self._share, shares)))
        return points

    def _on_rescaled_model(self, name: str, attack: IterativeAttack, factors: Factors) -> tuple[int, int]:
        """The paper's protocol, which attacks and evaluates the rescaled model: images correct before and after."""
        assert isinstance(self.ctx.model, Model)
        model = RescaledModel(self.ctx.model, factors.attentions, factors.logits)
        self.ctx.map(f"{name}-clean", lambda batch: {"prediction": self.ctx.predict(batch.x, model=model)})
        correct = self._correct(f"{name}-clean")
        attacked = run_attack(self.ctx, name, attack, correct, self.threat, model=model)
        return len(correct), len(correct) - len(attacked.broken)

    @property
    def _block_counts(self) -> list[int]:
        attentions = len(self.factors.attentions)
        wanted = self.settings.blocks or [round(attentions * share) for share in (0, 0.25, 0.5, 0.75, 1)]
        return sorted({min(count, attentions) for count in (0, *wanted)})

    # ----------------------------------------------------------------- evidence

    def _evidence(
        self,
        plain: Sequence[Mapping[str, Any]],
        zero: Mapping[str, int],
        far: tests.Evidence,
        by_steps: OutcomesBySteps,
        others: Mapping[str, AttackOutcome],
    ) -> list[tests.Evidence]:
        steps, evidence = self.settings.steps, list[tests.Evidence]()
        if "square" in others:
            square = others["square"].broken
            evidence.append(tests.square(len(square), others["square"].tried, self.settings.queries))
            evidence += [tests.both_break(len(square & by_steps["aas", steps].broken), len(square))] if square else []
        index, count = self._tuning
        trial_images = frozenset(index[:count])
        by_scaling, by_chance = (
            by_steps["aas", steps].broken - trial_images,
            others["again"].broken - trial_images,
        )
        left = set(self.correct) - by_steps["pgd", steps].broken - trial_images
        only = (len(by_scaling - by_chance), len(by_chance - by_scaling))
        evidence += [tests.scaling(*only, len(by_scaling & by_chance), len(left)), far]
        if len(self._lengths) > 1:
            *shorter, longest = (by_steps["pgd", length].broken for length in self._lengths)
            pairs = list(zip(self._lengths, shorter, strict=False))
            only_short = {length: len(broken - longest) for length, broken in pairs}
            only_long = {length: len(longest - broken) for length, broken in pairs}
            evidence.append(tests.iterations(only_short, only_long, self._lengths[-1]))
        return [*evidence, tests.zero_gradients(zero, self.n), _gap_evidence(plain)]

    def _costs(self, by_steps: OutcomesBySteps, others: Mapping[str, AttackOutcome]) -> list[AttackCost]:
        """For each attack at the threat's radius: a description, how many images it tried and broke, its cost."""
        steps = self.settings.steps
        names = {
            "again": "the same once more, from another random start, on what it left",
            "margin": f"PGD on the margin, {steps} steps, on the images still robust, not counting AAS",
            "targeted": f"PGD toward each of {self.settings.targets} other classes, on what is left",
            "square": f"Square, {self.settings.queries} queries and no gradients, on what is left",
        }
        return [
            AttackCost.of(f"PGD, {steps} steps", by_steps["pgd", steps]),
            AttackCost.of("AAS: the same on rescaled attention, on what it left", by_steps["aas", steps]),
            *(AttackCost.of(names[name], outcome) for name, outcome in others.items()),
        ]


def _gap_evidence(attentions: Sequence[Mapping[str, Any]]) -> tests.Evidence:
    beyond = {one["name"]: one["all"]["beyond"][-1] for one in attentions}
    rows = {one["name"]: one["all"]["rows"] for one in attentions}
    shares = {name: beyond[name] / max(1, rows[name]) for name in beyond}
    worst = max(shares, key=lambda name: shares[name])
    return tests.gaps(sum(beyond.values()), sum(rows.values()), worst, shares[worst])


def _scaled(attack: IterativeAttack, factors: Factors) -> IterativeAttack:
    scaled = rescale_attack(attack, factors)
    assert isinstance(scaled, IterativeAttack)
    return scaled
