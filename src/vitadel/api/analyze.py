"""`vd.analyze`: a study of a model into a run folder, with its figures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from torch import nn

from vitadel import threats
from vitadel.analyze import STUDIES, Study, run_study
from vitadel.api.arguments import check_types, progress_of
from vitadel.api.evaluate import DEFAULT_THREAT
from vitadel.api.inputs import Inputs, check_model_options
from vitadel.api.models import ModelOptions
from vitadel.api.results import ShortTable, without_arrays
from vitadel.attacks import Engine
from vitadel.attacks.parsing import notation
from vitadel.core.errors import UsageError, short_repr, spelled, unknown_name_error
from vitadel.core.numeric import Count, check_number, check_ranges, check_seed
from vitadel.core.progress import ProgressCallback
from vitadel.core.settings import split_name, with_settings
from vitadel.data import DataSet, Preprocess, check_not_empty
from vitadel.evaluate.context import Context
from vitadel.report import write_figures
from vitadel.runs import ResultFolder
from vitadel.runs.schema import FORMER_STUDY_NAMES, StudyRecord
from vitadel.threats import Threat


@dataclass(frozen=True, slots=True)
class Analysis:
    """What `vd.analyze` returns: the run folder, the record of the study, and the figures.

    Args:
        run: The run folder, with `study/result.json` and `figures/`.
        model: The name of the model in records.
        record: The main finding, the exhibits and the numbers, as in `study/result.json`.
        figures: The files of the figures.
        assumption: What was assumed about the normalization of the model; empty if nothing.
    """

    run: Path
    model: str
    record: StudyRecord
    figures: tuple[Path, ...]
    assumption: str = ""

    def to_dict(self) -> dict[str, object]:
        """Everything except pictures, as plain JSON values."""
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
    data: str | Path | DataSet,
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
    """Run a study of a model and write its results and figures into a run folder. Repeat the call to resume.

    Args:
        model: Anything that `load_model` takes, or a model.
        data: Anything that `load_data` takes, at the model's size, or a data set.
        study: A name from `vitadel studies`, also with settings (`lesion:draws=3`), or a study.
        run: The run folder; a folder of a different run is refused.
        threat: The threat model of a study that attacks; linf:8/255 by default.
        split: The split to use: `test`, `holdout` or `train`.
        seed: Seeds all random numbers.
        batch_size: Batch size; halved automatically if memory runs out. Does not affect results.
        preprocess: The preprocessing; by default that of the run that trained the model.
        skip_unreadable: Leave out unreadable images, and report how many.
        progress: None shows bars on a terminal, False shows nothing; or a callback.
        command: The command line, for the manifest.
        **options: Options of `load_model` for a model given as text: `num_classes`, `image_size`, `patch_size`, `mean`,
            `std`, `device`.

    Returns:
        The results; short tables when printed.

    Raises:
        UsageError: If the study does not apply to the model, or the folder belongs to a different run.

    Example:
        >>> analyze("runs/vit", "cifar10:DIR[:200]", "lesion", run="runs/lesion")
    """
    _refuse_study_first(model, data, study)
    check_model_options(analyze, options)
    check_seed(seed)
    check_number("batch_size", Count | None, batch_size)
    chosen, threat_or_default = as_study(study), threats.as_threat(threat or DEFAULT_THREAT)
    check_types(analyze, locals())
    if threat is not None and not chosen.needs_threat:
        name = study.partition(":")[0] if isinstance(study, str) else type(study).__name__
        raise UsageError(f"the study {name} attacks nothing, got {spelled('threat', threat)}. Leave it out.")
    inputs = Inputs.prepare(model, data, split=split, preprocess=preprocess, skip_unreadable=skip_unreadable, **options)
    _check(chosen, inputs, threat_or_default)
    parts = {"study": chosen, **({"threat": threat_or_default} if chosen.needs_threat else {}), "seed": seed}
    claimed = inputs.claim_run(run, "analyze", parts, command)
    with progress_of(progress) as notify:
        if inputs.assumption:
            notify(inputs.assumption, 0, 0, {})
        ctx = Context(
            inputs.model,
            inputs.images,
            inputs.data,
            threat_or_default,
            seed,
            engine=Engine(batch_size=batch_size, precision="float32"),
            ranks=inputs.ranks,
            store=ResultFolder(claimed.folder / "study", len(inputs.images)),
            progress=notify,
        )
        record = run_study(chosen, ctx)
        figures = inputs.ranks.broadcast_from_first(lambda: tuple(write_figures(Path(run))))
    return Analysis(Path(run), inputs.name, record, figures, inputs.assumption)


def as_study(study: str | Study) -> Study:
    """A study from an object or a text such as `masking:queries=1000,iterations=10+20`."""
    if isinstance(study, type) or not isinstance(study, str | Study):
        instead = f"{study.__name__}()" if isinstance(study, type) else '"lesion" or vd.analyze.Lesion()'
        raise UsageError(
            f"a study is a name from `vitadel studies`, or an object such as Lesion(), got {short_repr(study)}. "
            f"Write {instead}."
        )
    if not isinstance(study, str):
        check_ranges(study)
        return study
    if not (name := _study_name(study)):
        raise unknown_name_error("study", study.partition(":")[0], STUDIES)
    return with_settings(STUDIES[name](), split_name(study)[1], notation(name))


def _study_name(text: object) -> str:
    """The name of the study in `NAME:key=value,...`, also for a former name; empty if there is none."""
    given = text.partition(":")[0] if isinstance(text, str) else ""
    name = FORMER_STUDY_NAMES.get(given, given)
    return name if name in STUDIES else ""


def _refuse_study_first(model: object, data: object, study: object) -> None:
    """Refuse `analyze("lesion", model, data)`, the order of the command line."""
    if not _study_name(model) or isinstance(study, Study) or _study_name(study):
        return
    written = f'"{data}"' if isinstance(data, str | Path) else "model"
    images = f'"{study}"' if isinstance(study, str | Path) else "data"
    raise UsageError(
        f"analyze takes the model, the data and then the study, got the study {model!r} first. "
        f'Write vd.analyze({written}, {images}, "{model}", run="DIR").'
    )


def _check(study: Study, inputs: Inputs, threat: Threat) -> None:
    """Refuse a study that does not apply to the model or the images, before anything is written."""
    study.check(inputs.model)
    if study.needs_threat:
        threats.check_size(threat, (3, *inputs.images.pixels.image_size))
    check_not_empty(inputs.images, f"the {inputs.split} split of {inputs.data.spec}", "study")
