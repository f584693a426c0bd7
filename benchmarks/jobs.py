"""Many commands at once, each when what it needs is there: small networks leave most of a GPU idle."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from record import told

VITADEL = (sys.executable, "-m", "vitadel")


@dataclass(frozen=True, slots=True)
class Job:
    """A command of vitadel, what it is called, the jobs whose results it reads, and as how many it counts."""

    name: str
    command: Sequence[str]
    after: tuple[str, ...] = ()
    weight: int = 1


def run_all(jobs: Sequence[Job], folder: Path, at_once: int, within: float | None = None) -> Mapping[str, float]:
    """Seconds by name, for those that ended well; what a command says is in `folder`/NAME.txt.

    The commands go on where they were stopped, so this does too. What needs something that failed is not begun. After
    `within` seconds what still runs is stopped, and what waits is left for another time.
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
        for name, (process, began) in list(running.items()):
            if process.poll() is not None:
                del running[name]
                if process.returncode == 0:
                    took[name] = time.monotonic() - began
                sys.stderr.write(f"{name}: {process.returncode}, {time.monotonic() - began:.0f} s\n")
        known = {job.name for job in waiting} | running.keys() | took.keys()
        waiting = [job for job in waiting if known.issuperset(job.after)]
        for job in [one for one in waiting if took.keys() >= set(one.after)]:
            if running and sum(weights[name] for name in running) + job.weight > at_once:
                continue
            waiting.remove(job)
            with (folder / f"{job.name}.txt").open("wb") as said:
                command = [*VITADEL, *job.command]
                process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)  # noqa: S603 - our own
            running[job.name] = process, time.monotonic()
        time.sleep(0.2)
    return took


def train(recipe: str, data: str, run: Path, *settings: str) -> list[str]:
    chosen = [part for setting in settings for part in ("--set", setting)]
    return ["train", recipe, "--data", data, "--run", str(run), "--json", *chosen]


def evaluate(model: str, data: str, suite: str, threat: str, run: Path) -> list[str]:
    return ["evaluate", model, "--data", data, "--suite", suite, "--threat", threat, "--run", str(run), "--json"]


def found(run: Path) -> dict[str, object]:
    """What an evaluation or an attack found: accuracy on clean images, and what each attack in turn left of it.

    Of an attack with scaled attention: on the model itself, not by the protocol of the paper, on the rescaled one.
    """
    for file in run.glob("eval/*/summary.json"):
        summary = json.loads(file.read_text())
        if summary["suite"].endswith("paper-protocol"):
            continue
        n, stand = summary["n"], summary["clean"]["correct"]
        left: dict[str, object] = {"n": n, "clean": told(stand, n)}
        for attack in summary["attacks"]:
            stand -= attack["fell"]
            left[attack["name"]] = told(stand, n)
        return left
    return {}


def spent(run: Path) -> dict[str, object]:
    """What training took, by the last line of its log."""
    if not (run / "log.jsonl").exists():
        return {}
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    *_, last = (line for line in lines if line["event"] == "step")
    kept = ("device_hours", "kilowatt_hours", "images_per_second", "memory_mib")
    return {name: last[name] for name in kept if name in last}
