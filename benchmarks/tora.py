"""Adapters for accuracy and robustness on CIFAR-10: the paper's tables 2 and 3, from a backbone trained here.

    python benchmarks/tora.py --data folder:DIR --work FOLDER [-n 1000] [--epochs 30] [--at-once 8] [--out FILE.jsonl]
    python benchmarks/tora.py --costs [WAY ...] [--out FILE.jsonl]
    python benchmarks/tora.py --heads RUN [RUN ...] --data folder:DIR [-n 300] [--out FILE.jsonl]

Trains a normal ViT, or takes the one that --backbone names, freezes it, and trains TORA at five lambda, its baselines
and, to compare costs, all weights of the same ViT. One JSON line per way and head: clean, FGSM, PGD-20 and AutoAttack,
with intervals; trained parameters, memory, device hours. Interrupted, the same command resumes. Of several jobs at once
the hours are those of a shared device.

With --costs, instead: the speed of each way by itself in either phase of training, and its memory, on random images.
With --heads: accuracy of each output on clean images and on adversarial ones as in training, through the joint
output; and each head under AutoAttack on itself.
With --equal-time FILE, which --costs wrote, every way gets the epochs that take as long as --epochs of TORA.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jobs import Job, accuracies_of, evaluate, run_all, train, training_cost
from record import accuracy_record, hardware, versions, write_record
from torch import Tensor
from training import built, images, run_ours

from vitadel import data, models, recipes, robustness
from vitadel.attacks import PGD
from vitadel.data import Squash
from vitadel.goals import Untargeted
from vitadel.threats import Linf

# recipe, values of lambda, and the heads beside the joint output
TUNINGS: dict[str, tuple[str, tuple[float, ...], tuple[str, ...]]] = {
    "tora": ("cifar10-tora-short", (0.1, 0.3, 0.5, 0.7, 0.9), ("acc", "rob")),
    "single-adapter": ("cifar10-single-adapter-short", (0.1, 0.5, 0.9), ()),
    "adapter-fusion": ("cifar10-adapter-fusion-short", (0.5,), ("acc", "rob")),
    "head-only": ("cifar10-head-only-short", (0.5,), ("acc", "rob", "kept")),  # the last as it was frozen
}
ALL_WEIGHTS = "cifar10-vit-tiny-short"
THREAT = "linf:4/255"
# what the recipe that trains all weights takes over from the short TORA recipe
AS_TORA = (
    "objective.threat.eps=4/255",
    "objective.attack.steps=3",
    "objective.attack.step_size=8/765",
    "objective.eps_warmup=0",
    "plan.warmup_epochs=1",
    "plan.compile=blocks",
    "plan.attack_model=true",
    "plan.min_lr=0",
    "selection.threat.eps=4/255",
)


def seconds_per_image(costs: Path) -> dict[str, float]:
    """Of each way of training by itself, the mean of both phases; of what was measured twice, as it was last."""
    lines = [json.loads(line) for line in costs.read_text().splitlines()]
    return {line["way"]: sum(1 / rate for rate in line["images_per_second"].values()) / 2 for line in lines}


def epochs_of(args: argparse.Namespace) -> Mapping[str, int]:
    """Epochs of each way: as many as TORA's, or as many as take as long."""
    ways = (*TUNINGS, "all-weights")
    if args.equal_time is None:
        return dict.fromkeys(ways, args.epochs)
    cost = seconds_per_image(args.equal_time)
    return {way: max(1, round(args.epochs * cost["tora"] / cost[way])) for way in ways}


def trainings(args: argparse.Namespace) -> dict[str, tuple[Job, tuple[str, ...]]]:
    """Every way of training and its heads, by name; the backbone first, unless it is given."""
    start, needed = (args.work / "backbone", ("backbone",)) if args.backbone is None else (args.backbone, ())
    epochs = epochs_of(args)

    def job(name: str, recipe: str, *settings: str, after: tuple[str, ...] = needed) -> Job:
        return Job(name, train(recipe, args.data, args.work / name, *settings, *args.set), after, weight=2)

    made: dict[str, tuple[Job, tuple[str, ...]]] = {}
    if args.backbone is None:
        first = f"plan.epochs={args.backbone_epochs}"
        made["backbone"] = (job("backbone", "cifar10-vit-tiny-standard-short", first, after=()), ())
    for tuning, (recipe, weights, heads) in TUNINGS.items():
        for weight in weights:
            name = f"{tuning}-{weight:g}"
            common = f"plan.epochs={epochs[tuning]}", f"model.start={start}"
            made[name] = job(name, recipe, *common, f"objective.weight={weight}"), heads
    common = f"plan.epochs={epochs['all-weights']}", f"model.start={start}"
    made["all-weights"] = job("all-weights", ALL_WEIGHTS, *common, *AS_TORA), ()
    return made


def evaluations(name: str, heads: tuple[str, ...], args: argparse.Namespace) -> list[Job]:
    """The joint output and every head under all attacks, and the saliency of TORA's gates."""
    made = []
    if name.startswith("tora"):
        gates = [
            "analyze",
            "tora-gates",
            str(args.work / name),
            "--data",
            f"{args.data}[:{args.adversarial_n}]",
            "--json",
        ]
        made.append(Job(f"{name}-gates", [*gates, "--run", str(args.work / f"{name}-gates")], (name,)))
    for head in ("joint", *heads):
        model = str(args.work / name) if head == "joint" else f"{args.work / name}#{head}"
        for suite, n in {"quick": args.n, "autoattack": args.adversarial_n}.items():
            run = f"{name}-{head}-{suite}"
            made.append(Job(run, evaluate(model, f"{args.data}[:{n}]", suite, THREAT, args.work / run), (name,)))
    return made


