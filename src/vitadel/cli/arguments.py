"""The arguments that several commands share, and the objects their text stands for."""

import dataclasses
import typing
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitadel.cli import show
from vitadel.cli.settings import read_value
from vitadel.core.errors import UsageError, quoted, unknown
from vitadel.core.numeric import read_number

if TYPE_CHECKING:
    from vitadel.attacks import Engine, Scaling
    from vitadel.data import DataSet
    from vitadel.evaluate import Entry
    from vitadel.models import Model, Normalization

ModelArgument = Annotated[
    str, typer.Argument(help="a run folder, a checkpoint, zoo:NAME, timm:NAME or timm:NAME@WEIGHTS", metavar="MODEL")
]
DataOption = Annotated[str, typer.Option("--data", help="digits, cifar10:DIR, folder:DIR, ...; [:n] takes the first n")]
RunOption = Annotated[Path, typer.Option("--run", help="folder of the run; resumed if it is the same run")]
ThreatOption = Annotated[str, typer.Option("--threat", help="where an image may go: linf:8/255, l2:0.5, l1:12")]
PreprocessOption = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        help="crop:SIZE[:RESIZE][:bicubic] or squash:SIZE; default: the training run's, else crop for imagenet: data "
        "and squash for all other",
    ),
]
ClassesOption = Annotated[
    int | None,
    typer.Option("--classes", help="number of classes of timm:NAME; no trained head is replaced by a fresh one"),
]
ImageSizeOption = Annotated[
    int | None,
    typer.Option("--image-size", help="side of the images the model takes; weights of another size are resampled"),
]
PatchSizeOption = Annotated[
    int | None,
    typer.Option("--patch-size", help="side of the model's patches; weights of another size are resampled"),
]
MeanOption = Annotated[
    str | None,
    typer.Option("--mean", help="what the model subtracts from pixels in [0, 1]: one number per channel, with commas"),
]
StdOption = Annotated[str | None, typer.Option("--std", help="what the model then divides by; with --mean")]
SplitOption = Annotated[str, typer.Option("--split", help="which images: test, holdout or train")]
SeedOption = Annotated[int, typer.Option("--seed", help="seed of everything drawn", min=-(2**63), max=2**63 - 1)]
BatchOption = Annotated[
    int | None,
    typer.Option("--batch", help="rows at a time, halved if they do not fit; no result depends on it", min=1),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option("--precision", help="of the search: float32, bf16 or fp16; verdicts are always judged in float32"),
]
KeepOption = Annotated[bool, typer.Option("--keep-images", help="keep the images that fell, as small deltas")]
CompileOption = Annotated[bool, typer.Option("--compile", help="send the model through torch.compile first")]
ScalingOption = Annotated[
    str | None,
    typer.Option(
        "--scaling",
        help="attack what stands once more, learning from a model with scaled attention: aas, aas-paper, aas-literal, "
        "manual, each with [:key=value,...], or a factor such as 0.01",
    ),
]
SkipOption = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable", help="leave out images that are damaged, missing or out of place, and count them"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print the result as JSON and nothing else")]


@dataclasses.dataclass(frozen=True, slots=True)
class ModelOptions:
    """What the command line says of a model beside its name; None where it says nothing."""

    classes: int | None = None
    image_size: int | None = None
    patch_size: int | None = None
    mean: str | None = None
    std: str | None = None

    @property
    def normalization(self) -> "Normalization | None":
        """The values of --mean and --std."""
        from vitadel.models import Normalization

        if self.mean is None and self.std is None:
            return None
        if self.mean is None or self.std is None:
            raise UsageError("--mean and --std go together. Write both, such as --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5.")
        return Normalization(_numbers("--mean", self.mean), _numbers("--std", self.std))

    def assumed(self, model: "Model", name: str) -> "dict[str, Normalization]":
        """What nobody said of a model called `name` and no file holds: its normalization, the architecture's."""
        from vitadel.models import is_foreign

        return {"normalization": model.normalization} if is_foreign(name) and self.mean is None else {}


