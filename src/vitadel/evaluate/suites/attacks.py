"""Suites of attacks: each attacks the images that are still robust, one row per image.

Robust accuracy counts an image only if it is classified correctly before and after every attack of the suite, which is
an upper bound on the true robust accuracy. The tables of a suite are `clean` and its attacks. A randomized model is
scored, per image, by the attempt on which it is correct least often, with fresh random numbers.

Shape letters: B images, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn

from vitadel.attacks import FGSM, PGD, AutoAttack, AutoAttackPlus, AutoAttackRand, NamedAttack, Scaling
from vitadel.attacks.attention_scaling.attack import rescale_model
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel, require_taps
from vitadel.attacks.oracle import zero_gradient_flags
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.numeric import Positive, check_ranges
from vitadel.core.stats import accuracy_of
from vitadel.data import DataSet
from vitadel.evaluate.adversarial_images import IMAGES, ImageFiles, check_complete, copy_from, write_gallery
from vitadel.evaluate.attack_runner import (
    CLEAN,
    COSTS,
    AttackRunner,
    fill_attack_table,
    is_randomized,
    record_clean_predictions,
)
from vitadel.evaluate.context import FLAGS, Context, threat_needed
from vitadel.evaluate.images import skipped_flags
from vitadel.evaluate.scaled_suites import (
    PAPER_PROTOCOL,
    RESCALED,
    SCALED,
    factors_of,
    factors_record,
    in_float32,
    search_flags,
    with_scaled,
)
from vitadel.evaluate.store import ResultStore, Row
from vitadel.evaluate.suites.base import OpenStore, evaluation_name, run_suite
from vitadel.losses import margin
from vitadel.runs.schema import ROBUST, WRONG_BEFORE, AttackRecord, SuiteRecord, ThreatRecord
from vitadel.threats import Threat

# tables that are not of an attack
_TABLES = (CLEAN, FLAGS, IMAGES)
# fraction of the images that a gradient-free or a rescaled attack may break in addition before a flag is raised
_FLAG_MARGIN = 0.002


@dataclass(frozen=True, slots=True)
class AttackSuite:
    """Attacks, one after the other, each on the images that are still robust; none means clean accuracy.

    Args:
        name: Its name, a prefix of the names of its evaluations.
        about: Description in one line.
        attacks: The attacks.
        eps_scales: Radii to evaluate at, as multiples of the threat's.
        keep_images: Whether the adversarial images are written into the run folder.
        scaling: The record of a search for scaling factors: every attack is run once more, on the rescaled model.

    Raises:
        UsageError: If a radius is out of its range, or there is none.

    Example:
        >>> AttackSuite("twice", "FGSM, then PGD", (NamedAttack("fgsm", FGSM()), NamedAttack("pgd", PGD(steps=50))))
    """

    title: ClassVar[str] = "Attacks"

    name: str
    about: str
    attacks: tuple[NamedAttack, ...] = ()
    eps_scales: tuple[Positive, ...] = (1.0,)
    keep_images: bool = False
    scaling: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.attacks and not self.eps_scales:
            raise UsageError("AttackSuite.eps_scales is empty, so no radius is attacked. Write for example (1.0,).")

    @property
    def needs_threat(self) -> bool:
        return bool(self.attacks)

    def threats(self, threat: Threat | None) -> list[Threat | None]:
        """The threats to evaluate within, smallest first; None for a suite without attacks."""
        if not self.attacks:
            return [None]
        if threat is None:
            raise threat_needed(self.name)
        radii = sorted({threat.eps * scale for scale in self.eps_scales})
        kept: list[Threat | None] = [threat.with_eps(eps) for eps in radii if eps <= threat.largest_eps]
        if not kept:
            raise UsageError(
                f"suite {self.name!r} has no radius up to 1 at {threat.eps:g}, got eps_scales {self.eps_scales}. "
                "Write a smaller threat."
            )
        return kept

    def with_kept_images(self) -> "AttackSuite":
        """The same suite, which also writes the adversarial examples."""
        return replace(self, keep_images=True)

    def stages(self, threat: Threat | None) -> tuple[NamedAttack, ...]:
        """The single attacks; those of AutoAttack depend on the norm."""
        if threat is None:
            return ()
        stages = tuple(one for attack in self.attacks for one in _stages(attack, threat))
        names = [stage.name for stage in stages]
        if twice := next((name for name in names if names.count(name) > 1 or name in _TABLES), None):
            raise UsageError(
                f"each attack of a suite needs its own name, got {twice!r}. Name each differently, such as "
                f'NamedAttack("{twice}-2", attack).'
            )
        return stages if self.scaling is None else with_scaled(stages, factors_of(self.scaling))

    # ------------------------------------------------------- protocol of suites with radii

    def check_threat(self, model: nn.Module, threat: Threat | None, scaling: Scaling | None) -> list[Threat | None]:
        threats = self.threats(threat)
        for one in threats:
            self.stages(one)
        if scaling is not None and self.attacks:
            require_taps(model)
        return threats

    def evaluate(self, ctx: Context, open_store: OpenStore, scaling: Scaling | None) -> list[SuiteRecord]:
        if scaling is None or not self.attacks:
            return _evaluate_radii(self, ctx, open_store)
        ctx = replace(ctx, engine=in_float32(ctx.engine))
        factors = factors_record(replace(ctx, store=open_store("factors")), scaling)
        rescaled_ctx = replace(ctx, model=rescale_model(ctx.model, factors_of(factors)))
        flags = search_flags(factors, ctx.model)
        rescaled_suite = replace(self, keep_images=False)
        return [
            *_evaluate_radii(replace(self, scaling=factors), ctx, open_store, flags=flags),
            *_evaluate_radii(rescaled_suite, rescaled_ctx, open_store, f"-{PAPER_PROTOCOL}", flags=flags),
        ]

    # ------------------------------------------------------------- protocol of suites

    def check(self, model: nn.Module, data: DataSet, split: str) -> None:
        """Nothing to check without a threat; see `check_threat`."""

    def run(self, ctx: Context) -> None:
        attacks, broken = self.stages(ctx.threat), _broken_within(ctx.smaller)
        robust = [index for index in record_clean_predictions(ctx, attacks) if index not in broken]
        runner = AttackRunner.choose(ctx, attacks)
        ctx.add_flags(skipped_flags(ctx.images))
        if isinstance(ctx.model, RescaledModel):
            ctx.add_flags([RESCALED])
        files = ImageFiles(ctx, everything=self.keep_images)
        for attack in attacks:
            robust = fill_attack_table(runner, attack, robust, randomized=is_randomized(attacks), keep=files.keep)
        ctx.compute_once("search", lambda: {"precision": runner.precision})

    def rows(self, ctx: Context) -> Mapping[str, Sequence[Any]]:
        attacks, broken = self.stages(ctx.threat), _broken_within(ctx.smaller)
        tables = [ctx.table(attack.name).by_index() for attack in attacks]
        rows = []
        for index, clean in ctx.table(CLEAN).by_index().items():
            tried = [table.get(index, {}) for table in tables]
            is_random = any("correct_selected" in row for row in tried) or 0 < clean["correct_scored"] < 1
            correct = clean["prediction"] == int(ctx.images.labels[index])
            judged = _judged_randomized(clean, tried, attacks) if is_random else None
            judged = judged or _judged(clean, tried, attacks, correct=correct, earlier=broken.get(index))
            rows.append(
                {
                    "clean_prediction": clean["prediction"],
                    "clean_correct": clean["correct_scored"],
                    **judged,
                    **{cost: [float(row.get(cost, 0)) for row in tried] for cost in COSTS},
                }
            )
        return {name: [row[name] for row in rows] for name in rows[0]}

    def summarize(self, ctx: Context) -> SuiteRecord:
        rows, attacks = self.rows(ctx), self.stages(ctx.threat)
        records = [_attack_record(attack, number, rows) for number, attack in enumerate(attacks)]
        seconds = sum(ctx.table(CLEAN)["seconds"]) + sum(record.seconds for record in records)
        threat = ctx.threat
        return SuiteRecord(
            ctx.name or self.name,
            self.name,
            len(ctx.images),
            clean=accuracy_of(rows["clean_correct"]),
            threat=None if threat is None else ThreatRecord.of(str(threat), threat.eps, threat.eps_unit),
            robust=None if threat is None else accuracy_of(rows["robust"]),
            attacks=records,
            flags=(*ctx.flags(), *_attack_flags(records, len(ctx.images))),
            seconds=round(seconds, 3),
            search_precision=ctx.compute_once("search", dict)["precision"] if records else None,
            scaling=self.scaling,
        )


# ---------------------------------------------------------------------- stages


def _stages(attack: NamedAttack, threat: Threat) -> tuple[NamedAttack, ...]:
    if not isinstance(attack.attack, AutoAttack):
        return (attack,)
    if attack.target is not None:
        raise UsageError("AutoAttack chooses its targets itself. Leave `target` out.")
    return attack.attack.stages(threat)


# ------------------------------------------------------------------------ rows


def _judged(
    clean: Row, tried: Sequence[Row], attacks: Sequence[NamedAttack], *, correct: bool, earlier: Row | None
) -> Row:
    """The columns of an image's result; `earlier` is its result within a smaller radius, if broken there."""
    broken_by, prediction, distance = ROBUST, clean["prediction"], 0.0
    if not correct:
        broken_by = WRONG_BEFORE
    elif earlier is not None:
        return {**earlier, "robust": 0.0, "worst": -1}
    else:
        for attack, row in zip(attacks, tried, strict=True):
            distance = row.get("distance", distance)
            if row.get("success"):
                broken_by, prediction = attack.name, row["prediction"]
                break
    robust = float(broken_by == ROBUST)
    return {"prediction": prediction, "broken_by": broken_by, "distance": distance, "robust": robust, "worst": -1}


