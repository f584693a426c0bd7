"""The claims of the five papers against our records: which hold here?

    python benchmarks/evidence.py write
    python benchmarks/evidence.py list
    python benchmarks/evidence.py run MEASUREMENT... --data SPEC [--data SPEC] --work FOLDER --out FILE.jsonl

`write` makes docs/evidence.md from benchmarks/results, and nothing else does. `list` prints what can be measured.

`run` carries out the commands of some measurements, one after another or --at-once N, and appends a JSON line for each
arm and seed, with the correct predictions image by image. Arms that have a line in --out are skipped, and what was
interrupted resumes: with --within SECONDS the rest is left for the next call. `--data` takes folder:DIR of CIFAR-10,
imagenet:DIR and cue-conflict:DIR, as far as the measurements need them, --weights the folder of ImageNet weights, and
--start the network that TORA freezes. --scale reduced is for a CPU, --scale smoke tries the commands on digits and is
never shown.
"""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evidence_claims import CLAIMS, Claim, Comparison, Earlier, Estimate, Verdict
from evidence_records import MEASUREMENTS, Records, lines_of
from jobs import Job, run_all, training_cost
from record import write_record

from vitadel.core.files import slug
from vitadel.core.stats import Difference
from vitadel.runs import ManifestRecord, environment

PAGE = Path(__file__).parents[1] / "docs" / "evidence.md"

# -------------------------------------------------------------------- write

_INTRO = """# Evidence

This page compares claims of five papers with our records. It is written by `python benchmarks/evidence.py write` from
[benchmarks/results](../benchmarks/results) and contains no other numbers; a test compares the page with the records.

- **Verdicts** apply to our models at our scale, which each claim states. "Does not hold" does not refute the numbers
  of a paper at its own scale. Without a margin and with one training run, McNemar's exact test decides at 5%;
  otherwise the 95% interval of the difference decides. A claim *holds* if the interval lies above the margin (0
  unless the row states another), *does not hold* if it lies below, and is *undecided* in between. A claim with
  several rows holds if all of them do, and does not hold if one of them does not.
- **Intervals** are Wilson's for one model and one prediction per image, Newcombe's for unpaired differences, and
  Bonett & Price's for paired ones. With several seeds or random samples, or several predictions per image, they are
  Student's intervals over training runs (or samples) and images. One training run with one seed decides nothing.
- Rows in parentheses do not decide. The comparisons are not corrected for their number: of twenty true differences of
  zero, one appears significant.
- Published numbers are from other data and other models, and are given for orientation.
"""

_MISSING = """## What is not here

Claims that an hour of one GPU cannot decide:

- Wu et al. 2025, tables 1 to 4 and 6: a ViT more robust than WideResNets, larger models and longer trainings. They rest
  on millions of generated images. That a WideResNet gains nothing from Lion (table 5) takes ten times the cost.
- Debenedetti 2022, tables 5 to 8: ImageNet, and XCiT against a ResNet-50. The small ResNet-18 of `--small` keeps
  ImageNet's stem, which leaves one pixel of an image of 32: no fair opponent.
- Jain & Dutta 2024: the adversarially trained ViT-B/16 on CIFAR and ImageNet-100. Our models are small.
- Bhojanapalli et al. 2021: scaling with size and pre-training, patches of 16 against 32, ImageNet-A and -R: other
  weights and data. JFT models are not public.
- Li & Xu 2023: ImageNet-A, -R and -C of TORA.

`vitadel sweeps` says which tables of the papers are one command.
"""


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _mean(one: tuple[float, float, float]) -> str:
    return f"{_percent(one[0])} ({_percent(one[1])} to {_percent(one[2])})"


def _signed(difference: Difference) -> str:
    numbers = (f"{100 * one:+.1f}" for one in (difference.value, difference.low, difference.high))
    return "{} ({} to {})".format(*numbers)


def _row(one: Comparison | Earlier, estimate: Estimate | None, judged: bool) -> str:
    about = one.about if judged else f"({one.about})"
    published = "{:.1f}, {:.1f}".format(*one.published) if one.published else ""
    if estimate is None:
        return f"| {about} | | | | | | {published} | {Verdict.UNMEASURED.value if judged else ''} |"
    cells = [_mean(estimate.first), _mean(estimate.second), _signed(estimate.difference)]
    if estimate.difference.p is not None and not one.margin:  # the test of no difference says nothing about a margin
        cells[2] += f", p = {estimate.difference.p:.2g}"
    counts = [str(estimate.n), str(estimate.seeds), published]
    shown = one.verdict(estimate).value if judged else ""
    return "| " + " | ".join([about, *cells, *counts, shown]) + " |"


