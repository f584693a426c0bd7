"""`vd.analyze`: a study of a model into a run folder, with its figures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from torch import nn

from vitadel import threats
from vitadel.analyze import STUDIES, Study, run_study
from vitadel.api.arguments import progress_of
from vitadel.api.evaluate import DEFAULT_THREAT
from vitadel.api.job import Job, refuse_options
from vitadel.api.models import ModelOptions
from vitadel.api.results import ShortTable, without_arrays
from vitadel.attacks import Engine
from vitadel.attacks.parsing import notation
from vitadel.core.errors import UsageError, short_repr, spelled, unknown_name_error
from vitadel.core.numeric import Count, check_number, check_ranges, check_seed
from vitadel.core.progress import ProgressCallback
from vitadel.core.settings import split_name, with_settings
from vitadel.data import DataSet, Preprocess, refuse_empty
from vitadel.evaluate.context import Context
from vitadel.report import write_figures
from vitadel.runs import ResultFolder
from vitadel.runs.schema import FORMER_STUDY_NAMES, StudyRecord
from vitadel.threats import Threat


@dataclass(frozen=True, slots=True)
class Analysis:
    """What `vd.analyze` returns: the run folder, the study's record, and the figures that were drawn.

    Args:
        run: The run folder, with `study/result.json` and `figures/`.
        model: What records call the model.
        record: The main finding, the exhibits and the numbers, as in `study/result.json`.
        figures: The files of the figures.
        assumption: What had to be assumed of the model's normalization; empty if nothing.
    """

    run: Path
    model: str
    record: StudyRecord
    figures: tuple[Path, ...]
    assumption: str = ""

    def to_dict(self) -> dict[str, object]:
        """Everything but pictures as plain JSON values."""
        content = without_arrays(self.record.to_json())
        return {"run": str(self.run), **content, "figures": [str(path) for path in self.figures]}

    def tables(self) -> list[ShortTable]:
        """The main finding, then the tables."""
        finding = ShortTable(f"{self.record.title}: {self.model}\n{self.record.summary}", [], [])
        return [finding, *(ShortTable(table.title, table.columns, table.text_rows) for table in self.record.tables)]

    def __repr__(self) -> str:
        return "\n".join(map(str, self.tables()))


def analyze(
    model: str | Path | nn.Module,
    data: str | DataSet,
    study: str | Study,
    *,
    run: str | Path,
    threat: str | Threat | None = None,
    split: str = "test",
    seed: int = 0,
    batch_size: int | None = None,
    preprocess: str | Preprocess | None = None,
    skip_unreadable: bool = False,
    progress: bool | ProgressCallback | None = None,
    command: str | None = None,
    **options: Unpack[ModelOptions],
) -> Analysis:
    """Study a model into a run folder, and draw the figures; interrupted at any time, the same call resumes.

    Args:
        model: Anything that `load_model` takes, or a model.
        data: Anything that `load_data` takes, at the model's size, or a data set.
        study: A name from `vitadel studies`, also with settings (`lesion:draws=3`), or a study.
        run: The run folder; one of another run is refused.
        threat: The threat model of a study that attacks; linf:8/255 by default.
        split: Which images: `test`, `holdout` or `train`.
        seed: Seeds all random numbers.
        batch_size: Images at a time; halved if they do not fit into memory. No result depends on it.
        preprocess: How images are prepared; by default as in the run that trained the model.
        skip_unreadable: Leave out images that cannot be read, and count them.
        progress: None shows bars on a terminal, False shows nothing; or a callback.
        command: What the manifest records as the command.
        **options: How a model given as text is loaded: `num_classes`, `image_size`, `patch_size`, `mean`, `std`,
            `device`.

    Returns:
        The results, as short tables when printed.

    Raises:
        UsageError: If the model cannot be studied so, or the folder belongs to another run.

    Example:
        >>> analyze("runs/vit", "cifar10:DIR[:200]", "lesion", run="runs/lesion")
    """
    refuse_options(analyze, options)
    check_seed(seed)
    check_number("batch_size", Count | None, batch_size)
    chosen, within = as_study(study), threats.as_threat(threat or DEFAULT_THREAT)
    if threat is not None and not chosen.needs_threat:
        name = study.partition(":")[0] if isinstance(study, str) else type(study).__name__
        raise UsageError(f"the study {name} attacks nothing, got {spelled('threat', threat)}. Leave it out.")
    job = Job.prepare(model, data, split=split, preprocess=preprocess, skip_unreadable=skip_unreadable, **options)
    _check(chosen, job, within)
    parts = {"study": chosen, **({"threat": within} if chosen.needs_threat else {}), "seed": seed}
    claimed = job.claim(run, "analyze", parts, command)
    with progress_of(progress) as notify:
        if job.assumption:
            notify(job.assumption, 0, 0, {})
        ctx = Context(
            job.model,
            job.images,
            job.data,
            within,
            seed,
            engine=Engine(batch_size=batch_size, precision="float32"),
            ranks=job.ranks,
            store=ResultFolder(claimed.folder / "study"),
            progress=notify,
        )
        record = run_study(chosen, ctx)
        figures = job.ranks.broadcast_from_first(lambda: tuple(write_figures(Path(run))))
    return Analysis(Path(run), job.name, record, figures, job.assumption)


def as_study(study: str | Study) -> Study:
    """A study, or the one that `masking:queries=1000,iterations=10+20` names."""
    if isinstance(study, type) or not isinstance(study, str | Study):
        instead = f"{study.__name__}()" if isinstance(study, type) else '"lesion" or vd.analyze.Lesion()'
        raise UsageError(
            f"a study is a name from `vitadel studies`, or an object such as Lesion(), got {short_repr(study)}. "
            f"Write {instead}."
        )
    if not isinstance(study, str):
        check_ranges(study)
        return study
    given, settings = split_name(study)
    name = FORMER_STUDY_NAMES.get(given, given)
    if name not in STUDIES:
        raise unknown_name_error("study", name, STUDIES)
    return with_settings(STUDIES[name](), settings, notation(name))


def _check(study: Study, job: Job, threat: Threat) -> None:
    """Refuse what the study cannot do with this model and these images, before anything is written."""
    study.refuse(job.model)
    if study.needs_threat:
        threats.check_size(threat, (3, *job.images.pixels.image_size))
    refuse_empty(job.images, f"the {job.split} split of {job.data.spec}", "study")
