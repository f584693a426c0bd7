"""Adapters for accuracy and robustness on CIFAR-10: the paper's tables 2 and 3, from a backbone trained here.

    python benchmarks/tora.py --data folder:DIR --work FOLDER [-n 1000] [--epochs 30] [--at-once 8] [--out FILE.jsonl]

Trains a normal ViT, freezes it, and trains TORA at five lambda, its baselines and, to compare costs, all weights of the
same ViT. One JSON line per way and head: clean, FGSM, PGD-20 and, for joint answers, AutoAttack, with intervals;
trained parameters, memory, device hours. Killed, the same command goes on. Of several jobs at once the hours are those
of a shared device: ask for --at-once 1 where they matter.
"""

import argparse
from pathlib import Path

import torch
from jobs import Job, evaluate, found, run_all, spent, train
from record import hardware, tell, versions

from vitadel import models

LAMBDAS = (0.1, 0.3, 0.5, 0.7, 0.9)
# recipe, and the heads beside the joint answer
TUNINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tora": ("cifar10-tora-short", ("acc", "rob")),
    "adapter-fusion": ("cifar10-adapter-fusion-short", ("acc", "rob")),
    "single-adapter": ("cifar10-single-adapter-short", ()),
    "head-only": ("cifar10-head-only-short", ("acc", "rob")),
}
THREAT = "linf:4/255"
# what the recipe that trains all weights takes over from the short TORA recipe
AS_TORA = (
    "objective.threat.eps=4/255",
    "objective.attack.steps=3",
    "objective.attack.step_size=8/765",
    "objective.eps_warmup=0",
    "plan.warmup_epochs=1",
    "plan.min_lr=0",
    "selection.threat.eps=4/255",
)


def trainings(args: argparse.Namespace) -> dict[str, tuple[Job, tuple[str, ...]]]:
    """Every way of training and its heads, by name; the backbone first."""
    common = (f"plan.epochs={args.epochs}", f"model.start={args.work / 'backbone'}", "plan.understudy=true")

    def job(name: str, recipe: str, *settings: str, after: tuple[str, ...] = ("backbone",)) -> Job:
        return Job(name, train(recipe, args.data, args.work / name, *settings, *args.set), after)

    first = (f"plan.epochs={args.backbone_epochs}", "plan.compile=blocks")
    made: dict[str, tuple[Job, tuple[str, ...]]] = {}
    made["backbone"] = (job("backbone", "cifar10-vit-tiny-standard-short", *first, after=()), ())
    for tuning, (recipe, heads) in TUNINGS.items():
        for weight in LAMBDAS if tuning == "tora" else args.baseline_lambdas:
            name = f"{tuning}-{weight:g}"
            made[name] = job(name, recipe, *common, f"objective.weight={weight}"), heads
    made["all-weights"] = job("all-weights", "cifar10-vit-tiny-short", *common, *AS_TORA), ()
    return made


def evaluations(name: str, heads: tuple[str, ...], args: argparse.Namespace) -> list[Job]:
    """The joint answer under all attacks, heads under FGSM and PGD."""
    made = []
    for head in ("joint", *heads):
        model = str(args.work / name) if head == "joint" else f"{args.work / name}#{head}"
        suites = {"quick": args.n, "adversarial": args.adversarial_n} if head == "joint" else {"quick": args.n}
        for suite, n in suites.items():
            run = f"{name}-{head}-{suite}"
            made.append(Job(run, evaluate(model, f"{args.data}[:{n}]", suite, THREAT, args.work / run), (name,)))
    return made


def sizes(run: Path) -> dict[str, int]:
    """Parameters of the model, and those that training moves."""
    model = models.load(run)
    added = [weight for key, weight in model.net.named_parameters() if not key.startswith("backbone.")]
    return {
        "parameters": sum(weight.numel() for weight in model.net.parameters()),
        "trained": sum(weight.numel() for weight in added),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--adversarial-n", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--backbone-epochs", type=int, default=100)
    parser.add_argument("--baseline-lambdas", type=float, nargs="*", default=(0.1, 0.5, 0.9))
    parser.add_argument("--set", action="append", default=[], help="for all trainings, as of vitadel train")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    ways = trainings(args)
    jobs = [job for job, _ in ways.values()]
    jobs += [one for name, (_, heads) in ways.items() for one in evaluations(name, heads, args)]
    run_all(jobs, args.work / "said", args.at_once)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    about = {"benchmark": "tora", "data": Path(args.data).name, "threat": THREAT, "at_once": args.at_once}
    for name, (_, heads) in ways.items():
        run = args.work / name
        if not (run / "checkpoints").exists():
            continue
        cost = {"epochs": args.backbone_epochs if name == "backbone" else args.epochs, **sizes(run), **spent(run)}
        for head in ("joint", *heads):
            tell(
                {
                    **about,
                    "way": name,
                    "head": head,
                    **hardware(device),
                    "versions": versions("timm"),
                    "quick": found(args.work / f"{name}-{head}-quick"),
                    "adversarial": found(args.work / f"{name}-{head}-adversarial"),
                    "cost": cost,
                },
                args.out,
            )


if __name__ == "__main__":
    main()
