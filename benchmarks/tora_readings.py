"""Readings of the TORA slides (Li & Xu 2023) against their baselines: which one shows the pattern of their tables?

    python benchmarks/tora_readings.py --recipe digits-tora --start RUN --data digits --threat linf:24/255 \\
        --autoattack-n 359 --work FOLDER --out FILE.jsonl
    python benchmarks/tora_readings.py --table FILE.jsonl

Trains each reading at each lambda and seed from one frozen network, for equally many images, and evaluates the joint
output and every head on its own with the suite `quick`; with --autoattack-n also the joint output with AutoAttack.
--threat is the threat model of training, selection and evaluation; the steps of the training attack are two thirds of
its radius, as in the recipes.

One JSON line per training and head, written once all of its evaluations are complete, with the predictions image by
image. What has a line in --out is skipped, and what was interrupted resumes: with --within SECONDS the rest is left for
the next call. Exits with 1 and names what is left if anything is.

--table prints a Markdown table of the means over seeds for each threat, start and set of settings, and for each reading
which patterns of the paper it shows:

(a) the mean clean accuracies of both heads differ by at most 2 points, and the robust head is at least as robust;
(b) from the least to the largest lambda mean clean accuracy does not increase and robust accuracy does not decrease;
(c) the joint output is more robust than those of AdapterFusion and of the single adapter of the same width, and its
    clean accuracy is lower by less than 1 point: by the 95% intervals of the differences, paired if the images are the
    same. A verdict from a single seed is in parentheses.

Robust is under AutoAttack where it was recorded, otherwise under the last attack of `quick`; heads always have `quick`.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from evidence import public_data
from evidence_claims import Verdict, combine, decide, difference_of, mean_of
from evidence_records import Scores, read_attack
from jobs import Job, accuracies_of, evaluate, run_all, train, training_cost
from record import hardware, versions, write_record

from vitadel import models
from vitadel.core.files import slug
from vitadel.core.stats import Accuracy, Difference, independent_difference
from vitadel.recipes import RECIPES, override

_SINGLE = ("model.tuning.tuning=single", "objective.independent=0")
_FUSION = ("model.tuning.gate=per-token",)
_ADAPTERS = ("model.tuning.added_to=adapters",)
_TOKEN = ("model.tuning.softmax=token",)
_JOINT = ("phase1_attack", "phase1_loss", "phase2_attack", "phase2_loss")
_METHODS = {"": (), "AdapterFusion": _FUSION, "single adapter": _SINGLE}
_WIDTHS = (16, 8, 4, 2)
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
    "added to the adapters": _ADAPTERS,
    "added to the adapters, tokens": (*_ADAPTERS, *_TOKEN),
    "no residual, per token": ("model.tuning.residual=false", *_FUSION),
    "probabilities": ("model.tuning.prediction=probabilities",),
    "AdapterFusion": _FUSION,
    "single adapter": _SINGLE,
    "head only": ("model.tuning.tuning=head",),
    **{
        ", ".join(filter(None, (method, f"width D/{width}"))): (*settings, f"model.tuning.reduction={width}")
        for width in _WIDTHS
        for method, settings in _METHODS.items()
    },
}
BASELINES = ("AdapterFusion", "single adapter")
_WITHOUT_WIDTH = "head only"
# of clean accuracy, as in the claim of the evidence
_MARGIN = -0.01

# ---------------------------------------------------------------------- run


@dataclass(frozen=True, slots=True)
class Task:
    """A head of a training: what makes its line.

    Args:
        reading: The reading.
        weight: Lambda.
        seed: The seed.
        head: The head.
        autoattack_n: Test images of AutoAttack; 0 for none.
        train: The training and its folder's name.
        tests: The evaluations and their folders' names, by suite.
    """

    reading: str
    weight: float
    seed: int
    head: str
    autoattack_n: int
    train: Job
    tests: Mapping[str, Job]

    @property
    def jobs(self) -> list[Job]:
        return [self.train, *self.tests.values()]

    @property
    def keys(self) -> dict[str, object]:
        """What tells its line from the others of one call."""
        return {"reading": self.reading, "lambda": self.weight, "seed": self.seed, "head": self.head}


def radius_settings(threat: str) -> list[str]:
    """Training and selection at the radius of the evaluation, with steps of two thirds of it as in the recipes."""
    step = Fraction(threat.partition(":")[2]) * Fraction(2, 3)
    return [
        f"objective.threat={threat}",
        f"objective.attack.step_size={step.numerator}/{step.denominator}",
        f"selection.threat={threat}",
    ]


def shared(args: argparse.Namespace) -> dict[str, Any]:
    """What all lines of a call have in common, and what tells them from those of another call."""
    recipe = override(RECIPES[args.recipe](), [*radius_settings(args.threat), *args.set])
    name, at, file = args.start.partition("@")
    start = models.load(args.start)
    return {
        "recipe": args.recipe,
        "threat": args.threat,
        "set": args.set,
        "start": {
            "name": f"{name}@{Path(file).name}" if at else Path(name).name,
            "sha256": models.weights_sha256(start.net.state_dict())[:16],
        },
        "epochs": recipe.plan.epochs,
        "data": public_data(args.data),
        "n": args.n,
    }


def tasks_of(args: argparse.Namespace, about: Mapping[str, Any]) -> list[Task]:
    """Every head of every reading, lambda and seed. A folder's name tells apart what its line tells apart."""
    tasks = []
    known = {name: value for name, value in about.items() if name != "n"}
    code = f"{crc32(json.dumps(known, sort_keys=True).encode()):08x}"
    for seed, weight, reading in itertools.product(args.seeds, args.weights, args.readings):
        name = slug(f"{reading}-{weight:g}-{seed}-{args.threat}-{code}")
        settings = [f"objective.weight={weight}", f"model.start={args.start}", f"seed={seed}"]
        settings += [*radius_settings(args.threat), *READINGS[reading], *args.set]
        training = Job(name, train(args.recipe, args.data, args.work / name, *settings), weight=2)
        for head in heads_of(reading):
            attacked = args.autoattack_n if head == "joint" else 0
            model = str(args.work / name) + ("" if head == "joint" else f"#{head}")
            tests = {}
            for suite, n in {"quick": args.n, **({"autoattack": attacked} if attacked else {})}.items():
                into = args.work / f"{name}-{head}-{suite}-{n or 'all'}"
                data = f"{args.data}[:{n}]" if n else args.data
                tests[suite] = Job(into.name, evaluate(model, data, suite, args.threat, into), (name,))
            tasks.append(Task(reading, weight, seed, head, attacked, training, tests))
    return tasks


