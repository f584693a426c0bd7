"""How many small faults the tests detect: draws faults over the package, makes one at a time in a copy, runs tests.

    python tests/mutants/sample.py --count 80 --seed 1 --jobs 2

A fault is tried on the tests of its own package, on those that name its module, and on the contract and golden tests,
as far as these run its function, until one fails; on others only if none of these runs it. A test that
does not end counts as one that fails. Which tests run which function is recorded the first time, and again for a test
file that has changed, `--jobs` files at once; delete build/mutants to record everything anew.
"""

import argparse
import collections
import compileall
import contextlib
import importlib
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from executed import PACKAGE, FileRecord, place_of, read_record, record_file  # type: ignore[import-not-found]
from faults import Fault, faults_of  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / PACKAGE
TESTS = ROOT / "tests"
KEPT = ROOT / "build" / "mutants"
WANTED = 0.9
# imported once, before a process is forked for each fault; the package itself must not be
HEAVY = (
    *("torch", "torchvision", "timm", "numpy", "scipy.ndimage", "scipy.optimize", "scipy.stats", "sklearn.datasets"),
    *("pyarrow.parquet", "safetensors.torch", "accelerate", "matplotlib.figure", "jinja2", "typer", "rich.table"),
    *("PIL.Image", "hypothesis", "pytest", "torch.distributed.fsdp", "torch.testing"),
)
EVERYWHERE = ("contract", "golden")
MEMORY = 24 << 30


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault of one file of the package."""

    file: Path
    fault: Fault

    @property
    def module(self) -> str:
        parts = (PACKAGE, *self.file.relative_to(SOURCE).with_suffix("").parts)
        return ".".join(parts).removesuffix(".__init__")

    @property
    def package(self) -> str:
        return self.file.relative_to(SOURCE).parts[0].removesuffix(".py")

    def __str__(self) -> str:
        source = self.file.read_bytes()
        was = source[self.fault.start : self.fault.end].decode()
        line = source.decode().splitlines()[self.fault.line - 1].strip()
        column = self.fault.start - source.rfind(b"\n", 0, self.fault.start)
        place = f"{self.file.relative_to(ROOT)}:{self.fault.line}:{column}"
        return f"{place}  {was!r} -> {self.fault.text!r}  in  {line}"


def main() -> int:
    parser = argparse.ArgumentParser(description="How many small faults the tests detect.")
    parser.add_argument("--count", type=int, default=80, help="how many faults")
    parser.add_argument("--seed", type=int, default=1, help="which faults")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--at", action="append", default=[], metavar="FILE:LINE", help="all faults of a line instead")
    parser.add_argument(
        "--record-only", nargs="*", type=Path, metavar="TEST_FILE", help="record test files (all), try no fault"
    )
    arguments = parser.parse_args()
    if arguments.record_only is not None:
        prepare()
        read_records([file.resolve() for file in arguments.record_only] or test_files(), arguments.jobs)
        return 0
    places = {file: faults_of(file.read_bytes()) for file in sorted(SOURCE.rglob("*.py"))}
    mutants = at_lines(places, arguments.at) if arguments.at else drawn(places, arguments.count, arguments.seed)
    prepare()
    records = read_records(test_files(), arguments.jobs)
    survivors = tried(mutants, records, arguments.jobs)
    return print_shares(mutants, survivors)


def drawn(places: dict[Path, list[list[Fault]]], count: int, seed: int) -> list[Mutant]:
    """Places drawn evenly, and one fault of each."""
    rng = random.Random(seed)  # noqa: S311
    everywhere = [(file, faults) for file, result in places.items() for faults in result]
    chosen = rng.sample(everywhere, min(count, len(everywhere)))
    return [Mutant(file, rng.choice(faults)) for file, faults in chosen]


def at_lines(places: dict[Path, list[list[Fault]]], lines: Sequence[str]) -> list[Mutant]:
    mutants = []
    for line in lines:
        name, _, number = line.rpartition(":")
        file = ROOT / name
        mutants += [Mutant(file, fault) for faults in places[file] for fault in faults if fault.line == int(number)]
    return mutants


def prepare() -> None:
    """Import slow packages, and leave the working tree unchanged."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"  # as tests/conftest.py, which is too late here
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    for name in HEAVY:
        importlib.import_module(name)
    assert PACKAGE not in sys.modules
    importlib.import_module("torch").set_num_threads(1)
    hypothesis = importlib.import_module("hypothesis")
    phases = [phase for phase in hypothesis.Phase if phase.name in ("explicit", "generate")]
    hypothesis.settings.register_profile("mutants", database=None, derandomize=True, phases=phases)
    hypothesis.settings.load_profile("mutants")


