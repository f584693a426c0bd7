"""The measurements of a study of masking, one part after the other, and the evidence they make."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from vitadel import threats as threats
from vitadel.analyze import verdict as judge
from vitadel.analyze.attack_runner import AttackRunner
from vitadel.analyze.attention_gaps import EDGES, LINES, gaps
from vitadel.analyze.study import Parts
from vitadel.attacks import PGD, Factors, IterativeAttack, RescaledModel, Square, scaled, search_factors
from vitadel.core.stats import accuracy
from vitadel.losses import Loss, cross_entropy, margin
from vitadel.models import Model
from vitadel.runs import describe
from vitadel.threats import Linf, Threat, spell, with_eps

if TYPE_CHECKING:
    from vitadel.analyze.masking import Masking

# no classifier stands here: images of different classes can nearly be made the same
FAR = 100 / 255
_LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "margin": margin}


@dataclass(frozen=True, slots=True)
class Work:
    """One study of masking under way: every measurement is a part, made once."""

    settings: "Masking"
    model: Model
    field: AttackRunner
    parts: Parts
    threat: Threat

    def result(self) -> dict[str, object]:
        clean = self.parts.once("clean", self._clean)
        right, classes, n = _rows(clean["right"]), int(str(clean["classes"])), len(self.field.images)
        plain = self.parts.once("gaps", lambda: self._gaps(None, "gaps"))
        factors, held, search = self._factors(right)
        under = self.parts.once("gaps-scaled", lambda: self._gaps(factors, "gaps under AAS"))
        zero = self.parts.once("gradients", self._gradients)
        eps, within, far = self._eps(right)
        runs = self._iterations(right, factors)
        others = self._others(right, runs, within)
        evidence = self._evidence(right, held, plain, zero, far, runs, others)
        verdict = judge.weigh(evidence, right=len(right), n=n, classes=classes)
        blocks = self._blocks(right, factors)
        return {
            "study": "masking",
            "threat": {
                "norm": spell(self.threat).partition(":")[0],
                "eps": self.threat.eps,
                "text": spell(self.threat),
            },
            "settings": describe(self.settings),
            "n": n,
            "classes": classes,
            "clean": _share(len(right), n),
            "verdict": {**asdict(verdict), "evidence": [_told(one) for one in verdict.evidence]},
            "factors": search,
            "lines": [{"name": name, "gap": gap} for name, gap in LINES.items()],
            "edges": list(EDGES),
            "gaps": {"plain": plain["attentions"], "scaled": under["attentions"]},
            "gradients": {name: _share(count, n) for name, count in _counts(zero).items()},
            "eps": [{"eps": radius.eps, "text": spell(radius), "right": _share(left, n)} for radius, left in eps],
            "iterations": [
                {
                    "steps": steps,
                    "pgd": _share(len(right) - len(runs["pgd", steps]), n),
                    "aas": _share(len(right) - len(runs["pgd", steps] | runs["aas", steps]), n),
                }
                for steps in self._lengths
            ],
            "blocks": blocks,
            "attacks": self._attacks(
                {
                    name: self._known(name)
                    for name in (f"pgd-{self.settings.steps}", f"aas-{self.settings.steps}", *others)
                }
            ),
            "seconds": self.parts.seconds,
        }

    # ---------------------------------------------------------------- the model

    def _clean(self) -> dict[str, object]:
        right, classes = self.field.right()
        return {"right": right, "classes": classes}

    def _gaps(self, factors: Factors | None, what: str) -> dict[str, object]:
        chosen = None if factors is None else factors.attentions
        at_once = min(64, self.field.rows_at_once())
        return gaps(self.model, self.field.images, chosen, batch=at_once, notify=self.field.notify, what=what)

    def _gradients(self) -> dict[str, object]:
        places: dict[str, Threat | None] = {"images": None, "random points": self.threat}
        counts = {
            f"{loss}, {place}": self.field.zero_gradients(_LOSSES[loss], threat)
            for loss in _LOSSES
            for place, threat in places.items()
        }
        return {"zero": counts}

    def _factors(self, right: Sequence[int]) -> tuple[Factors, frozenset[int], dict[str, object]]:
        """The factors, the rows they were chosen on, and what a reader should know of the search."""
        scaling = self.settings.scaling
        rows = list(right or range(len(self.field.images)))[: max(scaling.held, scaling.batches * scaling.batch)]
        held = min(scaling.held, max(1, len(right) // 4))

        def search() -> dict[str, object]:
            at = torch.tensor(rows)
            x, y = (
                self.field.images.images(at).to(self.field.device),
                self.field.images.labels[at].to(self.field.device),
            )
            self.field.notify("search for factors", 0, 1, {})
            chosen = replace(scaling, held=held)
            found = search_factors(self.model, x, y, self.threat, chosen, seed=self.field.seed)
            self.field.notify("search for factors", 1, 1, {})
            cost = {"forwards": found.forwards, "backwards": found.backwards}
            return {**asdict(found.best), "tried": len(found.tried), "held": held, **cost}

        told = self.parts.once("factors", search)
        attentions, logits = told["attentions"], told["logits"]
        assert isinstance(attentions, list)
        return Factors(tuple(attentions), float(str(logits))), frozenset(rows[:held]), told

    # ------------------------------------------------------------------ attacks

    def _strike(
        self,
        name: str,
        walk: IterativeAttack,
        rows: Sequence[int],
        *,
        threat: Threat | None = None,
        loss: Loss = cross_entropy,
        model: nn.Module | None = None,
    ) -> dict[str, object]:
        radius = self.threat if threat is None else threat
        return self.parts.once(name, lambda: self.field.run_attack(name, walk, rows, radius, loss=loss, model=model))

    def _eps(self, right: Sequence[int]) -> tuple[list[tuple[Threat, int]], frozenset[int], judge.Evidence]:
        """Images that stand at growing radii, what fell within the threat, and whether any stands at the last.

        What stands there is attacked once more, for longer and on the margin.
        """
        left, points, within = list(right), list[tuple[Threat, int]](), frozenset[int]()
        for radius in self._radii():
            name = f"eps-{spell(radius).replace(':', '-').replace('/', '_')}"
            felled = _fell(self._strike(name, PGD(steps=self.settings.curve_steps), left, threat=radius))
            left = [row for row in left if row not in felled]
            within |= felled if radius.eps <= self.threat.eps else frozenset()
            points.append((radius, len(left)))
        longer = self._strike("eps-again", PGD(steps=self.settings.steps), left, threat=points[-1][0], loss=margin)
        again = len(left) - len(_fell(longer))
        return points, within, judge.far(len(left), again, len(right), spell(points[-1][0]))

    def _radii(self) -> list[Threat]:
        """Shares of the threat, and at last the ball around that of Linf at 100/255."""
        values = self.field.images.images(torch.tensor([0])).numel()
        wide = {Linf: 1.0, threats.L2: math.sqrt(values), threats.L1: float(values)}[type(self.threat)]
        last = max(FAR * wide, self.threat.eps)
        inside = {share * self.threat.eps for share in self.settings.shares}
        return [with_eps(self.threat, eps) for eps in sorted({eps for eps in inside if eps < last} | {last})]

    @property
    def _lengths(self) -> list[int]:
        return sorted({*self.settings.iterations, self.settings.steps})

    def _iterations(self, right: Sequence[int], factors: Factors) -> dict[tuple[str, int], frozenset[int]]:
        """What falls to PGD of every length, and of the rest to PGD on the rescaled model."""
        found: dict[tuple[str, int], frozenset[int]] = {}
        for steps in self._lengths:
            walk = PGD(steps=steps)
            found["pgd", steps] = _fell(self._strike(f"pgd-{steps}", walk, right))
            left = [row for row in right if row not in found["pgd", steps]]
            found["aas", steps] = _fell(self._strike(f"aas-{steps}", _walk(scaled(walk, factors)), left))
        return found

    def _others(
        self, right: Sequence[int], runs: Mapping[tuple[str, int], frozenset[int]], within: frozenset[int]
    ) -> dict[str, dict[str, object]]:
        """The attack again and other losses, and Square on what no gradient of the model itself found; in order."""
        steps = self.settings.steps
        again = PGD(steps=steps)
        left = [row for row in right if row not in runs["pgd", steps]]
        told = {"again": self._strike("again", again, left)}
        plain = (felled for (kind, _), felled in runs.items() if kind == "pgd")
        fallen = frozenset[int]().union(*plain, within, _fell(told["again"]))
        wide = PGD(steps=steps, targets=self.settings.targets)
        for name, walk, loss in (("margin", again, margin), ("targeted", wide, cross_entropy)):
            told[name] = self._strike(name, walk, [row for row in right if row not in fallen], loss=loss)
            fallen |= _fell(told[name])
        if self.settings.queries:
            rest = [row for row in right if row not in fallen]
            told["square"] = self._strike("square", Square(queries=self.settings.queries), rest, loss=margin)
        return told

    def _blocks(self, right: Sequence[int], factors: Factors) -> list[dict[str, object]]:
        """Attacks that learn from a model with its first k attentions rescaled, on both models as the judge."""
        n, walk = len(self.field.images), PGD(steps=self.settings.curve_steps)
        points = list[dict[str, object]]()
        plain = _fell(self._strike("blocks-0", walk, right))
        for count in self._block_counts(len(factors.attentions)):
            some = replace(factors, attentions=_first(factors.attentions, count))
            felled, clean, left = plain, len(right), len(right) - len(plain)
            if count:
                felled = _fell(self._strike(f"blocks-{count}", _walk(scaled(walk, some)), right))
                paper = self._paper(f"rescaled-{count}", walk, some)
                clean, left = len(_rows(paper["right"])), len(_rows(paper["right"])) - len(_fell(paper))
            points.append(
                {
                    "blocks": count,
                    "original": _share(len(right) - len(felled), n),
                    "with_plain": _share(len(right) - len(felled | plain), n),
                    "rescaled": _share(left, n),
                    "rescaled_clean": _share(clean, n),
                }
            )
        return points

    def _paper(self, name: str, walk: IterativeAttack, factors: Factors) -> dict[str, object]:
        """The paper's protocol: the rescaled model is attacked, and judges."""

        def measured() -> dict[str, object]:
            model = RescaledModel(self.model, factors.attentions, factors.logits)
            right, _ = self.field.right(model)
            return {"right": right, **self.field.run_attack(name, walk, right, self.threat, model=model)}

        return self.parts.once(name, measured)

    def _block_counts(self, attentions: int) -> list[int]:
        wanted = self.settings.blocks or [round(attentions * share) for share in (0, 0.25, 0.5, 0.75, 1)]
        return sorted({min(count, attentions) for count in (0, *wanted)})

    # ----------------------------------------------------------------- evidence

    def _evidence(
        self,
        right: Sequence[int],
        held: frozenset[int],
        plain: Mapping[str, object],
        zero: Mapping[str, object],
        far: judge.Evidence,
        runs: Mapping[tuple[str, int], frozenset[int]],
        others: Mapping[str, Mapping[str, object]],
    ) -> list[judge.Evidence]:
        steps, found = self.settings.steps, list[judge.Evidence]()
        if "square" in others:
            square = others["square"]
            found.append(judge.square(len(_fell(square)), int(str(square["tried"])), self.settings.queries))
            both = len(_fell(square) & runs["aas", steps])
            found += [judge.shared(both, len(_fell(square)))] if _fell(square) else []
        by_scaling, by_chance = runs["aas", steps] - held, _fell(others["again"]) - held
        left = set(right) - runs["pgd", steps] - held
        found.append(
            judge.scaling(
                len(by_scaling - by_chance), len(by_chance - by_scaling), len(by_scaling & by_chance), len(left)
            )
        )
        found.append(far)
        if len(self._lengths) > 1:
            *shorter, longest = self._lengths
            found.append(
                judge.iterations(
                    {one: len(runs["pgd", one] - runs["pgd", longest]) for one in shorter},
                    {one: len(runs["pgd", longest] - runs["pgd", one]) for one in shorter},
                    longest,
                )
            )
        found.append(judge.zero_gradients(_counts(zero), len(self.field.images)))
        return [*found, _gap_evidence(plain)]

    def _known(self, name: str) -> dict[str, object]:
        """A part that was made before."""

        def missing() -> Mapping[str, object]:
            raise AssertionError(f"{name} comes later")

        return self.parts.once(name, missing)

    def _attacks(self, told: Mapping[str, Mapping[str, object]]) -> list[dict[str, object]]:
        """What each attack at the threat tried, felled and cost, in words that say what it is."""
        steps = self.settings.steps
        names = {
            f"pgd-{steps}": f"PGD, {steps} steps",
            "again": "the same once more, from another random start, on what it left",
            f"aas-{steps}": "AAS: the same on rescaled attention, on what it left",
            "margin": f"PGD on the margin, {steps} steps, on what is left so far, AAS aside",
            "targeted": f"PGD towards each of {self.settings.targets} rivals, on what is left",
            "square": f"Square, {self.settings.queries} queries and no gradients, on what is left",
        }
        columns = ("forwards", "backwards", "zero_gradients", "seconds")
        return [
            {
                "name": names[name],
                "tried": one["tried"],
                "fell": len(_fell(one)),
                "share": _share(len(_fell(one)), int(str(one["tried"]))) if one["tried"] else None,
                **{key: one[key] for key in columns},
            }
            for name, one in told.items()
        ]


