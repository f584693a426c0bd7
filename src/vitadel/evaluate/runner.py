"""A suite on a split: one row per image in the run folder, resumed where a kill left it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitadel.attacks import Engine, Flag, IterativeAttack, RescaledModel, Scaling, isolated, rescaled, searcher, tapped
from vitadel.core.device import device_of
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.core.files import write_whole
from vitadel.core.numeric import Count, check_number, check_seed
from vitadel.core.progress import Notify, silent
from vitadel.data import DataSet, Split
from vitadel.evaluate.adversarial_images import Found
from vitadel.evaluate.attack_suites import Entry, Suite
from vitadel.evaluate.attention_scaling import (
    ANOTHER_NETWORK,
    PAPER_PROTOCOL,
    factors_of,
    find_once,
    in_float32,
    with_scaled,
)
from vitadel.evaluate.cascade import Cascade, halving, logits
from vitadel.evaluate.classes import refuse_other_classes, refuse_unwritable_names
from vitadel.evaluate.sanity_checks import sanity_flags
from vitadel.evaluate.skipped import skipped_flags
from vitadel.evaluate.summary import summarize
from vitadel.evaluate.verdicts import STANDING, WRONG, Fall, verdicts
from vitadel.goals import Untargeted
from vitadel.models import read_tensors, write_tensors
from vitadel.runs import Rows, Run
from vitadel.threats import Threat, check_size, spell

# images shown in the report, taken from the head of the pinned order: chosen before anything is known of them
_GALLERY = 8
# columns of the rows that are shown with them
_SHOWN = ("label", "clean_prediction", "prediction", "fell_to")
# images that are asked about a model's habits
_ASKED = 64


def evaluate(
    model: nn.Module,
    data: DataSet,
    suite: Suite,
    run: Run,
    *,
    threat: Threat | None = None,
    seed: int = 0,
    batch: int | None = None,
    split: str = "test",
    engine: Engine | None = None,
    ranks: Ranks | None = None,
    keep_images: bool = False,
    scaling: Scaling | None = None,
    notify: Notify = silent,
) -> list[dict[str, object]]:
    """Carry out `suite` and return the summaries that are also written to the run folder, one per radius.

    Robust accuracy counts an image only if it is classified rightly and no attack of the cascade changed that: an
    upper bound on the true one. Killed and called again, nothing that was found is searched for again. `ranks` share
    the images of one run folder. `keep_images` keeps the images that fell in its folder `found`, for `read_found`.
    With `scaling`, images that stand are attacked once more by attacks that learn from the rescaled model; beside it,
    as an evaluation of its own, the rescaled model takes the model's place, which is how the paper scores.
    """
    check_seed(seed)
    check_number("the batch", Count | None, batch)
    refuse_suite(model, data, suite, threat=threat, split=split, scaling=scaling)
    images = data.split(split)
    radii, ranks, engine = suite.radii(threat), ranks or Ranks(), engine or Engine(batch_size=batch)
    course = _Course(model, images, data.classes, suite, run, seed, engine, ranks, notify, keep_images)
    # a caller's mixed precision would reach the verdicts
    with torch.autocast(device_of(model).type, enabled=False):
        if scaling is None or threat is None or not suite.entries:
            return course.over(radii)
        course = replace(course, engine=in_float32(engine))
        words = find_once(model, images, threat, scaling, seed, run.folder / "factors.json", ranks)
        other = rescaled(model, factors_of(words))
        paper = replace(course, model=other, suffix=f"-{PAPER_PROTOCOL}", keep_images=False)
        return [*replace(course, scaling=words).over(radii), *paper.over(radii)]


def refuse_suite(
    model: nn.Module,
    data: DataSet,
    suite: Suite,
    *,
    threat: Threat | None,
    split: str = "test",
    scaling: Scaling | None = None,
) -> None:
    """Raise what `evaluate` would refuse: for callers that take a run folder first."""
    images = data.split(split)
    if len(images) == 0:
        raise UsageError(f"the {split} split of {data.spec} is empty, so there is nothing to evaluate.")
    refuse_other_classes(model, data)
    refuse_unwritable_names(data, split)
    for radius in suite.radii(threat):
        if radius is not None:
            suite.cascade(radius)
            check_size(radius, (3, *images.pixels.image_size))
    if scaling is not None and suite.entries:
        tapped(model)


@dataclass(frozen=True, slots=True)
class _Course:
    """One suite on one model, radius after radius; `scaling` is what is known of the factors of scaled attacks."""

    model: nn.Module
    images: Split
    classes: Sequence[str]
    suite: Suite
    run: Run
    seed: int
    engine: Engine
    ranks: Ranks
    notify: Notify
    keep_images: bool
    suffix: str = ""
    scaling: Mapping[str, object] | None = None

    def over(self, radii: Sequence[Threat | None]) -> list[dict[str, object]]:
        """The summaries, smallest radius first; what fell to a smaller one is not attacked again."""
        summaries: list[dict[str, object]] = []
        fallen: dict[int, Fall] = {}
        folder: Path | None = None
        for radius in radii:
            job = self._job(radius, fallen, folder)
            if not job.rows.done:
                job.carry_out()
            self.ranks.wait()
            summary, columns = job.rows.checked()
            fallen, folder = _fallen(columns), job.rows.folder
            if job.found is not None:
                job.found.refuse_gaps(fallen)
            if self.ranks.rank == 0 and not job.gallery.exists():
                job.write_gallery(columns)
            summaries.append(summary)
        return summaries

    def _job(self, radius: Threat | None, fallen: dict[int, Fall], smaller: Path | None) -> "_Job":
        name = self.suite.name if radius is None else f"{self.suite.name}-{_in_a_file_name(radius)}"
        rows = self.run.rows(name + self.suffix)
        cascade = Cascade(self.model, self.images, self._entries(radius), radius, rows, self.seed, self.engine)
        cascade.fallen, cascade.ranks = frozenset(fallen), self.ranks
        cascade.notify, cascade.name = self.notify, name + self.suffix
        found = Found(rows.folder / "found", self.model, self.images) if self.keep_images else None
        suite = self.suite.name + self.suffix  # a name of its own, or its numbers would join the model's curve
        return _Job(cascade, self.images, rows, suite, fallen, smaller, self.classes, found, self.scaling)

    def _entries(self, radius: Threat | None) -> tuple[Entry, ...]:
        plain = () if radius is None else self.suite.cascade(radius)
        return plain if self.scaling is None else with_scaled(plain, factors_of(self.scaling))


@dataclass(frozen=True, slots=True)
class _Job:
    """One evaluation: a cascade at one radius, written down. `smaller` is the folder of the radius before."""

    cascade: Cascade
    images: Split
    rows: Rows
    suite: str
    fallen: dict[int, Fall]
    smaller: Path | None
    classes: Sequence[str]
    found: Found | None
    scaling: Mapping[str, object] | None = None

    def carry_out(self) -> None:
        cascade = self.cascade
        cascade.keep = self._keep
        if self.found is not None:
            cascade.settle = self.found.flush
        standing = cascade.classify()
        first = self.images.images(torch.arange(min(_ASKED, len(self.images)))).to(device_of(cascade.model))
        ready(cascade, first)
        cascade.doubt(skipped_flags(self.images))
        if isinstance(cascade.model, RescaledModel):
            cascade.doubt([ANOTHER_NETWORK])
        cascade.attack(standing)
        cascade.ranks.wait()
        if cascade.ranks.rank == 0:
            if self.found is not None and self.smaller is not None:
                self.found.take_over(self.smaller / "found")
            columns = verdicts(self.rows, self.images, self.images.ids, cascade.entries, self.fallen)
            self.write_gallery(columns)
            self.rows.add(columns)
            find_flags, precision, seconds = cascade.find_flags(), cascade.precision, cascade.clean_seconds
            threat, entries = cascade.threat, cascade.entries
            summary = summarize(cascade.name, self.suite, entries, threat, columns, find_flags, precision, seconds)
            self.rows.close(replace(summary, scaling=self.scaling).to_json())

    def _keep(self, row: int, x: Tensor, fell: bool) -> None:
        """What the report will show is kept as soon as it is found."""
        if self.found is not None and fell:
            self.found.add(row, x)
        if row < _GALLERY:
            path = self._shown(self.rows.folder, row)
            write_whole(path, lambda beside: write_tensors(beside, {"x": x.float()}, {}))

    @staticmethod
    def _shown(folder: Path, row: int) -> Path:
        return folder / "shown" / f"{row}.safetensors"

    @property
    def gallery(self) -> Path:
        return self.rows.folder / "gallery.npz"

    def write_gallery(self, columns: dict[str, list[object]]) -> None:
        """The first images before and after, for the report to show; one whose attacked pixels are lost is left out."""
        threat = self.cascade.threat
        if threat is None:
            return
        clean = self.images.images(torch.arange(min(_GALLERY, len(self.images))))
        after = clean.clone()
        kept: list[int] = []
        for row in range(len(clean)):
            places = [self._shown(self.rows.folder, row)]
            places += [self._shown(self.smaller, row)] if self.smaller and row in self.fallen else []
            known = next((place for place in places if place.exists()), None)
            if known is not None:
                after[row] = _read_shown(known, clean[row])
                if known != places[0]:
                    self._keep(row, after[row], fell=False)  # for the next radius
            if known is not None or columns["fell_to"][row] == WRONG:  # which no attack has touched
                kept.append(row)
        if not kept:
            return

        def write(beside: Path) -> None:
            shown = {name: np.array([columns[name][row] for row in kept]) for name in _SHOWN}
            with beside.open("wb") as handle:
                np.savez_compressed(
                    handle,
                    clean=_pictures(clean[kept]).mul(255).round().byte().numpy(),
                    adversarial=_pictures(after[kept]).numpy(),
                    classes=np.array(self.classes),
                    eps=threat.eps,
                    norm=spell(threat).partition(":")[0],
                    **shown,  # type: ignore[arg-type]
                )

        write_whole(self.gallery, write)


def _read_shown(path: Path, like: Tensor) -> Tensor:
    try:
        x = read_tensors(path)[0].get("x")
    except UsageError as error:
        raise UsageError(f"{error} Delete it: the gallery then leaves that image out.") from error
    if x is None or x.shape != like.shape:
        raise UsageError(f"{path} holds no image of these data. Delete it: the gallery then leaves that image out.")
    return x


def ready(cascade: Cascade, x: Tensor) -> None:
    """Find out what speaks against the numbers to come, and how the search will compute the model.

    Of the images `x`, as many are asked about as are attacked at once.
    """
    x = x[: cascade.batch]
    # the first images, as many as fit
    _, noticed = next(halving(list(range(len(x))), len(x), lambda rows: _choose_search(cascade, x[rows])))
    cascade.doubt(noticed)
    classes, nobody = logits(cascade.model, x[:1]).shape[1], torch.zeros(1, dtype=torch.int64)
    for entry in cascade.entries:
        if isinstance(entry.attack, IterativeAttack):
            flags = entry.attack.find_flags(Untargeted(nobody, entry.loss), classes)
            cascade.doubt(replace(flag, sentence=f"{entry.name}: {flag.sentence}") for flag in flags)


def _choose_search(cascade: Cascade, x: Tensor) -> tuple[Flag, ...]:
    """How the search will compute the model, and what was noticed on the way."""
    engine = cascade.engine.on(device_of(cascade.model))
    noticed = sanity_flags(cascade.model, x)
    if not cascade.entries:
        return noticed
    if any(flag.code == "randomized" for flag in noticed):
        # a recorded or compiled model may repeat the draw it was recorded with
        cascade.engine = replace(cascade.engine, cuda_graph=False, precision="float32", compile=False)
    elif engine.precision != "float32" or engine.compile:
        with isolated(cascade.model, cascade.seed, x.device):
            found, precision, failed = searcher(cascade.model, x, str(engine.precision), compile=engine.compile)
        cascade.engine = replace(cascade.engine, precision=precision)
        cascade.search = None if found is cascade.model else found
        return (*noticed, *failed)
    return noticed


def _fallen(table: Mapping[str, Sequence[object]]) -> dict[int, Fall]:
    columns = (table[name] for name in ("row", "fell_to", "prediction", "size"))
    return {
        int(str(row)): (str(to), int(str(prediction)), float(str(size)))
        for row, to, prediction, size in zip(*columns, strict=True)
        if to not in (STANDING, WRONG)
    }


def _in_a_file_name(threat: Threat) -> str:
    return spell(threat).replace(":", "-").replace("/", "_")


def _pictures(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()