def _judged_randomized(clean: Row, tried: Sequence[Row], attacks: Sequence[NamedAttack]) -> Row:
    """The same for a randomized model: the attempt (-1: clean) on which it is least often correct, scored afresh."""
    attempts: list[tuple[int, Row]] = [(-1, clean), *((number, row) for number, row in enumerate(tried) if row)]
    worst, row = min(attempts, key=lambda attempt: attempt[1]["correct_selected"])
    robust = row["correct_scored"]
    name, distance = (WRONG_BEFORE, 0.0) if worst == -1 else (attacks[worst].name, row["distance"])
    return {
        "prediction": clean["prediction"],
        "broken_by": ROBUST if robust >= 0.5 else name,
        "distance": distance,
        "robust": robust,
        "worst": worst,
    }


def _broken_within(store: ResultStore | None) -> dict[int, Row]:
    """The images with an adversarial example in the results of a smaller radius, and what broke them."""
    if store is None:
        return {}
    _, rows = store.read_verified()
    names = ("prediction", "broken_by", "distance")
    result = {
        index: dict(zip(names, values, strict=True))
        for index, *values in zip(rows["index"], *(rows[name] for name in names), strict=True)
    }
    return {index: row for index, row in result.items() if row["broken_by"] not in (ROBUST, WRONG_BEFORE)}


