"""AAS-AT against its base recipe at an equal number of passes on CIFAR-10: does it pay off?

    python benchmarks/attention_training.py --data folder:DIR --work FOLDER [-n 1000] [--epochs 60] [--out FILE.jsonl]

Trains cifar10-vit-tiny-short and cifar10-aas-short, the latter for fewer epochs to pay for its searches, both at once
unless --at-once 1. One JSON line per model: accuracy on clean images, under PGD-100, under PGD-100 and AAS, and under
AutoAttack, with intervals; the gaps between the two largest scores of every attention; the cost of training.
Interrupted, the same command resumes.
"""

import argparse
import json
from pathlib import Path

import torch
from jobs import Job, accuracies_of, evaluate, run_all, train, training_cost
from record import hardware, versions, write_record

from vitadel import data, models
from vitadel.analyze.attention_gaps import measure_gaps
from vitadel.evaluate.context import Context

THREAT = "linf:8/255"
# passes per image of an update, and of one that searches for factors
UPDATE, SEARCH = 7, 23
# updates of an epoch of scaling that are searches, and images of an update, as in the recipes
SEARCHES, BATCH = 16, 512


def wrapped_epochs(epochs: int, period: int, updates: int) -> int:
    """How many epochs with searches cost no more passes than `epochs` without."""
    for fewer in range(epochs, 0, -1):
        searches = SEARCHES * len(range(period, fewer, period))
        if fewer * updates * UPDATE + searches * (SEARCH - UPDATE) <= epochs * updates * UPDATE:
            return fewer
    return epochs


def jobs_of(args: argparse.Namespace, updates: int) -> list[Job]:
    common = ("plan.attack_model=true", *args.set)
    fewer = wrapped_epochs(args.epochs, args.period, updates)
    ways = {
        "base": ("cifar10-vit-tiny-short", f"plan.epochs={args.epochs}"),
        "aas": ("cifar10-aas-short", f"plan.epochs={fewer}", f"objective.period={args.period}"),
    }
    made = []
    for name, (recipe, *settings) in ways.items():
        run = args.work / name
        made.append(Job(name, train(recipe, args.data, run, *settings, *common)))
        images = f"{args.data}[:{args.n}]"
        attack = ["attack", str(run), "--data", images, "--attack", "pgd:steps=100", "--threat", THREAT, "--json"]
        made.append(Job(f"{name}-pgd", [*attack, "--run", f"{run}-pgd"], (name,)))
        made.append(Job(f"{name}-scaled", [*attack, "--scaling", "aas", "--run", f"{run}-scaled"], (name,)))
        full = evaluate(str(run), images, "adversarial", THREAT, args.work / f"{name}-adversarial")
        made.append(Job(f"{name}-adversarial", full, (name,)))
    return made


def saturation(run: Path, spec: str, device: torch.device) -> list[dict[str, object]]:
    """Per attention, on 256 images: the median gap and the largest."""
    model = models.load(run).to(device).eval()
    split = data.load(spec, preprocess=data.parse_preprocess("squash:32")).split("test")
    images = split.take(torch.arange(min(256, len(split))))
    return [
        {"name": one["name"], **{key: float(f"{one['all'][key]:.4g}") for key in ("median", "max")}}
        for one in measure_gaps(Context(model, images), "gaps")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--period", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], help="for both trainings, as of vitadel train")
    parser.add_argument("--within", type=float, help="seconds; what is not done by then is left for the next call")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    updates = max(1, len(data.load(args.data, preprocess=data.parse_preprocess("squash:32")).split("train")) // BATCH)
    took = run_all(jobs_of(args, updates), args.work / "logs", args.at_once, args.within)
    about = {"benchmark": "attention-training", "data": Path(args.data).name, "threat": THREAT, "at_once": args.at_once}
    for name in ("base", "aas"):
        run = args.work / name
        if name not in took:  # its log has the reason
            continue
        recipe = json.loads((run / "manifest.json").read_text())["parts"]["recipe"]
        write_record(
            {
                **about,
                "way": name,
                "epochs": recipe["plan"]["epochs"],
                **hardware(device),
                "versions": versions("timm"),
                "pgd": accuracies_of(Path(f"{run}-pgd")),
                "pgd_scaled": accuracies_of(Path(f"{run}-scaled")),
                "adversarial": accuracies_of(Path(f"{run}-adversarial")),
                "gaps": saturation(run, args.data, device),
                "cost": training_cost(run),
            },
            args.out,
        )


if __name__ == "__main__":
    main()
