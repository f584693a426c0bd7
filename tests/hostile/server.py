"""Commands that start in milliseconds, with an injected fault.

A fork server imports everything once; a command is a fork of it that calls the command line's `main`. In the fork an
audit hook counts the file operations below the case's folder: at a given one it sends a signal, raises an OSError or
limits how large a file may become.
"""

import contextlib
import dataclasses
import errno
import faulthandler
import functools
import multiprocessing
import os
import resource
import select
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

# what commands import while they run: everything, so that none waits for it
_PRELOADED = (
    *("vitadel.cli", "vitadel.analyze", "vitadel.evaluate", "vitadel.models", "vitadel.recipes"),
    *("vitadel.report", "vitadel.evaluate.suites", "vitadel.recipes.published_tables", "vitadel.recipes.sweep"),
    *("torch", "timm", "accelerate", "pyarrow.parquet", "rich.table", "safetensors.torch", "sklearn.datasets"),
    *("scipy.stats", "matplotlib.pyplot", "matplotlib.backends.backend_pdf", "jinja2", "PIL.Image", "torchvision"),
    *("torch._dynamo", "torch.utils.flop_counter"),
)
# a command that waits or computes for so long without having begun its work counts as hanging
HANG_SECONDS = 20.0
# seconds of one CPU that a command is watched for once it works
_WATCHED = 4.0
_MEMORY = 8 * 2**30


@dataclass(frozen=True)
class Fault:
    """What happens at the `at`-th file operation of these `kinds`, counted from 1.

    `action` is `signal` (number: which), `error` (number: the errno) or `limit` (number: bytes that a file may have).
    A `lasting` error meets all later operations of these kinds, too; a limit always lasts.
    """

    action: str
    number: int
    at: int
    kinds: frozenset[str]
    lasting: bool = False

    def __str__(self) -> str:
        what = {"signal": _signal_name, "error": errno.errorcode.__getitem__, "limit": "{} bytes".format}
        lasting = " and after" if self.lasting else ""
        return f"{self.action} {what[self.action](self.number)} at {'/'.join(sorted(self.kinds))} {self.at}{lasting}"


def _signal_name(number: int) -> str:
    return signal.Signals(number).name


@dataclass(frozen=True)
class Order:
    """A command to run in `folder`."""

    words: tuple[str, ...]
    folder: Path
    fault: Fault | None = None
    # functions of this module, called before the command
    prepare: tuple[str, ...] = ()
    stdout: str | None = None


@dataclass(frozen=True)
class Ended:
    """How a command ended; `operations` counts its file operations by kind, of one that was not killed."""

    code: int
    out: str
    err: str
    seconds: float
    # it was stopped because it used up its time, while it worked or without having begun
    working: bool = False
    hung: bool = False
    operations: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def error_lines(self) -> list[str]:
        """Standard error without lines of progress."""
        return [line for line in self.err.splitlines() if not _is_progress(line)]


def _is_progress(line: str) -> bool:
    head, _, rest = line.partition(": ")
    done, slash, total = rest.split(" ")[0].partition("/")
    return bool(head and slash) and done.isdecimal() and total.isdecimal()


