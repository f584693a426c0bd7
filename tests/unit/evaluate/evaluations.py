"""A suite on a split in a run folder, with every argument that tests vary."""

from dataclasses import replace
from typing import Any

from torch import nn

from vitadel.attacks import Engine, Scaling
from vitadel.core.distributed import Ranks
from vitadel.core.progress import ProgressCallback, silent
from vitadel.data import DataSet
from vitadel.evaluate import (
    AttackSuite,
    Context,
    Suite,
    check_class_count,
    check_suite,
    check_writable_names,
    evaluate_suite,
)
from vitadel.runs import Run
from vitadel.threats import Threat


def evaluate(
    model: nn.Module,
    data: DataSet,
    suite: Suite,
    run: Run,
    *,
    threat: Threat | None = None,
    seed: int = 0,
    batch: int | None = None,
    engine: Engine | None = None,
    ranks: Ranks | None = None,
    keep_images: bool = False,
    scaling: Scaling | None = None,
    notify: ProgressCallback = silent,
) -> list[dict[str, Any]]:
    """The summaries as they are written."""
    check_class_count(model, data)
    check_writable_names(data, "test")
    check_suite(suite, model, data, threat=threat, scaling=scaling)
    if isinstance(suite, AttackSuite):
        suite = replace(suite, keep_images=keep_images)
    engine = engine or Engine(batch_size=batch)
    ctx = Context(model, data.test, data, threat, seed, engine, ranks or Ranks(), progress=notify)
    return [record.to_json() for record in evaluate_suite(suite, ctx, run.results, scaling=scaling)]


def evaluate_one(*arguments: Any, **settings: Any) -> dict[str, Any]:
    """The summary of a suite that makes one evaluation."""
    (summary,) = evaluate(*arguments, **settings)
    return summary