def options(folder: Path) -> list[str]:
    plain = ["-q", "-p", "no:cacheprovider", "--override-ini=addopts=", "--strict-markers", "-m", "not slow"]
    return [*plain, f"--basetemp={folder}", f"--rootdir={ROOT}"]


def test_files() -> list[Path]:
    """All but those that run for as long as they are given."""
    return sorted(file for file in TESTS.rglob("test_*.py") if file.parent.name != "hostile")


def read_records(files: Sequence[Path], jobs: int) -> dict[Path, FileRecord]:
    """The record of every test file: from disk where the file is as it was, made now otherwise, `jobs` at once."""
    KEPT.mkdir(parents=True, exist_ok=True)
    records = {file: read_record(file, ROOT, KEPT) for file in files}
    make_records([file for file, record in records.items() if record is None], jobs)
    read = {file: record or read_record(file, ROOT, KEPT) for file, record in records.items()}
    result = {file: record for file, record in read.items() if record is not None}
    broken = [test for record in result.values() for test in record.failed]
    if broken:
        print(f"{len(broken)} tests fail without a fault and are left out: {', '.join(broken)}", flush=True)
    return result


def make_records(files: Sequence[Path], jobs: int) -> None:
    """Record each test file in a process of its own; the largest first, so that no long one is left for the end."""
    waiting = collections.deque(sorted(files, key=lambda file: -file.stat().st_size))
    running: dict[int, Recording] = {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                recording = Recording(waiting.popleft(), Path(folder))
                running[recording.process] = recording
            process, status = os.wait()
            running.pop(process).finish(status)


class Recording:
    """One test file that is being recorded."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file, self.began = file, time.perf_counter()
        self.place = place_of(file, ROOT, KEPT)
        self.part, self.out = folder / self.place.name, folder / f"{self.place.stem}.out"
        words = options(folder / self.place.stem)
        self.process = forked(lambda: record_file(file, ROOT, words, self.part), self.out)

    def finish(self, status: int) -> None:
        if not self.part.exists():
            raise RuntimeError(f"recording {self.file} ended with {status}:\n{self.out.read_text()[-2000:]}")
        shutil.move(self.part, self.place)
        took = time.perf_counter() - self.began
        print(f"recorded {self.file.relative_to(ROOT)} in {took:.0f} s", flush=True)


def forked(work: Callable[[], int | None], out: Path) -> int:
    """Start `work` in a child, silent and with its own group, so that whatever it starts ends with it."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    os.setsid()
    code = 99
    try:
        with out.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = work() or 0
    finally:
        sys.stdout.flush()
        os._exit(code)


@dataclass(frozen=True, slots=True)
class Selection:
    """The tests that may detect a fault, in the order to run them, and how long all of them and the longest take."""

    tests: Sequence[str]
    seconds: float = 0.0
    longest: float = 0.0


def selected(mutant: Mutant, records: Mapping[Path, FileRecord]) -> Selection:
    """The tests that run the fewest functions come first: they are the most specific."""
    folders = [TESTS / "unit" / mutant.package, TESTS / mutant.package, *(TESTS / name for name in EVERYWHERE)]
    if mutant.package == "api":  # the commands do nothing but call it
        folders.append(TESTS / "cli")
    named = re.compile(rf"\b{re.escape(mutant.module)}\b")
    near = {
        file: record for file, record in records.items() if file.parent in folders or named.search(file.read_text())
    }
    function = f"{mutant.module}:{mutant.fault.function}"
    chosen = {file: tests for file, record in near.items() if (tests := record.runs(function))}
    if not chosen:  # a function that only other packages run
        chosen = {file: tests for file, record in records.items() if (tests := record.runs(function))}
    if not chosen:  # outside of functions, or in a function younger than the record
        chosen = {file: list(record.ran) for file, record in near.items() if mutant.module in record.modules}
    if not any(chosen.values()):  # of a module that is only imported by subprocesses of tests
        chosen = {file: list(record.ran) for file, record in near.items() if "subprocess" in file.read_text()}
    chosen = {file: tests for file, tests in chosen.items() if tests}
    for file, tests in chosen.items():
        tests.sort(key=lambda test, ran=records[file].ran: len(ran[test]))
    order = sorted(
        chosen, key=lambda file: (not records[file].touches(mutant.module), len(records[file].ran[chosen[file][0]]))
    )
    seconds = [records[file].seconds[test] for file in order for test in chosen[file]]
    return Selection([test for file in order for test in chosen[file]], sum(seconds), max(seconds, default=0.0))


def tried(mutants: Sequence[Mutant], records: Mapping[Path, FileRecord], jobs: int) -> list[Mutant]:
    """Try all of them, `jobs` at once; those that no test detects."""
    survivors: list[Mutant] = []
    waiting, running = collections.deque(enumerate(mutants, 1)), dict[Slot, tuple[int, Mutant]]()
    with tempfile.TemporaryDirectory() as name:
        began, folder = time.perf_counter(), Path(name)
        shutil.copytree(SOURCE, folder / "src" / PACKAGE)
        compileall.compile_dir(folder / "src", quiet=2)
        slots = [Slot(folder / "src", folder / str(number)) for number in range(jobs)]
        print(f"{jobs} copies of the package made in {time.perf_counter() - began:.0f} s", flush=True)
        while waiting or running:
            while waiting and slots:
                slot, (number, mutant) = slots.pop(), waiting.popleft()
                slot.start(mutant, selected(mutant, records))
                running[slot] = (number, mutant)
            for slot, (number, mutant) in list(running.items()):
                verdict = slot.verdict()
                if verdict is None:
                    continue
                slots.append(slot)
                del running[slot]
                caught, reason = verdict
                if not caught:
                    survivors.append(mutant)
                print(f"{number:4} {'caught  ' if caught else 'SURVIVED'} {mutant}\n     {reason}", flush=True)
            time.sleep(0.02)
    return survivors


class Slot:
    """A copy of the package that has one fault at a time, and the process that tests it."""

    def __init__(self, compiled: Path, folder: Path) -> None:
        self.folder = folder
        self.copy = folder / "src"
        shutil.copytree(compiled, self.copy)  # modification times are copied too, so compiled files stay valid

    def start(self, mutant: Mutant, selection: Selection) -> None:
        self.mutant, self.selection, self.began = mutant, selection, time.perf_counter()
        path = self.copy / mutant.file.relative_to(SOURCE.parent)
        path.write_bytes(mutant.fault.applied(mutant.file.read_bytes()))
        shutil.rmtree(self.folder / "tests", ignore_errors=True)
        self.process = forked(self._run, self.folder / "out") if selection.tests else 0

    def _run(self) -> int:
        seconds = 60 + 5 * int(self.selection.seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["PYTHONPATH"] = str(self.copy)
        sys.path.insert(0, str(self.copy))
        importlib.invalidate_caches()
        limit = f"--timeout={20 + 10 * self.selection.longest:.0f}"
        words = [*options(self.folder / "tests"), "-x", limit, *self.selection.tests]
        return int(pytest.main(words, plugins=[_First(self.folder / "first")]))

    def verdict(self) -> tuple[bool, str] | None:
        """Whether the fault was caught, and by what; nothing while the tests run."""
        took = time.perf_counter() - self.began
        status = 0
        if self.process:
            done, status = os.waitpid(self.process, os.WNOHANG)
            late = took > 120 + 20 * self.selection.seconds
            if not done and not late:
                return None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process, signal.SIGKILL)
            if not done:
                os.waitpid(self.process, 0)
                status = signal.SIGKILL
        shutil.copy2(self.mutant.file, self.copy / self.mutant.file.relative_to(SOURCE.parent))
        return self._judged(status, took)

    def _judged(self, status: int, took: float) -> tuple[bool, str]:
        first = self.folder / "first"
        failed_test = first.read_text() if first.exists() else ""
        first.unlink(missing_ok=True)
        if not self.selection.tests:
            return False, "no test runs it"
        if status == 0:
            return False, f"{len(self.selection.tests)} tests in {took:.0f} s"
        if os.WIFSIGNALED(status):
            return True, f"by signal {os.WTERMSIG(status)} after {took:.0f} s"
        return True, f"{failed_test or 'not a test could be collected'} in {took:.0f} s"


class _First:
    """Records the first test that fails."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.path.write_text(report.nodeid)


def print_shares(mutants: Sequence[Mutant], survivors: Sequence[Mutant]) -> int:
    """Print the shares; 1 if too few were caught."""
    for package, (number, missed) in sorted(_by_package(mutants, survivors)):
        print(f"{package:12} {number - missed:4} of {number:4} caught")
    caught = len(mutants) - len(survivors)
    print(f"{caught} of {len(mutants)} faults caught ({caught / max(1, len(mutants)):.0%}); survived:")
    for mutant in survivors:
        print(f"  {mutant}")
    return int(caught < WANTED * len(mutants))


def _by_package(mutants: Sequence[Mutant], survivors: Sequence[Mutant]) -> Iterator[tuple[str, tuple[int, int]]]:
    all_, missed = (collections.Counter(mutant.package for mutant in some) for some in (mutants, survivors))
    return ((package, (number, missed[package])) for package, number in all_.items())


if __name__ == "__main__":
    sys.exit(main())
