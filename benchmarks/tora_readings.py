"""Readings of the TORA slides (Li & Xu 2023) against their baselines: which one shows the pattern of their tables?

    python benchmarks/tora_readings.py --recipe digits-tora --start RUN --data digits --work FOLDER [--out FILE.jsonl]
    python benchmarks/tora_readings.py --table FILE.jsonl

Trains each reading at each lambda and seed from one frozen network, for equally many images, and evaluates the joint
output and every head on its own with the suite `quick`; with --autoattack-n also the joint output with AutoAttack. One
JSON line per training and head. Interrupted, the same command resumes. --table prints the means over seeds of a file of
records, and for each reading what it shows of the paper:

(a) the clean accuracies of both heads differ by at most 2 points, and the robust head is at least as robust;
(b) from the least to the largest lambda clean accuracy does not increase and robust accuracy does not decrease;
(c) the joint output is at least as robust as AdapterFusion's and the single adapter's, at a clean accuracy at least
    as high.
"""

import argparse
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from jobs import Job, accuracies_of, evaluate, run_all, train, training_cost
from record import hardware, versions, write_record

_SINGLE = ("model.tuning.tuning=single", "objective.independent=0")
_FUSION = ("model.tuning.gate=per-token",)
_TOKEN = ("model.tuning.softmax=token",)
_JOINT = ("phase1_attack", "phase1_loss", "phase2_attack", "phase2_loss")
# what differs from the recipe
READINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "joint everywhere": tuple(f"objective.{name}=joint" for name in _JOINT),
    "joint in phase 2": ("objective.phase2_attack=joint", "objective.phase2_loss=joint"),
    "joint but phase 1's loss": tuple(f"objective.{name}=joint" for name in _JOINT if name != "phase1_loss"),
    "sequential": ("objective.order=sequential",),
    "heads learn": ("objective.heads_learn=true",),
    "softmax over tokens": _TOKEN,
    "softmax over both": ("model.tuning.softmax=joint",),
    "sqrt": ("model.tuning.normalization=sqrt",),
    "rows": ("model.tuning.normalization=rows",),
    "learned": ("model.tuning.normalization=learned",),
    "layer scale": ("model.tuning.initialization=layer-scale",),
    "recursion through the fusion": ("model.tuning.recursion=fusion",),
    "recursion through the fusion, tokens": ("model.tuning.recursion=fusion", *_TOKEN),
    "no residual, per token": ("model.tuning.residual=false", *_FUSION),
    "probabilities": ("model.tuning.prediction=probabilities",),
    "AdapterFusion": _FUSION,
    "single adapter": _SINGLE,
    "head only": ("model.tuning.tuning=head",),
}
BASELINES = ("AdapterFusion", "single adapter")
# the recipe's own width
_WITHOUT_WIDTH = "head only"


def folder_name(reading: str, weight: float, seed: int) -> str:
    return f"{reading.replace(' ', '-').replace(',', '').replace(chr(39), '')}-{weight:g}-{seed}"


def jobs_of(args: argparse.Namespace) -> dict[tuple[str, float, int], list[Job]]:
    """The training of each reading, lambda and seed, and its evaluations."""
    made = {}
    for seed, weight, reading in itertools.product(args.seeds, args.weights, args.readings):
        name = folder_name(reading, weight, seed)
        run = args.work / name
        settings = [f"objective.weight={weight}", f"model.start={args.start}", f"seed={seed}", *READINGS[reading]]
        jobs = [Job(name, train(args.recipe, args.data, run, *settings, *args.set), weight=2)]
        for head in heads_of(reading):
            model = str(run) if head == "joint" else f"{run}#{head}"
            suites = {"quick": args.n} | ({"autoattack": args.autoattack_n} if head == "joint" else {})
            for suite, n in suites.items():
                if n != 0:
                    data = f"{args.data}[:{n}]" if n else args.data
                    into = args.work / f"{name}-{head}-{suite}"
                    jobs.append(Job(into.name, evaluate(model, data, suite, args.threat, into), (name,)))
        made[reading, weight, seed] = jobs
    return made


def heads_of(reading: str) -> tuple[str, ...]:
    return ("joint",) if reading == "single adapter" else ("joint", "acc", "rob")


