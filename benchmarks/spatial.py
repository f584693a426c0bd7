"""The worst of 2511 rotations and translations: forward passes of the suite against the whole grid, same results.

    python benchmarks/spatial.py MODEL --data SPEC -n 200 [--settings translations=9,rotations=31,grid_images=32]
        [--grid 20]

The suite stops at the first misclassified transformation and tries likely ones first. The whole grid evaluates every
transformation of every image; with --grid N its results on the first N images are compared with the suite's, and timed.
Prints one JSON line.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from record import clock, hardware, versions, write_record

from vitadel import data, models
from vitadel.attacks import Engine
from vitadel.core.distributed import best_device
from vitadel.evaluate import Context, evaluate_suite
from vitadel.evaluate.parsing import as_suites
from vitadel.evaluate.suites import Spatial
from vitadel.runs import Run
from vitadel.shifts import rotated_translated


@torch.no_grad()
def whole_grid(model: torch.nn.Module, split: data.Split, settings: Spatial, rows: int, batch: int) -> list[float]:
    """1 for every image that is classified correctly under all transformations."""
    device = next(model.parameters()).device
    grid = settings.transformations(min(split.pixels.image_size)).grid()
    robust = []
    for row in range(rows):
        x, right = split.images(torch.tensor([row])).to(device), True
        for part in grid.split(batch):
            predictions = model(rotated_translated(x.expand(len(part), -1, -1, -1), part)).argmax(1).cpu()
            right = right and bool((predictions == split.labels[row]).all())
        robust.append(float(right))
    return robust


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--preprocess")
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--grid", type=int, default=0)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--settings", default="")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = best_device()
    model = models.load(args.model).eval().to(device)
    assert model.spec is not None
    (settings,) = as_suites(f"spatial:{args.settings}")
    assert isinstance(settings, Spatial)
    preprocess = data.parse_preprocess(args.preprocess or f"squash:{model.spec.image_size}")
    images = data.load(f"{args.data}[:{args.n}]", preprocess=preprocess)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.claim(Path(folder) / "run", "evaluate", {"seed": 0}, device=str(device))
        started = clock(device)
        ctx = Context(model, images.test, images, engine=Engine(batch_size=args.batch))
        (record,) = evaluate_suite(settings, ctx, run.results)
        seconds = clock(device) - started
        rows = run.results("spatial").rows()
    transformations = len(settings.transformations(model.spec.image_size).grid())
    count = len(images.test)
    spent = sum(rows["forwards"])
    compared: dict[str, object] = {}
    if args.grid:
        started = clock(device)
        expected = whole_grid(model, images.test, settings, min(args.grid, count), args.batch or 64)
        grid_seconds = clock(device) - started
        differ = sum(one != other for one, other in zip(expected, rows["correct"], strict=False))
        compared = {
            "compared": len(expected),
            "results_that_differ": differ,
            "grid_seconds_per_image": round(grid_seconds / len(expected), 3),
        }
    clean, conventions = record.clean, record.conventions
    assert clean is not None
    assert conventions is not None
    write_record(
        {
            "benchmark": "spatial",
            "model": args.model.partition("@")[0],
            "data": Path(args.data).name,
            "images": count,
            **hardware(device),
            "versions": versions("timm"),
            "transformations": transformations,
            **{what: conventions[what] for what in ("translations", "rotations", "grid_images")},
            "clean": clean.accuracy,
            "worst": sum(rows["correct"]) / count,
            "forwards": spent,
            "forwards_per_image": round(spent / count, 1),
            "of_the_grid": round(spent / (transformations * count), 4),
            "seconds_per_image": round(seconds / count, 3),
            **compared,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
