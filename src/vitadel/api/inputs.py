"""The model and data of `vd.evaluate` and `vd.analyze`, checked together, and the run folder for them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from torch import nn

from vitadel import data as datasets
from vitadel import models
from vitadel.api.arguments import check_arguments, check_norm_and_eps, check_types, device_of_text
from vitadel.api.data import as_preprocess, default_preprocess
from vitadel.api.models import ModelOptions, load_model
from vitadel.core.device import device_name
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError, spelled
from vitadel.data import DataSet, Preprocess, Split
from vitadel.evaluate import check_class_count
from vitadel.models import Model
from vitadel.runs import ManifestRecord, Run

_ELSEWHERE = {
    "attack": "the attack in place of a suite, as text or as an object",
    "version": '"autoattack", "autoattack-plus" or "autoattack-rand" as the suite',
    "bs": "batch_size={value}",
    "n_examples": 'the data with "[:{value}]" at its end',
    "options": "load_model(MODEL, options=...) and give the model",
    "pretrained": "load_model(MODEL, pretrained={value}) and give the model",
}


def check_model_options(function: Callable[..., object], options: Mapping[str, object]) -> None:
    """Refuse `**options` that are not options of a model, such as `norm=` and `eps=`, or that have a wrong type.

    Raises:
        UsageError: If there are any; ignoring them would mean, for example, evaluating another threat.
    """
    other = {name: value for name, value in options.items() if name not in ModelOptions.__annotations__}
    check_norm_and_eps(function.__name__, None, other)
    check_arguments(function, other, _ELSEWHERE, options=ModelOptions.__annotations__)
    check_types(load_model, options)


@dataclass(frozen=True, slots=True)
class Inputs:
    """A model on its device, images at its input size, and the name of the model in records.

    Args:
        model: The model.
        name: The model in records and reports: the name of its recipe if it is a run folder, else the text given.
        data: The data set.
        split: Which of its splits is used.
        skip_unreadable: Whether unreadable images were left out.
        ranks: The processes that share the images.
    """

    model: Model
    name: str
    data: DataSet
    split: str
    skip_unreadable: bool
    ranks: Ranks

    @classmethod
    def prepare(
        cls,
        model: str | Path | nn.Module,
        data: str | Path | DataSet,
        *,
        split: str = "test",
        preprocess: str | Preprocess | None = None,
        skip_unreadable: bool = False,
        **options: Unpack[ModelOptions],
    ) -> "Inputs":
        """Load model and data if they are given as text, and check that they match.

        Raises:
            UsageError: If one of them cannot be loaded, or their classes differ.
        """
        ranks = Ranks.of_launch()
        loaded = _model(model, options)
        name, trained_with = _name_and_preprocess(loaded)
        if isinstance(data, DataSet):
            if preprocess is not None:
                raise UsageError(
                    f"a loaded data set is already preprocessed, got preprocess={preprocess!r}. Leave it out."
                )
            dataset = data
        else:
            data = str(data)
            size = None if loaded.spec is None else loaded.spec.image_size
            chosen = preprocess or trained_with or default_preprocess(data, size)
            model_classes = None if loaded.spec is None else loaded.spec.output_classes
            dataset = datasets.load(
                data, preprocess=as_preprocess(chosen), skip=skip_unreadable, model_classes=model_classes
            )
        check_class_count(loaded, dataset)
        _check_holdout(loaded, dataset, split)
        if skip_unreadable:
            dataset = _readable(dataset, split, ranks)
        return cls(loaded, name, dataset, split, skip_unreadable, ranks)

    @property
    def images(self) -> Split:
        return self.data.split(self.split)

    @property
    def assumption(self) -> str:
        """The normalization assumed for weights whose file does not state it; empty if nothing is assumed."""
        spec = self.model.spec
        if not self.model.normalization_is_assumed or spec is None:
            return ""
        mean, std = (
            ", ".join(f"{one:g}" for one in part) for part in (spec.normalization.mean, spec.normalization.std)
        )
        patches = f" in patches of {spec.patch_size}" if spec.patch_size else ""
        return (
            f"assumed: the weights in {self.model.source} take images of {spec.image_size} x {spec.image_size}{patches}"
            f", with mean {mean} and std {std} in [0, 1], as is usual for this architecture; the file does not say. "
            "Otherwise write --image-size, --patch-size, --mean, --std (image_size=..., ... in Python)."
        )

    def claim_run(self, run: str | Path, kind: str, parts: Mapping[str, object], command: str | None) -> Run:
        """Claim a run folder for this model, these images and `parts`, for all processes of a launch.

        Raises:
            UsageError: If the folder belongs to another run.
        """
        assumed = {"normalization": self.model.normalization} if self.model.normalization_is_assumed else None
        described: dict[str, object] = {
            "model": models.describe_model(self.model, self.name),
            "data": self.data.describe(),
            "split": self.split,
            **parts,
            **({"assumed": assumed} if assumed else {}),
            **({"skipped": self.images.skipped} if self.skip_unreadable else {}),
        }
        return Run.claim(Path(run), kind, described, device=device_name(), ranks=self.ranks, command=command)


def _model(model: str | Path | nn.Module, options: ModelOptions) -> Model:
    """The model on the chosen device; by default a module stays on its device, and a loaded model is put on the GPU."""
    if not isinstance(model, nn.Module):
        options.setdefault("device", None)
        return load_model(model, keep_head=True, **options)
    given = sorted(name for name, value in options.items() if value is not None and name != "device")
    if isinstance(model, Model):
        if given:
            raise UsageError(f"the model is loaded already, got {', '.join(given)}. Give them to load_model instead.")
        loaded = model
    elif shape := [name for name in given if name not in ("mean", "std")]:
        raise UsageError(
            f"a network that is built already keeps its shape, got {', '.join(shape)}. Leave them out: they are for a "
            "model that is given as text."
        )
    else:  # as in attack libraries: on pixels in [0, 1], unless mean and std are given
        mean, std = options.get("mean"), options.get("std")
        pixels = mean is None and std is None
        loaded = load_model(model, mean=0.0 if pixels else mean, std=1.0 if pixels else std)
    device = options.get("device")
    return loaded if device is None else loaded.to(device_of_text(device))


def _name_and_preprocess(model: Model) -> tuple[str, str | None]:
    """The name of a model in records, and the preprocessing of the run that trained it."""
    if model.source is None:
        return (type(model.net).__name__ if model.spec is None else model.spec.name), None
    manifest = _training_manifest(model)
    if manifest is None:
        return model.source, None
    # a head or a file inside a run is named by the text given
    name = manifest.text("recipe", "name") if Path(model.source).is_dir() else ""
    return name or model.source, manifest.text("recipe", "preprocess") or None


def _training_manifest(model: Model) -> ManifestRecord | None:
    """The manifest of the run that trained a model, if it is in a run folder."""
    folder = None if model.source is None else models.training_run_of(model.source)
    return None if folder is None else Run.open(folder).manifest


def _check_holdout(model: Model, data: DataSet, split: str) -> None:
    """Refuse the hold-out for a model that was trained on all training images of this kind of data."""
    manifest = _training_manifest(model) if split == "holdout" else None
    if manifest is None or "holdout" in (manifest.find("data", "splits") or {}):
        return
    chosen, trained_on = manifest.text("recipe", "selection", "split"), manifest.text("data", "spec")
    if chosen not in ("", "holdout") and _kind(trained_on) == _kind(data.spec):
        raise UsageError(
            f"{model.source} was trained with selection.split={chosen}, on all training images, so the hold-out of "
            f"{data.spec} is among them. Write {spelled('split', 'test')}."
        )


def _kind(spec: str) -> str:
    """The first word of a data set's spec."""
    return re.split(r"[:@[]", spec, maxsplit=1)[0]


def _readable(data: DataSet, split: str, ranks: Ranks) -> DataSet:
    """The data set without unreadable images, which one process determines for all."""
    faults = ranks.broadcast_from_first(lambda: [fault.id for fault in datasets.unreadable(data.split(split))])
    return datasets.without(data, split, faults)
