"""`vd.train`: train a model with a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitadel.api.arguments import check_arguments, check_types, progress_of
from vitadel.api.results import ShortTable
from vitadel.core.errors import UsageError, unknown_name_error
from vitadel.core.progress import ProgressCallback
from vitadel.data import DataSet
from vitadel.models import Model
from vitadel.recipes import FORMER_RECIPE_NAMES, RECIPES, Recipe, train_recipe
from vitadel.runs import Run

_SETTING = 'overrides={{"PATH": {value}}}'
_ELSEWHERE = {
    name: _SETTING.replace("PATH", path)
    for name, path in {
        "seed": "seed",
        "epochs": "plan.epochs",
        "batch_size": "plan.batch_size",
        "bs": "plan.batch_size",
        "lr": "plan.optimizer.lr",
        "learning_rate": "plan.optimizer.lr",
        "weight_decay": "plan.optimizer.weight_decay",
        "num_workers": "plan.num_workers",
        "image_size": "model.image_size",
        "img_size": "model.image_size",
        "patch_size": "model.patch_size",
    }.items()
} | {
    "threat": 'overrides={{"objective.threat": "linf:8/255"}}',
    "eps": 'overrides={{"objective.threat": "linf:8/255"}}',
    "settings": "overrides={value}",
    "device": "nothing: training uses the GPU if available; CUDA_VISIBLE_DEVICES=1 selects another",
    "model": 'overrides={{"model.start": "timm:NAME"}}',
    "resume": "nothing: the same call resumes",
    "output_dir": "train(recipe, {value!r})",
}


def train(
    recipe: str | Recipe,
    run: str | Path,
    *,
    data: str | Path | None = None,
    overrides: Mapping[str, object] | Sequence[str] = (),
    progress: bool | ProgressCallback | None = None,
    command: str | None = None,
    **other: object,
) -> Model:
    """Train a model with a recipe and write it into a run folder. Repeat the call to resume an interrupted run.

    Args:
        recipe: A name from `vitadel recipes`, or a `Recipe`.
        run: The run folder; a folder of a different run is refused.
        data: A data set in place of the recipe's, as text such as `cifar10:DIR[:1000]`.
        overrides: Settings to change, such as `{"plan.epochs": 3, "selection.threat": "linf:4/255"}`.
        progress: None shows bars on a terminal, False shows nothing; or a callback.
        command: The command line, for the manifest.

    Returns:
        The trained model: the best checkpoint on the hold-out, or the last weights if nothing is held out.

    Raises:
        UsageError: If there is no such recipe or setting, or the folder belongs to a different run.

    Example:
        >>> model = train("digits-adversarial", "runs/robust", overrides={"plan.epochs": 3})
    """
    check_arguments(train, other, _ELSEWHERE)
    if isinstance(data, Path):
        data = str(data)
    if data is not None and not isinstance(data, str):
        spec = data.spec if isinstance(data, DataSet) else "cifar10:DIR"
        raise UsageError(
            "train takes data as text, because the recipe sets the preprocessing, got a "
            f'{type(data).__name__}. Write data="{spec}".'
        )
    check_types(train, locals())
    with progress_of(progress) as notify:
        model = train_recipe(
            as_recipe(recipe), Path(run), data_spec=data, overrides=overrides, notify=notify, command=command
        )
    model.source = str(run)
    return model


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """What a training has written so far.

    Args:
        run: Its run folder.
        recipe: The name of its recipe.
        holdout: The scores of each validation, with its step.
        checkpoints: The names of the weight files.
        warnings: What is damaged and was left out.
    """

    run: Path
    recipe: str
    holdout: Sequence[Mapping[str, object]]
    checkpoints: Sequence[str]
    warnings: Sequence[str] = ()

    @classmethod
    def read(cls, folder: Path, recipe: str) -> "TrainingSummary":
        """The summary of a run folder."""
        run = Run.open(folder)
        scores = [{key: one.values.get(key) for key in ("step", "clean", "robust")} for one in run.read_log("holdout")]
        files = sorted(path.name for path in run.checkpoints.glob("*.safetensors"))
        damaged = run.damaged_log_lines
        warnings = [f"{damaged} lines of {folder / 'log.jsonl'} are damaged and were left out"] if damaged else []
        return cls(folder, recipe, scores, files, warnings)

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return {"run": str(self.run), "holdout": list(self.holdout), "checkpoints": list(self.checkpoints)}

    def tables(self) -> list[ShortTable]:
        """Lines for the terminal: the last scores on the hold-out, and where the training is."""
        lines = []
        for scores in self.holdout[-1:]:
            shown = (f"{name} {scores[name]:.1%}" for name in ("clean", "robust") if isinstance(scores[name], float))
            lines.append(f"hold-out after step {scores['step']}: {', '.join(shown)}")
        lines.append(f"{self.recipe} is trained: {self.run}")
        return [ShortTable(line, (), ()) for line in lines]


def as_recipe(recipe: str | Recipe) -> Recipe:
    """A recipe, given as an object or by name."""
    if isinstance(recipe, Recipe):
        return recipe
    name = FORMER_RECIPE_NAMES.get(recipe, recipe)
    if name not in RECIPES:
        raise unknown_name_error("recipe", recipe, RECIPES)
    return RECIPES[name]()
