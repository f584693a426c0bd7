"""What a refactor must not change, as an executable comparison of two checkouts.

    python tests/golden/invariants.py record --tree CHECKOUT --data DIR --out FOLDER
    python tests/golden/invariants.py compare FOLDER OTHER

`record` runs the same command lines, in the spelling of before the redesign, with the sources of a checkout: attacks in
every norm, all suites, all studies, trainings and an interrupted one. `compare` reads rows, results and weights of both
and prints each command as identical, or with its first differences. DIR holds `cifar10/test/CLASS/*`,
`cue-conflict/CLASS/*` and `vit_tiny.safetensors`, weights of timm's vit_tiny_patch16_224. Columns and keys that were
renamed are compared under their name of today; times and texts are not compared.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from on_record import plain  # type: ignore[import-not-found]
from safetensors import safe_open

VIT, XCIT = "zoo:cifar10-vit-tiny-short", "zoo:cifar10-xcit-tiny-short"
SHORT = ("--data", "digits[:256]", "--set", "plan.epochs=2", "--set", "plan.warmup_epochs=0")
RECIPES = ("standard", "adversarial", "aas", "class-token")
# on digits, with a model that was trained here
DIGITS = {
    "autoattack-linf": ("adversarial", "linf:24/255", 32),
    "autoattack-l2": ("adversarial", "l2:1", 32),
    "autoattack-l1": ("adversarial", "l1:5", 32),
    "autoattack-rand": ("adversarial-rand", "linf:24/255", 16),
    "quick": ("quick", "l2:1", 64),
    "curve": ("curve", "linf:16/255", 64),
}
# on CIFAR-10, with a model of the zoo
CIFAR = {
    "corruptions": ("corruptions", None, 6),
    "grey-level": ("grey-level", None, 16),
    "spatial": ("spatial:shifts=3,turns=5,mapped=8", None, 12),
    "transfer": (f"transfer:sources={XCIT},steps=4", "linf:4/255", 8),
    "natural": ("natural-adversarial", None, 16),
}
STUDIES = {
    "accumulate": "coordinates=1+2,steps=3",
    "convergence": "steps=0+1+4,restarts=2",
    "correlation": "group=8",
    "lesion": "",
    "masking-quick": "",
    "perturbations": "steps=2",
    "restrict": "",
    "saliency": "",
    "semantics": f"classifiers={XCIT},steps=3",
}
ATTACKING = {"convergence", "masking-quick", "perturbations", "saliency", "semantics"}
# former names of columns of rows; accuracy under attack was `right` once, as that under perturbations is `correct`
COLUMNS = {
    "row": "index",
    "right": "correct",
    "robust": "correct",
    "right_all": "correct_all",
    "right_among": "correct_among",
    "clean_right": "clean_correct",
    "fgsm_right": "fgsm_correct",
    "fell_to": "broken_by",
    "size": "distance",
    "denied": "rejected",
}
# and of keys of results, whole or in part
KEYS = {
    "rows": "indices",
    "fell": "broken",
    "reached": "success",
    "colour": "color",
    "centre": "center",
    "grey": "gray",
    "held": "trial_images",
    "probe": "trial_attack",
    "batch": "batch_size",
    "outcome": "decisive",
    "of": "num_images",
    "value": "objective",
}
PARTS = {"felled": "broken", "standing": "robust"}
# columns that hold times, and hashes of code
NOT_COMPARED = {"seconds", "versions", "sources", "ids", "schema"}
# what only newer versions write: the norm beside its text, the split of searched factors, figures of masking as data
ADDED = {
    "result.threat.norm",
    "result.settings.scaling.split",
    "result.exhibits",
    "result.title",
    "result.summary",
}


def commands(data: Path, out: Path) -> dict[str, tuple[str, ...]]:
    """Name of a record and command line, in the order in which they run."""
    trainings = {name: ("train", f"digits-{name}", *SHORT) for name in RECIPES}
    result: dict[str, tuple[str, ...]] = {}
    for name, line in trainings.items():
        result[f"train-{name}"] = (*line, "--run", str(out / f"train-{name}"))
    trained = str(out / "train-adversarial")
    for suites, model, source in ((DIGITS, trained, "digits"), (CIFAR, VIT, f"folder:{data / 'cifar10'}")):
        for name, (suite, threat, count) in suites.items():
            chosen = ("--suite", suite, *(("--threat", threat) if threat else ()))
            result[name] = ("evaluate", model, "--data", f"{source}[:{count}]", *chosen, "--run", str(out / name))
    stimuli = ("--data", f"cue-conflict:{data / 'cue-conflict'}[:32]", "--suite", "shape-bias", "--classes", "1000")
    model = f"timm:vit_tiny_patch16_224@{data / 'vit_tiny.safetensors'}"
    result["shape-bias"] = ("evaluate", model, *stimuli, "--run", str(out / "shape-bias"))
    for name, settings in STUDIES.items():
        study = f"{name}:{settings}" if settings else name
        images = ("--data", f"folder:{data / 'cifar10'}[:8]")
        within = ("--threat", "linf:2/255") if name in ATTACKING else ()
        result[f"study-{name}"] = ("analyse", study, VIT, *images, *within, "--run", str(out / f"study-{name}"))
    return result


def record(tree: Path, data: Path, out: Path, only: Sequence[str]) -> None:
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    out.mkdir(parents=True, exist_ok=True)

    def start(line: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
        with log.open("ab") as stream:
            return subprocess.Popen(
                [sys.executable, "-m", "vitadel", *line], env=environment, stdout=stream, stderr=stream
            )

    for name, line in commands(data, out).items():
        if only and name not in only:
            continue
        code = start(line, out / f"{name}.log").wait()
        print(f"{name}: exit code {code}", flush=True)
    if not only or "interrupted" in only:
        folder = out / "train-interrupted"
        line = ("train", "digits-adversarial", *SHORT, "--run", str(folder))
        kills = 0
        while True:
            process = start(line, out / "train-interrupted.log")
            time.sleep(6 + 2 * kills)
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        print(f"train-interrupted: killed {kills} times, exit code {process.returncode}", flush=True)


def compare(first: Path, second: Path) -> int:
    """Print every record's outcome; the number of records that differ or are missing."""
    wrong = 0
    for name in sorted({path.stem for folder in (first, second) for path in folder.glob("*.log")}):
        ours, theirs = dict(contents(first / name)), dict(contents(second / name))
        found = [f"only in one: {key}" for key in sorted(ours.keys() ^ theirs.keys())]
        found += [
            line for key in sorted(ours.keys() & theirs.keys()) for line in differences(ours[key], theirs[key], key)
        ]
        found = found if ours else ["no results"]
        wrong += bool(found)
        count = sum(size(value) for value in ours.values())
        print(f"{name:24} {'DIFFERENT' if found else 'identical'}  {count} values")
        for line in found[:80]:
            print(f"    {line[:220]}")
    whole, parts = (dict(contents(second / f"train-{name}")) for name in ("adversarial", "interrupted"))
    same = whole.get("weights") is not None and whole.get("weights") == parts.get("weights")
    print(f"weights of the interrupted training {'are' if same else 'ARE NOT'} those of the uninterrupted one")
    return wrong + (not same)