def write_records(args: argparse.Namespace, done: Mapping[str, float]) -> None:
    """A line per training and head that is not in the file yet."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    about = {"benchmark": "tora-readings", "recipe": args.recipe, "data": Path(args.data).name, "threat": args.threat}
    known = records_of(args.out) if args.out and args.out.exists() else []
    written = {(line["recipe"], line["reading"], line["lambda"], line["seed"], line["head"]) for line in known}
    for reading, weight, seed in jobs_of(args):
        name = folder_name(reading, weight, seed)
        for head in heads_of(reading):
            key = (args.recipe, reading, weight, seed, head)
            if key in written or f"{name}-{head}-quick" not in done:
                continue
            extra = {"set": args.set} if args.set else {}
            result = {
                "quick": accuracies_of(args.work / f"{name}-{head}-quick"),
                "autoattack": accuracies_of(args.work / f"{name}-{head}-autoattack"),
                "cost": training_cost(args.work / name),
            }
            keys = {"reading": reading, "settings": READINGS[reading], "lambda": weight, "seed": seed, "head": head}
            machine = {**hardware(device), "versions": versions("timm")}
            write_record({**about, **keys, **extra, **machine, **result}, args.out)


def records_of(file: Path) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in file.read_text().splitlines()]


# reading -> lambda -> head -> (clean, robust), in percent, per seed
Scores = dict[str, dict[float, dict[str, list[tuple[float, float]]]]]


def scores_of(records: Sequence[dict]) -> Scores:  # type: ignore[type-arg]
    """Clean accuracy, and accuracy after the last attack of `quick`."""
    scores: Scores = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for line in records:
        shares = [value["accuracy"] for name, value in line["quick"].items() if name != "n"]
        scores[line["reading"]][line["lambda"]][line["head"]].append((100 * shares[0], 100 * shares[-1]))
    return scores


def mean(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    clean, robust = (statistics.fmean(pair[at] for pair in pairs) for at in (0, 1))
    return clean, robust


def similar_heads(scores: Scores, reading: str) -> bool | None:
    """(a) at every lambda; None without heads."""
    heads = [at for at in scores[reading].values() if "rob" in at]
    if not heads:
        return None
    pairs = [(mean(at["acc"]), mean(at["rob"])) for at in heads]
    return all(abs(acc[0] - rob[0]) <= 2 and rob[1] >= acc[1] for acc, rob in pairs)


def monotone(scores: Scores, reading: str) -> bool | None:
    """(b) for the joint output; None at a single lambda."""
    joint = [mean(scores[reading][weight]["joint"]) for weight in sorted(scores[reading])]
    if len(joint) < 2:
        return None
    return all(after[0] <= before[0] and after[1] >= before[1] for before, after in itertools.pairwise(joint))


def beats_baselines(scores: Scores, reading: str) -> bool | None:
    """(c) at every lambda that both have; None for the baselines."""
    known = [name for name in BASELINES if name in scores]
    if reading in (*BASELINES, _WITHOUT_WIDTH) or not known:
        return None
    pairs = [
        (mean(scores[reading][weight]["joint"]), mean(scores[name][weight]["joint"]))
        for name in known
        for weight in scores[reading].keys() & scores[name].keys()
    ]
    return all(ours[0] >= other[0] and ours[1] >= other[1] for ours, other in pairs)


def cell(pairs: Sequence[tuple[float, float]]) -> str:
    return "{:.1f} / {:.1f}".format(*mean(pairs)) if pairs else ""


def print_table(file: Path) -> None:
    """A Markdown table of the means over seeds, in percent."""
    scores = scores_of(records_of(file))
    words = {True: "yes", False: "no", None: ""}
    print("| reading | lambda | seeds | joint | accurate head | robust head | (a) | (b) | (c) |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- | --- | --- |")
    for reading in (name for name in READINGS if name in scores):
        shown = [words[check(scores, reading)] for check in (similar_heads, monotone, beats_baselines)]
        for weight in sorted(scores[reading]):
            at = scores[reading][weight]
            cells = [cell(at.get(head, [])) for head in ("joint", "acc", "rob")]
            print("| " + " | ".join([reading, f"{weight:g}", str(len(at["joint"])), *cells, *shown]) + " |")
            shown = [""] * 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10-tora-short")
    parser.add_argument("--start", help="the frozen network, as of model.start")
    parser.add_argument("--data")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--threat", default="linf:4/255")
    parser.add_argument("--readings", nargs="+", default=list(READINGS), choices=list(READINGS), metavar="READING")
    parser.add_argument("--weights", nargs="+", type=float, default=[0.1, 0.9], metavar="LAMBDA")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("-n", type=int, help="test images of `quick`; all without it")
    parser.add_argument("--autoattack-n", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="for all trainings, as of vitadel train")
    parser.add_argument("--within", type=float, help="seconds; what is not done by then is left for the next call")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.table is not None:
        print_table(args.table)
        return
    if not (args.data and args.work and args.start):
        parser.error("--start, --data and --work are needed, or --table")
    jobs = [job for group in jobs_of(args).values() for job in group]
    write_records(args, run_all(jobs, args.work / "logs", args.at_once, args.within))


if __name__ == "__main__":
    main()