def _commands(claim: Claim, records: Records) -> list[str]:
    """What makes the records of a claim, at the scale of those that are shown."""
    own = {one.measurement: records.scale(one.measurement) for one in claim.comparisons if isinstance(one, Comparison)}
    earlier = dict.fromkeys(one.command for one in claim.comparisons if isinstance(one, Earlier))
    return [*(run_command(name, scale) for name, scale in own.items()), *earlier]


def run_command(name: str, scale: str = "full") -> str:
    """How a measurement is made."""
    weights = {kind: f"{kind}:DIR --weights DIR" for kind in ("imagenet", "cue-conflict")}
    data = weights.get(MEASUREMENTS[name].data, "folder:DIR")
    smaller = "" if scale == "full" else f" --scale {scale}"
    return f"python benchmarks/evidence.py run {name} --data {data}{smaller} --work FOLDER --out FILE.jsonl"


def _sources(estimates: Sequence[Estimate | None]) -> str:
    found = [one for one in estimates if one is not None]
    files = dict.fromkeys(source for one in found for source in one.sources)
    commits = dict.fromkeys(name for one in found for name in one.commits)
    links = ", ".join(f"[{file}](../benchmarks/results/{file})" for file in files)
    return f"Records: {links}, at {', '.join(commits)}." if files else "No record yet."


def claim_section(claim: Claim, records: Records) -> list[str]:
    estimates = [one.estimate(records) for one in claim.comparisons]
    judged = claim.judged(records)
    own = {one.measurement for one in claim.comparisons if isinstance(one, Comparison)}
    smaller = any(records.scale(name) == "reduced" and MEASUREMENTS[name].has_reduced_scale for name in own)
    reduced = " Measured at a reduced scale, for a CPU." if smaller else ""
    return [
        f"### {claim.title}: {claim.verdict(records).value}",
        "",
        f"{claim.paper}. {claim.note}{reduced}",
        "",
        "| comparison (A against B) | A % | B % | difference | images | seeds | published | verdict |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        *(_row(one, estimate, one in judged) for one, estimate in zip(claim.comparisons, estimates, strict=True)),
        "",
        _sources(estimates),
        "",
        "```text",
        *_commands(claim, records),
        "```",
        "",
    ]


def page(records: Records) -> str:
    """The page."""
    summary = [
        f"| {claim.title} | {claim.paper.partition(',')[0]} | {claim.verdict(records).value} |" for claim in CLAIMS
    ]
    lines = [_INTRO, "| claim | paper | verdict |", "| --- | --- | --- |", *summary, ""]
    papers = dict.fromkeys(claim.paper.partition(",")[0] for claim in CLAIMS)
    for paper in papers:
        lines += [f"## {paper}", ""]
        for claim in (one for one in CLAIMS if one.paper.startswith(paper)):
            lines += claim_section(claim, records)
    return "\n".join([*lines, _MISSING])


# ---------------------------------------------------------------------- run


@dataclass(frozen=True, slots=True)
class Task:
    """One arm with one seed: its jobs, and how to record it."""

    measurement: str
    arm: str
    seed: int
    folder: Path
    jobs: tuple[Job, ...]
    commands: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, int]:
        return self.measurement, self.arm, self.seed


def _filled(command: str, values: Mapping[str, str], **given: str) -> list[str]:
    """A command with everything filled in; what is filled in may have braces itself."""
    chosen = {name: value.format(**given) for name, value in values.items()}
    return shlex.split(command.format(**given, **chosen))


def tasks_of(args: argparse.Namespace) -> list[Task]:
    """What is to be run, measurement by measurement and seed by seed."""
    tasks = []
    for name in args.measurements:
        measurement = MEASUREMENTS[name]
        if args.scale not in measurement.values:
            raise SystemExit(f"{name} has no scale {args.scale!r}. Choose one of {', '.join(measurement.values)}.")
        for seed in measurement.seeds if args.seeds is None else args.seeds:
            tasks += [_task(args, name, arm, seed) for arm in measurement.arms]
    return tasks


def _task(args: argparse.Namespace, name: str, arm: str, seed: int) -> Task:
    measurement = MEASUREMENTS[name]
    folder = args.work / name / f"{slug(arm)}-{seed}"
    given = {"data": data_of(args.data, measurement.data), "weights": str(args.weights), "start": str(args.start)}
    public = {"data": public_data(given["data"]), "weights": "DIR", "start": Path(str(args.start)).name}
    values = measurement.values[args.scale]
    jobs: list[Job] = []
    for number, command in enumerate(measurement.arms[arm]):
        after = (jobs[0].name,) if jobs else ()
        words = _filled(command, values, run=str(folder), seed=str(seed), **given)
        jobs.append(Job(f"{name}-{folder.name}-{number}", words, after))
    shown = (
        shlex.join(["vitadel", *_filled(command, values, run="RUN", seed=str(seed), **public)])
        for command in measurement.arms[arm]
    )
    return Task(name, arm, seed, folder, tuple(jobs), tuple(shown))


