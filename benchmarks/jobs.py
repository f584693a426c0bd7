"""Run several commands at once, each after those it depends on: small networks leave most of a GPU idle."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from record import accuracy_record

VITADEL = (sys.executable, "-m", "vitadel")


@dataclass(frozen=True, slots=True)
class Job:
    """A command of vitadel, its name, the jobs that it depends on, and as how many jobs it counts."""

    name: str
    command: Sequence[str]
    after: tuple[str, ...] = ()
    weight: int = 1


def run_all(
    jobs: Sequence[Job],
    folder: Path,
    at_once: int,
    within: float | None = None,
    notify: Callable[[Mapping[str, float]], None] | None = None,
) -> Mapping[str, float]:
    """Seconds by name, for those that succeeded; the output of a command is in `folder`/NAME.txt.

    The commands resume, so this does too. A job that depends on a failed one is not started. After `within` seconds
    running jobs are terminated and waiting ones are left for another call. `notify` gets what has succeeded so far,
    whenever a job has.
    """
    ends = float("inf") if within is None else time.monotonic() + within
    folder.mkdir(parents=True, exist_ok=True)
    waiting, took = list(jobs), dict[str, float]()
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    weights = {job.name: job.weight for job in jobs}
    while waiting or running:
        if time.monotonic() > ends:
            ends = float("inf")  # once: a second signal would end a training before its checkpoint is written
            waiting.clear()
            for process, _ in running.values():
                process.terminate()
        succeeded = False
        for name, (process, began) in list(running.items()):
            if process.poll() is not None:
                del running[name]
                if process.returncode == 0:
                    took[name] = time.monotonic() - began
                    succeeded = True
                sys.stderr.write(f"{name}: {process.returncode}, {time.monotonic() - began:.0f} s\n")
        if succeeded and notify is not None:
            notify(took)
        known = {job.name for job in waiting} | running.keys() | took.keys()
        waiting = [job for job in waiting if known.issuperset(job.after)]
        for job in [one for one in waiting if took.keys() >= set(one.after)]:
            if running and sum(weights[name] for name in running) + job.weight > at_once:
                continue
            waiting.remove(job)
            with (folder / f"{job.name}.txt").open("wb") as output:
                command = [*VITADEL, *job.command]
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603 - our own
            running[job.name] = process, time.monotonic()
        time.sleep(0.2)
    return took


def train(recipe: str, data: str, run: Path, *settings: str) -> list[str]:
    chosen = [part for setting in settings for part in ("--set", setting)]
    return ["train", recipe, "--data", data, "--run", str(run), "--json", *chosen]


def evaluate(model: str, data: str, suite: str, threat: str, run: Path) -> list[str]:
    return ["evaluate", model, "--data", data, "--suite", suite, "--threat", threat, "--run", str(run), "--json"]


def accuracies_of(run: Path) -> dict[str, object]:
    """Clean accuracy of an evaluation, and the robust accuracy after each attack.

    With scaled attention: on the model itself, not by the protocol of the paper, on the rescaled one.
    """
    for file in run.glob("eval/*/summary.json"):
        summary = json.loads(file.read_text())
        if summary["suite"].endswith("paper-protocol"):
            continue
        n, robust = summary["n"], summary["clean"]["correct"]
        left: dict[str, object] = {"n": n, "clean": accuracy_record(robust, n)}
        for attack in summary["attacks"]:
            robust -= attack["broken"]
            left[attack["name"]] = accuracy_record(robust, n)
        return left
    return {}


def training_cost(run: Path) -> dict[str, object]:
    """The cost of a training, from the last line of its log."""
    if not (run / "log.jsonl").exists():
        return {}
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    *_, last = (line for line in lines if line["event"] == "step")
    kept = ("device_hours", "kilowatt_hours", "images_per_second", "memory_mib")
    return {name: last[name] for name in kept if name in last}