def contents(folder: Path) -> Iterator[tuple[str, object]]:
    """Rows, results of studies and hashes of weights of a run folder."""
    for path in sorted(folder.rglob("rows.parquet")):
        columns = pq.read_table(path).to_pydict()
        order = sorted(range(len(columns["id"])), key=columns["id"].__getitem__)
        for column, values in columns.items():
            if column not in NOT_COMPARED and "seconds" not in column:
                name = "rows/" + COLUMNS.get(column, column)
                yield name.replace("grey", "gray"), [values[place] for place in order]
    for path in sorted(folder.rglob("result.json")):
        # what is shown is made from these numbers
        numbers = {key: value for key, value in json.loads(path.read_text()).items() if not key.startswith("sha")}
        yield "result", plain(renamed(numbers))
    best = folder / "checkpoints" / "best.safetensors"
    if best.exists():
        yield "weights", tensors_sha256(best)


def renamed(value: object) -> object:
    if isinstance(value, Mapping):
        return {name_today(key): renamed(one) for key, one in value.items() if key not in NOT_COMPARED}
    return [renamed(one) for one in value] if isinstance(value, list) else value


def name_today(key: str) -> str:
    for former, name in PARTS.items():
        key = key.replace(former, name)
    return KEYS.get(key, key)


def tensors_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with safe_open(path, "np") as file:
        for name in sorted(file.keys()):
            digest.update(name.encode() + file.get_tensor(name).tobytes())
    return digest.hexdigest()


def differences(first: object, second: object, path: str) -> Iterator[str]:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in first.keys() | second.keys():
            if key in first and key in second:
                yield from differences(first[key], second[key], f"{path}.{key}")
            elif key in first or f"{path}.{key}" not in ADDED:
                yield f"{path}.{key}: only in {'the first' if key in first else 'the second'}"
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for place, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from differences(one, other, f"{path}.{place}")
    elif not (isinstance(first, str) and isinstance(second, str) and path.startswith("result")) and first != second:
        yield f"{path}: {str(first)[:80]} and {str(second)[:80]}"


def size(value: object) -> int:
    if isinstance(value, Mapping):
        return sum(map(size, value.values()))
    return sum(map(size, value)) if isinstance(value, list) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    for flag in ("--tree", "--data", "--out"):
        recording.add_argument(flag, type=Path, required=True)
    recording.add_argument("--only", nargs="*", default=())
    comparing = verbs.add_parser("compare")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "compare":
        return compare(arguments.first, arguments.second)
    if not arguments.only:
        shutil.rmtree(arguments.out, ignore_errors=True)
    record(arguments.tree, arguments.data, arguments.out, arguments.only)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