def heads_of(reading: str) -> tuple[str, ...]:
    return ("joint",) if reading.startswith("single adapter") else ("joint", "acc", "rob")


def is_recorded(task: Task, about: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a line has these keys and was made in the same way, with as many images under AutoAttack or more asked
    for than now."""
    wanted = {**about, **task.keys}
    return any(
        all(_comparable(line).get(name) == value for name, value in _comparable(wanted).items())
        and task.autoattack_n in (0, line["autoattack_n"])
        for line in lines
    )


def _comparable(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line whose start is the hash of its weights: a network may be in files of several names."""
    start = line["start"]
    return {**line, "start": start.get("sha256", start.get("name"))}


def record_of(task: Task, about: Mapping[str, Any], work: Path) -> dict[str, object]:
    """The line of a finished task."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {suite: read_attack(work / job.name) for suite, job in task.tests.items()}
    scores = {suite: own["robust"] for suite, (own, _, _) in found.items()}
    return {
        "benchmark": "tora-readings",
        **about,
        **task.keys,
        "settings": READINGS[task.reading],
        "autoattack_n": task.autoattack_n,
        **hardware(device),
        "versions": versions("timm"),
        **{suite: accuracies_of(work / job.name) for suite, job in task.tests.items()},
        "images": {suite: {"n": len(scores[suite].correct), "sha256": images} for suite, (*_, images) in found.items()},
        "scores": {name: one.to_json() for name, one in {"clean": found["quick"][0]["clean"], **scores}.items()},
        "cost": training_cost(work / task.train.name),
    }


def run(args: argparse.Namespace) -> list[Task]:
    """Train and evaluate what has no line yet; returns what is left."""
    about = shared(args)
    known = records_of(args.out) if args.out and args.out.exists() else []
    tasks = [task for task in tasks_of(args, about) if not is_recorded(task, about, known)]
    jobs = {job.name: job for task in tasks for job in task.jobs}
    left = list(tasks)

    def write_finished(done: Mapping[str, float]) -> None:
        for task in [one for one in left if done.keys() >= {job.name for job in one.jobs}]:
            write_record(record_of(task, about, args.work), args.out)
            left.remove(task)

    write_finished(run_all(list(jobs.values()), args.work / "logs", args.at_once, args.within, write_finished))
    return left


# -------------------------------------------------------------------- table


def records_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@dataclass(frozen=True, slots=True)
class Result:
    """A line's scores: clean and robust under `quick`, and under AutoAttack where it was recorded.

    Args:
        scores: By `clean`, `quick` and `autoattack`.
        images: What the images of a score are.
    """

    scores: Mapping[str, Scores]
    images: Mapping[str, str]

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "Result":
        images = {"clean": line["images"]["quick"], **line["images"]}
        return cls(
            {name: Scores.from_json(one, images[name]["n"]) for name, one in line["scores"].items()},
            {name: one["sha256"] for name, one in images.items()},
        )

    def percent(self, name: str) -> float:
        return 100 * float(self.scores[name].shares.mean())


# reading -> lambda -> head -> seed
Results = dict[str, dict[float, dict[str, dict[int, Result]]]]
_GROUP = ("recipe", "data", "threat", "epochs", "n", "start", "set")


def grouped(lines: Sequence[Mapping[str, Any]]) -> dict[str, Results]:
    """The results of each group of lines that were made in the same way; a line with AutoAttack counts before others,
    and a later line before an earlier one."""
    groups: dict[str, Results] = {}
    for line in sorted(lines, key=lambda one: "autoattack" in one["scores"]):
        known = _comparable(line)
        results = groups.setdefault(json.dumps({name: known[name] for name in _GROUP}), {})
        heads = results.setdefault(line["reading"], {}).setdefault(line["lambda"], {})
        heads.setdefault(line["head"], {})[line["seed"]] = Result.of(line)
    return groups


def mean(results: Mapping[int, Result], name: str) -> float:
    """The mean over seeds, in percent."""
    return statistics.fmean(one.percent(name) for one in results.values())


def attacked(*results: Mapping[int, Result]) -> str:
    """By which attack results are judged: AutoAttack if all have it."""
    both = all("autoattack" in one.scores for seeds in results for one in seeds.values())
    return "autoattack" if both else "quick"


def similar_heads(results: Results, reading: str) -> bool | None:
    """(a) at every lambda; None without heads."""
    heads = [at for at in results[reading].values() if {"acc", "rob"} <= at.keys()]
    if not heads:
        return None
    return all(
        abs(mean(at["acc"], "clean") - mean(at["rob"], "clean")) <= 2
        and mean(at["rob"], "quick") >= mean(at["acc"], "quick")
        for at in heads
    )


def monotone(results: Results, reading: str) -> bool | None:
    """(b) for the joint output; None at a single lambda."""
    by_weight = results[reading]
    joint = [by_weight[weight]["joint"] for weight in sorted(by_weight) if "joint" in by_weight[weight]]
    if len(joint) < 2:
        return None
    attack = attacked(*joint)
    return all(
        mean(after, "clean") <= mean(before, "clean") and mean(after, attack) >= mean(before, attack)
        for before, after in itertools.pairwise(joint)
    )


def baselines_of(reading: str) -> tuple[str, ...]:
    """The baselines of the same width; none for a baseline."""
    width = reading.rpartition(", ")[2] if ", width" in reading else reading
    if reading.startswith(BASELINES) or reading == _WITHOUT_WIDTH:
        return ()
    return tuple(f"{name}, {width}" if width.startswith("width") else name for name in BASELINES)


def difference(ours: Mapping[int, Result], other: Mapping[int, Result], name: str) -> Difference | None:
    """By how much ours is higher over the seeds that both have; paired where the images are the same."""
    seeds = sorted(ours.keys() & other.keys())
    if not seeds:
        return None
    first, second = ([one[seed] for seed in seeds] for one in (ours, other))
    sides = [[one.scores[name] for one in side] for side in (first, second)]
    if len({one.images[name] for one in (*first, *second)}) == 1:
        return difference_of(sides[0], sides[1])
    known = []
    for side in sides:
        value, low, high = mean_of(side)
        n = len(side[0].correct)
        known.append(Accuracy(round(value * n), n, value, low, high))
    return independent_difference(known[0], known[1])


@dataclass(frozen=True, slots=True)
class Compared:
    """A reading against a baseline at one lambda."""

    weight: float
    baseline: str
    attack: str
    seeds: int
    clean: Difference
    robust: Difference

    @property
    def verdict(self) -> Verdict:
        return combine([decide(self.robust), decide(self.clean, _MARGIN)])


def against_baselines(results: Results, reading: str) -> list[Compared]:
    """(c): every comparison of the joint output that can be made."""
    found = []
    for weight, name in itertools.product(sorted(results[reading]), baselines_of(reading)):
        ours = results[reading][weight].get("joint", {})
        other = results.get(name, {}).get(weight, {}).get("joint", {})
        common = ours.keys() & other.keys()
        ours, other = ({seed: side[seed] for seed in common} for side in (ours, other))
        if not common:
            continue
        attack = attacked(ours, other)
        clean, robust = difference(ours, other, "clean"), difference(ours, other, attack)
        assert clean is not None
        assert robust is not None
        found.append(Compared(weight, name, attack, len(common), clean, robust))
    return found


def beats_baselines(results: Results, reading: str) -> str:
    """(c) in words; in parentheses if a comparison has one seed alone."""
    compared = against_baselines(results, reading)
    if not compared:
        return ""
    words = {Verdict.HOLDS: "yes", Verdict.DOES_NOT: "no"}
    word = words.get(combine([one.verdict for one in compared]), "undecided")
    return f"({word})" if min(one.seeds for one in compared) == 1 else word


def _head_cell(results: Mapping[int, Result] | None) -> str:
    return f"{mean(results, 'clean'):.1f} / {mean(results, 'quick'):.1f}" if results else ""


def _autoattack_cell(results: Mapping[int, Result]) -> str:
    if attacked(results) == "quick":
        return ""
    value, low, high = mean_of([one.scores["autoattack"] for one in results.values()])
    return f"{100 * value:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _signed(one: Difference) -> str:
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * number for number in (one.value, one.low, one.high)))


def table(results: Results) -> list[str]:
    """A Markdown table of the means over seeds, in percent; then the differences of readings with several seeds."""
    words = {True: "yes", False: "no", None: ""}
    lines = [
        "| reading | lambda | seeds | clean / quick | AutoAttack | accurate head | robust head | (a) | (b) | (c) |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- | --- |",
    ]
    for reading in (name for name in READINGS if name in results):
        shown = [words[check(results, reading)] for check in (similar_heads, monotone)]
        shown.append(beats_baselines(results, reading))
        for weight in sorted(weight for weight, at in results[reading].items() if "joint" in at):
            at = results[reading][weight]
            cells = [_head_cell(at["joint"]), _autoattack_cell(at["joint"]), *(_head_cell(at.get(h)) for h in _HEADS)]
            lines.append("| " + " | ".join([reading, f"{weight:g}", str(len(at["joint"])), *cells, *shown]) + " |")
            shown = [""] * 3
    compared = [(reading, one) for reading in READINGS if reading in results for one in _several(results, reading)]
    if compared:
        lines += [
            "",
            "| reading against baseline | lambda | seeds | attack | clean | robust | verdict |",
            "| --- | ---: | ---: | --- | ---: | ---: | --- |",
        ]
    for reading, one in compared:
        cells = [f"{reading}, {one.baseline}", f"{one.weight:g}", str(one.seeds), one.attack]
        lines.append("| " + " | ".join([*cells, _signed(one.clean), _signed(one.robust), one.verdict.value]) + " |")
    return lines


_HEADS = ("acc", "rob")


def _several(results: Results, reading: str) -> list[Compared]:
    return [one for one in against_baselines(results, reading) if one.seeds > 1]


def print_table(file: Path) -> None:
    for group, results in grouped(records_of(file)).items():
        about = ", ".join(f"{name} {value}" for name, value in json.loads(group).items() if value not in (None, []))
        print("\n".join([about, "", *table(results), ""]))


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10-tora-short")
    parser.add_argument("--start", help="the frozen network, as of model.start; by default that of the recipe")
    parser.add_argument("--data")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--threat", default="linf:4/255", help="of training, selection and evaluation")
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
    args = parser.parse_args(words)
    if args.table is None and not (args.data and args.work):
        parser.error("--data and --work are needed, or --table")
    args.start = args.start or RECIPES[args.recipe]().model.start
    return args


def main() -> None:
    args = parsed()
    if args.table is not None:
        print_table(args.table)
        return
    left = run(args)
    for task in left:
        sys.stderr.write(f"not done: {task.reading}, lambda {task.weight:g}, seed {task.seed}, head {task.head}\n")
    sys.exit(1 if left else 0)


if __name__ == "__main__":
    main()