def data_of(given: Sequence[str], kind: str) -> str:
    """The data of this kind among those that were given."""
    kinds = {spec: spec.partition(":")[0] for spec in given}
    others = {"imagenet", "cue-conflict"}
    found = [spec for spec, own in kinds.items() if own == kind or (kind == "cifar" and own not in others)]
    if not found:
        wanted = {"cifar": "folder:DIR, of CIFAR-10"}.get(kind, f"{kind}:DIR")
        raise SystemExit(f"no --data of this kind was given, got {', '.join(given) or 'none'}. Write --data {wanted}.")
    return found[0]


def public_data(spec: str) -> str:
    """A data set without the folder that it lies in."""
    kind, colon, rest = spec.partition(":")
    return f"{kind}:{Path(rest).name}" if colon and "/" in rest else spec


def record_of(task: Task, scale: str, data: str) -> dict[str, object]:
    """The line of a finished task. What made it is known from the manifest of its run."""
    measurement = MEASUREMENTS[task.measurement]
    scores, manifest, images = measurement.read(task.folder)
    return {
        "benchmark": "evidence",
        "measurement": task.measurement,
        "arm": task.arm,
        "seed": task.seed,
        "scale": scale,
        "command": list(task.commands),
        "data": public_data(data),
        "images": images,
        "n": len(next(iter(scores.values())).correct),
        "scores": {name: one.to_json() for name, one in scores.items()},
        "device": manifest.device,
        "machine": dict(manifest.machine),
        "versions": dict(manifest.versions),
        "commit": manifest.commit if scale == "smoke" else commit_of(manifest),
        "cost": next((training_cost(path.parent) for path in sorted(task.folder.glob("**/log.jsonl"))), {}),
    }


def commit_of(manifest: ManifestRecord | None = None) -> str:
    """The commit that a run was made with; a copy without its history is given it by the environment."""
    recorded = manifest.commit if manifest else environment()["commit"]
    known = str(recorded or os.environ.get("VITADEL_COMMIT", ""))
    if not re.fullmatch(r"[0-9a-f]{40}", known):
        raise SystemExit(
            f"a record needs the commit that was measured, got {known or 'none'}. Commit all changes to src, or, "
            "without git, write VITADEL_COMMIT=$(git rev-parse HEAD) in the environment."
        )
    return known


def run(args: argparse.Namespace) -> None:
    """Carry out the commands of what has no record yet, and record it."""
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if args.scale != "smoke":
        commit_of()  # before anything is measured
    known = {one.key for one in Records.of(lines_of([args.out] if args.out.exists() else [])).arms}
    tasks = [task for task in tasks_of(args) if (*task.key, args.scale) not in known]
    jobs = [job for task in tasks for job in task.jobs]
    done = run_all(jobs, args.work / "logs", args.at_once, args.within)
    left = [task for task in tasks if not done.keys() >= {job.name for job in task.jobs}]
    for task in (task for task in tasks if task not in left):
        data = data_of(args.data, MEASUREMENTS[task.measurement].data)
        write_record(record_of(task, args.scale, data), args.out)
    for task in left:
        sys.stderr.write(f"not done: {task.measurement}, {task.arm}, seed {task.seed}\n")
    sys.exit(1 if left else 0)


def print_list() -> None:
    for name, one in MEASUREMENTS.items():
        print(f"{name}: {one.about}; {len(one.arms) * len(one.seeds)} runs, {one.minutes} minutes of one H200")
        print(f"    {run_command(name)}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    modes.add_parser("write").add_argument("--page", type=Path, default=PAGE)
    modes.add_parser("list")
    measured = modes.add_parser("run")
    measured.add_argument("measurements", nargs="+", choices=list(MEASUREMENTS), metavar="MEASUREMENT")
    measured.add_argument("--data", action="append", default=[], help="one for each kind that is needed")
    measured.add_argument("--weights", type=Path, default=Path("."), help="folder of ImageNet weights")
    frozen = "zoo:cifar10-vit-tiny-finetuned"
    measured.add_argument("--start", default=frozen, help="the network that TORA freezes, as of model.start")
    measured.add_argument("--work", type=Path, required=True)
    measured.add_argument("--out", type=Path, required=True)
    measured.add_argument("--scale", choices=("full", "reduced", "smoke"), default="full")
    measured.add_argument("--seeds", type=int, nargs="+")
    measured.add_argument("--at-once", type=int, default=1)
    measured.add_argument("--within", type=float, help="seconds; what is not done by then is left for the next call")
    measured.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda", help="cuda uses the CPU if there is none"
    )
    return parser.parse_args()


def main() -> None:
    args = parsed()
    if args.mode == "write":
        args.page.write_text(page(Records.load()))
    elif args.mode == "list":
        print_list()
    else:
        run(args)


if __name__ == "__main__":
    main()