# --------------------------------------------------------------------- records


def _attack_record(attack: NamedAttack, number: int, rows: Mapping[str, Sequence[Any]]) -> AttackRecord:
    costs = {cost: [of_image[number] for of_image in rows[cost]] for cost in COSTS}
    seconds = round(sum(costs.pop("seconds")), 3)
    # images that it broke within a smaller radius are not attacked again
    broken = zip(rows["broken_by"], costs["forwards"], strict=True)
    return AttackRecord(
        attack.name,
        tried=sum(forwards > 0 for forwards in costs["forwards"]),
        broken=sum(name == attack.name and forwards > 0 for name, forwards in broken),
        seconds=seconds,
        **{cost: round(sum(values)) for cost, values in costs.items()},
    )


def _attack_flags(attacks: Sequence[AttackRecord], n: int) -> list[Flag]:
    """Flags from the costs of all images and the order of the attacks."""
    flags = [
        replace(flag, sentence=f"{attack.name}: {flag.sentence}")
        for attack in attacks
        for flag in zero_gradient_flags(attack.zero_gradients, attack.backwards)
    ]
    plain = [attack for attack in attacks if not attack.name.endswith(SCALED)]
    for attack in plain:
        without_gradients = attack.backwards == 0 and attack.forwards
        had_gradients = any(other.backwards for other in attacks[: attacks.index(attack)])
        if without_gradients and attack.broken > _FLAG_MARGIN * n and had_gradients:
            sentence = (
                f"{attack.name} broke {attack.broken} images that every gradient attack had left: "
                "gradients may be masked"
            )
            flags.append(Flag("square-stronger", sentence, {"images": attack.broken, "of": n}))
    broken = sum(attack.broken for attack in attacks if attack not in plain)
    if broken > _FLAG_MARGIN * n:
        sentence = (
            f"attacks with gradients of the rescaled model broke {broken} images that all others had left: "
            "gradients are masked by attention, or a second random start was enough"
        )
        flags.append(Flag("scaled-stronger", sentence, {"images": broken, "of": n}))
    return flags