def sizes(model: models.Model) -> dict[str, int]:
    """Parameters of the model, and those that training moves."""
    added = [weight for key, weight in model.net.named_parameters() if not key.startswith("backbone.")]
    return {
        "parameters": sum(weight.numel() for weight in model.net.parameters()),
        "trained": sum(weight.numel() for weight in added),
    }


def record_costs(out: Path | None, chosen: Sequence[str], updates: int = 16) -> None:
    """Speed and memory of each way alone, on random images."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ways = {name: recipe for name, (recipe, _, _) in TUNINGS.items()} | {"all-weights": ALL_WEIGHTS}
    for name, known in ways.items():
        if chosen and name not in chosen:
            continue
        recipe = recipes.override(recipes.RECIPES[known](), AS_TORA if known == ALL_WEIGHTS else ())
        model, split = built("vit-ti4"), images("vit-ti4", recipe.plan.batch_size * 4)
        if recipe.model.tuning is not None:
            model = models.tora(model, recipe.model.tuning, num_classes=10, seed=0)
        # four stretches: two of either phase, of which the first records and compiles
        plan = replace(recipe.plan, epochs=updates, log_every_steps=updates, checkpoint_every_steps=10**6)
        (first, *_, second), _, mib = run_ours(model, split, recipe.objective, plan)
        about = {"benchmark": "tora-costs", "way": name, "batch": plan.batch_size, **hardware(device)}
        rates = {"phase_1": round(first, 1), "phase_2": round(second, 1)}
        cost = {"images_per_second": rates, "memory_mib": round(mib), **sizes(model)}
        write_record({**about, "versions": versions("timm"), **cost}, out)


def judged(model: models.Model, head: str, shown: Mapping[str, Tensor], y: Tensor) -> dict[str, object]:
    """Accuracy of a head on each kind of images, and under AutoAttack."""
    answering = models.with_head(model, head)
    with torch.no_grad():
        count = {what: int((answering(pixels).argmax(1) == y).sum()) for what, pixels in shown.items()}
    if head != "joint":  # which the main table has
        count["autoattack"] = robustness(answering, shown["clean"], y, THREAT).robust.correct
    return {what: accuracy_record(one, len(y)) for what, one in count.items()}


def record_heads(args: argparse.Namespace) -> None:
    """Whether a head classifies the image, or the perturbation of an attack on the joint output."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = data.load(f"{args.data}[:{args.n}]", preprocess=Squash(32)).test
    x, y = images.images(torch.arange(len(images))).to(device), images.labels.to(device)
    for name in args.heads:
        model = models.load(name).to(device).eval()
        assert isinstance(model.net, models.AdaptedViT)
        attack = PGD(steps=3, step_size=8 / 765, keep_best=False)
        shown = {"clean": x, "attacked": attack(model, x, Untargeted(y), Linf(4 / 255), seed=1).x_adv}
        heads = ("joint", *model.net.tuning.names)
        right = {head: judged(model, head, shown, y) for head in heads}
        about = {
            "benchmark": "tora-heads",
            "way": Path(name).stem if name.endswith(".safetensors") else Path(name).name,
            "n": len(y),
            **hardware(device),
        }
        write_record({**about, "versions": versions("timm"), "right": right}, args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--costs", nargs="*", metavar="WAY")
    parser.add_argument("--heads", nargs="+", metavar="RUN")
    parser.add_argument("--equal-time", type=Path, metavar="FILE")
    parser.add_argument("--backbone", help="a model that is trained already")
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--adversarial-n", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--backbone-epochs", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], help="for all trainings, as of vitadel train")
    parser.add_argument("--within", type=float, help="seconds; what is not done by then is left for the next call")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.costs is not None:
        record_costs(args.out, args.costs)
        return
    if args.heads is not None and args.data:
        record_heads(args)
        return
    if not args.data or not args.work:
        parser.error("--data and --work are needed, or --costs, or --heads and --data")
    ways = trainings(args)
    jobs = [job for job, _ in ways.values()]
    jobs += [one for name, (_, heads) in ways.items() for one in evaluations(name, heads, args)]
    took = run_all(jobs, args.work / "logs", args.at_once, args.within)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    about = {"benchmark": "tora", "data": Path(args.data).name, "threat": THREAT, "at_once": args.at_once}
    for name, (_, heads) in ways.items():
        run = args.work / name
        if name not in took:
            continue
        planned = int(json.loads((run / "manifest.json").read_text())["parts"]["recipe"]["plan"]["epochs"])
        cost = {"epochs": planned, **sizes(models.load(run)), **training_cost(run)}
        for head in ("joint", *heads):
            quick = accuracies_of(args.work / f"{name}-{head}-quick")
            if not quick:
                continue
            write_record(
                {
                    **about,
                    "way": name,
                    "head": head,
                    **hardware(device),
                    "versions": versions("timm"),
                    "quick": quick,
                    "adversarial": accuracies_of(args.work / f"{name}-{head}-autoattack"),
                    "cost": cost,
                },
                args.out,
            )


if __name__ == "__main__":
    main()