class Server:
    """The fork server, and commands started from it."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(_PRELOADED))
        self._starting = threading.Lock()

    def start(self, order: Order) -> "Started":
        """Start a command in parallel to the caller."""
        with self._starting:  # or a process started at the same time would keep the ends of these pipes open
            pipes = [self._context.Pipe(duplex=False) for _ in range(3)]
            writers = [writer for _, writer in pipes]
            process = self._context.Process(target=_child, args=(order, *writers))
            process.start()
            for writer in writers:
                writer.close()
        return Started(process, [reader for reader, _ in pipes], time.monotonic())

    def run(self, order: Order, limit: float = 300.0) -> Ended:
        """A command from beginning to end."""
        return self.start(order).wait(limit)


@dataclass
class Started:
    """A command at work."""

    process: ForkServerProcess
    readers: list[Connection]
    began: float

    def send(self, number: int) -> None:
        """A signal to the command, and to all that it started."""
        if self.process.pid is not None and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet, or has just ended
                os.killpg(self.process.pid, number)

    def wait(self, limit: float, *, works: Callable[[], bool] | None = None) -> Ended:
        """Its end, after `limit` seconds at the latest.

        With `works`, it is stopped after HANG_SECONDS of its own, or earlier once that returns that it works.
        """
        texts = {reader.fileno(): bytearray() for reader in self.readers[:2]}
        stopped = working = False
        while self._is_alive(texts):
            seconds, cpu = time.monotonic() - self.began, self._cpu_seconds()
            working = works is not None and cpu > _WATCHED and works()
            idle = seconds > HANG_SECONDS and cpu < seconds / 50
            if seconds > limit or working or (works is not None and (cpu > HANG_SECONDS or idle)):
                stopped = True
                self.send(signal.SIGUSR1)  # faulthandler prints where it is
                time.sleep(0.5)
                self.process.kill()
                self.send(signal.SIGKILL)
                break
        self.process.join()
        out, err = (bytes(text).decode(errors="replace") for text in self._collected(texts))
        operations = self._operations()
        for reader in self.readers:
            reader.close()
        code = self.process.exitcode
        assert code is not None
        return Ended(code, out, err, time.monotonic() - self.began, working, stopped and not working, operations)

    def _is_alive(self, texts: dict[int, bytearray]) -> bool:
        """Whether it is still running; collects its output."""
        ready, *_ = select.select([*texts, self.process.sentinel], [], [], 0.1)
        for file in set(ready) & texts.keys():
            texts[file] += os.read(file, 65536)
        if len(ready) and self.process.sentinel not in ready:
            time.sleep(0.01)  # a closed pipe is always ready
        return self.process.sentinel not in ready

    def _collected(self, texts: dict[int, bytearray]) -> list[bytearray]:
        """All it has written, once it has ended."""
        for file, text in texts.items():
            while select.select([file], [], [], 0)[0] and (more := os.read(file, 65536)):
                text += more
        return list(texts.values())

    def _cpu_seconds(self) -> float:
        try:
            words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def _operations(self) -> Mapping[str, int]:
        try:
            counted: Mapping[str, int] = self.readers[2].recv() if self.readers[2].poll() else {}
        except EOFError:
            return {}
        return counted


# ------------------------------------------------------------------- in the fork


def _child(order: Order, out: Connection, err: Connection, counts: Connection) -> None:
    """The command itself, with its own group, pipes and limits."""
    os.setsid()
    os.dup2(out.fileno() if order.stdout is None else os.open(order.stdout, os.O_WRONLY), 1)
    os.dup2(err.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(order.folder)
    multiprocessing.set_start_method("fork", force=True)  # what a command of its own would have
    sys.argv = ["vitadel", *order.words]
    import torch

    torch.set_num_threads(1)
    for name in order.prepare:
        globals()[name]()
    operations = Operations(order.folder, order.fault)
    from vitadel.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    finally:
        operations.stop()
        counts.send(dict(operations.counts))
        sys.stdout.flush()


class Operations:
    """Counts file operations below a folder and injects the fault at its position."""

    def __init__(self, folder: Path, fault: Fault | None) -> None:
        self.counts: Counter[str] = Counter()
        self._folder, self._fault = f"{folder}{os.sep}", fault
        self._met, self._on = 0, True
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit is then the error EFBIG
        original = os.fsync

        def fsync(file: int) -> None:
            sys.audit("hostile.fsync", os.readlink(f"/proc/self/fd/{file}"))
            original(file)

        vars(os)["fsync"] = fsync
        sys.addaudithook(self._hook)

    def stop(self) -> None:
        self._on = False

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._on or (kind := _kind(event, arguments)) is None or not self._is_inside(arguments[0]):
            return
        self.counts[kind] += 1
        fault = self._fault
        if fault is None or kind not in fault.kinds:
            return
        self._met += 1
        if self._met == fault.at or (fault.lasting and self._met > fault.at):
            _inject(fault)

    def _is_inside(self, path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):  # the number of an open file
            return False
        text = os.fsdecode(path)
        return os.path.join(self._folder, text).startswith(self._folder) and ".." not in text.split(os.sep)


def _inject(fault: Fault) -> None:
    if fault.action == "signal":
        os.kill(os.getpid(), fault.number)
    elif fault.action == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.number, resource.RLIM_INFINITY))
    else:
        raise OSError(fault.number, os.strerror(fault.number))


_KINDS = {
    "os.rename": "rename",
    "os.mkdir": "mkdir",
    "os.remove": "remove",
    "os.rmdir": "remove",
    "os.link": "link",
    "hostile.fsync": "fsync",
}
# what changes a folder; reading is another kind
CHANGES = frozenset((*_KINDS.values(), "write"))


def _kind(event: str, arguments: tuple[object, ...]) -> str | None:
    if event != "open":
        return _KINDS.get(event)
    _, mode, flags = arguments
    if isinstance(mode, str):
        return "write" if set(mode) & set("wax+") else "read"
    return "write" if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) else "read"


def small_tables() -> None:
    """Evaluations write their rows after a few images, not after hundreds or 20 seconds."""
    from vitadel.evaluate import store

    vars(store)["ROWS_AT_ONCE"] = 6
    vars(store)["SECONDS_BETWEEN_WRITES"] = 0.0


def small_demo() -> None:
    """`vitadel demo` in seconds: two epochs, and few images to train on and to attack."""
    from vitadel import recipes

    few = ["plan.epochs=4", "plan.warmup_epochs=1", "plan.checkpoint_every_steps=1", "data=digits[:32]"]
    table = dict(recipes.RECIPES)
    for name in ("digits-standard", "digits-adversarial"):
        table[name] = functools.partial(_shortened, table[name], few)
    vars(recipes)["RECIPES"] = table


def _shortened(make: Callable[[], Any], settings: list[str]) -> Any:
    from vitadel.recipes import override

    return override(make(), settings)