# ------------------------------------------------------------------ evaluations


def _evaluate_radii(
    suite: AttackSuite, ctx: Context, open_store: OpenStore, suffix: str = "", *, flags: Sequence[Flag] = ()
) -> list[SuiteRecord]:
    """One evaluation per radius, smallest first; images broken within one are not attacked within the next.

    Args:
        suite: The suite.
        ctx: The model, the images and the threat.
        open_store: Opens the store of an evaluation by its name.
        suffix: Appended to the names, to keep the numbers of the rescaled model apart from the model's own.
        flags: Added to every evaluation.
    """
    records: list[SuiteRecord] = []
    smaller: ResultStore | None = None
    for threat in suite.threats(ctx.threat):
        name = evaluation_name(suite.name, threat) + suffix
        radius_ctx = replace(ctx, threat=threat, store=open_store(name), name=name, smaller=smaller)
        radius_ctx.add_flags(flags)
        records.append(run_suite(replace(suite, name=suite.name + suffix), radius_ctx))
        if radius_ctx.store.folder is not None and threat is not None:
            _finish_images(suite, radius_ctx)
        smaller = radius_ctx.store
    return records


def _finish_images(suite: AttackSuite, ctx: Context) -> None:
    """Complete the adversarial images of an evaluation and its gallery, from those of the smaller radius."""
    rows = ctx.store.read_verified()[1]
    if ctx.ranks.rank == 0:
        if suite.keep_images:
            copy_from(ctx.smaller, ctx.store)
        write_gallery(ctx, rows, broken_before=set(_broken_within(ctx.smaller)))
    ctx.ranks.barrier()
    if suite.keep_images:
        check_complete(ctx.store, _broken_within(ctx.store))


_QUICK = (
    NamedAttack("fgsm", FGSM()),
    NamedAttack("pgd-ce", PGD(steps=20)),
    NamedAttack("pgd-margin", PGD(steps=20), margin),
)

ATTACK_SUITES = {
    suite.name: suite
    for suite in (
        AttackSuite("clean", "accuracy on the images as they are"),
        AttackSuite(
            "quick", "FGSM, then PGD-20 on cross-entropy, then PGD-20 on the margin, at the threat's radius", _QUICK
        ),
        AttackSuite(
            "curve", "the attacks of `quick` at 1/4, 1/2, 1, 2 and 4 times the radius", _QUICK, (0.25, 0.5, 1, 2, 4)
        ),
        AttackSuite(
            "autoattack",
            "AutoAttack, standard: APGD-CE, APGD-T, FAB-T and Square with the published budgets",
            (NamedAttack("autoattack", AutoAttack()),),
        ),
        AttackSuite(
            "autoattack-plus",
            "AutoAttack, plus: APGD-CE, APGD-DLR, FAB, Square, APGD-T and FAB-T, five restarts",
            (NamedAttack("autoattack-plus", AutoAttackPlus()),),
        ),
        AttackSuite(
            "autoattack-rand",
            "AutoAttack, rand, for randomized models: scored by the expected accuracy over fresh EOT samples",
            (NamedAttack("autoattack-rand", AutoAttackRand()),),
        ),
    )
}