def _gap_evidence(told: Mapping[str, object]) -> judge.Evidence:
    attentions = told["attentions"]
    assert isinstance(attentions, list)
    beyond = {one["name"]: one["all"]["beyond"][-1] for one in attentions}
    rows = {one["name"]: one["all"]["rows"] for one in attentions}
    shares = {name: beyond[name] / max(1, rows[name]) for name in beyond}
    worst = max(shares, key=lambda name: shares[name])
    return judge.gaps(sum(beyond.values()), sum(rows.values()), worst, shares[worst])


def _told(evidence: judge.Evidence) -> dict[str, object]:
    return {**asdict(evidence), "outcome": evidence.is_outcome}


def _share(count: int, n: int) -> dict[str, object]:
    return asdict(accuracy(count, n))


def _walk(attack: object) -> IterativeAttack:
    assert isinstance(attack, IterativeAttack)
    return attack


def _rows(value: object) -> list[int]:
    assert isinstance(value, list)
    return [int(row) for row in value]


def _fell(told: Mapping[str, object]) -> frozenset[int]:
    return frozenset(_rows(told["fell"]))


def _counts(told: Mapping[str, object]) -> dict[str, int]:
    zero = told["zero"]
    assert isinstance(zero, dict)
    return {str(name): int(count) for name, count in zero.items()}


def _first(factors: Sequence[float], count: int) -> tuple[float, ...]:
    return (*factors[:count], *([1.0] * (len(factors) - count)))