def open_model_and_data(
    model: str, spec: str, preprocess: str | None, options: ModelOptions, *, skip: bool = False
) -> "tuple[Model, DataSet, str]":
    """The model on the best device there is, the data at its size, and the name to call the model by."""
    from vitadel import data, models
    from vitadel.core.distributed import best_device
    from vitadel.evaluate import refuse_other_classes
    from vitadel.runs import Run

    loaded = models.load(
        model,
        num_classes=options.classes,
        image_size=options.image_size,
        patch_size=options.patch_size,
        normalization=options.normalization,
        keep_head=True,
    )
    assert loaded.spec is not None
    name, chosen = model, preprocess
    if (folder := models.run_of(model)) is not None:
        recipe = _part(_part(Run.open(folder).manifest, "parts"), "recipe")
        name = str(recipe.get("name", model)) if Path(model).is_dir() else model  # a head, a file: told apart by theirs
        chosen = preprocess or str(recipe.get("preprocess") or "") or None
    if chosen is None:
        way = "crop" if spec.startswith(("imagenet:", "imagenet-a:", "imagenet-r:")) else "squash"
        chosen = f"{way}:{loaded.spec.image_size}"
    dataset = data.load(spec, preprocess=data.parse_preprocess(chosen), skip=skip, answers=loaded.spec.output_classes)
    refuse_other_classes(loaded, dataset)
    return loaded.to(best_device()), dataset, name


def say_what_is_assumed(model: "Model", name: str, options: ModelOptions) -> None:
    """One line for weights from a file that does not say how images were normalized before they reached them."""
    if not options.assumed(model, name):
        return
    mean, std = (", ".join(f"{value:g}" for value in values) for values in dataclasses.astuple(model.normalization))
    spec = model.spec
    assert spec is not None
    patches = f" in patches of {spec.patch_size}" if spec.patch_size else ""
    show.line(
        f"assumed: the weights in {name} take images of {spec.image_size} x {spec.image_size}{patches}, with mean "
        f"{mean} and std {std} in [0, 1], as is usual for this architecture; the file does not say. "
        "Otherwise write --image-size, --patch-size, --mean, --std."
    )


def read_attack(text: str) -> "Entry":
    """The attack that `pgd:steps=40,loss=margin` stands for; numbers may be fractions such as 2/255."""
    from vitadel.attacks import ATTACKS, SCHEDULES, AutoAttack
    from vitadel.evaluate import Entry
    from vitadel.goals import TARGETS
    from vitadel.losses import LOSSES, kl_divergence

    name, _, rest = text.partition(":")
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    kind = ATTACKS[name]
    kinds = typing.get_type_hints(kind)
    fields = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    tables: dict[str, dict[str, Callable[..., object]]] = {
        "loss": {**LOSSES, "kl": kl_divergence},
        "target": dict(TARGETS),
        "schedule": dict(SCHEDULES),
    }
    values: dict[str, object] = {}
    for setting in filter(None, rest.split(",")):
        key, equals, value = setting.partition("=")
        known = (*fields, "loss", "target") if not issubclass(kind, AutoAttack) else tuple(fields)
        if not equals or key not in known:
            raise unknown(f"setting of {name}", key, known)
        if key in tables:
            if value not in tables[key]:
                raise unknown(key, value, tables[key])
            values[key] = tables[key][value]
        else:
            values[key] = read_value(kinds[key], value, f"{name}:{key}")
    chosen = {"loss": kind.default_loss} | {key: values.pop(key) for key in ("loss", "target") if key in values}
    return Entry(text, kind(**values), **chosen)  # type: ignore[arg-type]


def read_scaling(text: str | None) -> "Scaling | None":
    """What `aas:loss=margin,blocks=4` or `0.01` stands for."""
    from vitadel.attacks import SCALINGS, Scaling

    if text is None:
        return None
    name, _, rest = text.partition(":")
    if name not in SCALINGS:
        if not name[:1].isdigit():
            raise unknown("scaling", name, SCALINGS)
        return Scaling.manual(read_number(text, "--scaling"))
    chosen = SCALINGS[name]()
    kinds = {name: kind for name, kind in typing.get_type_hints(Scaling).items() if name not in ("probe", "grid")}
    values: dict[str, object] = {}
    for setting in filter(None, rest.split(",")):
        key, equals, value = setting.partition("=")
        if not equals or key not in kinds:
            raise unknown(f"setting of {name}", key, kinds)
        values[key] = read_value(kinds[key], value, f"{name}:{key}")
    return dataclasses.replace(chosen, **values)  # type: ignore[arg-type]


def read_engine(batch: int | None, precision: str | None, compile: bool) -> "Engine":
    """How to search; what is not said is left to the device."""
    from vitadel.attacks import Engine

    return Engine(rows=batch, precision=precision, compile=compile)


def _numbers(what: str, text: str) -> tuple[float, ...]:
    numbers = tuple(read_number(part, what) for part in text.split(","))
    if len(numbers) != 3:
        raise UsageError(f"{what} wants three numbers, one per channel, got {quoted(text)}.")
    return numbers


def _part(tree: object, name: str) -> dict[str, object]:
    part = tree.get(name) if isinstance(tree, dict) else None
    return part if isinstance(part, dict) else {}
