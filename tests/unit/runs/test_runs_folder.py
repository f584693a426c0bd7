"""A run folder belongs to one run, and an interruption at any point loses nothing that was written."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from vitadel.core.errors import UsageError
from vitadel.core.files import read_json, write_atomically, write_json
from vitadel.runs import LogEntry, Run, describe, fingerprint
from vitadel.runs.manifest import differences


@dataclass(frozen=True)
class Inner:
    eps: float


@dataclass(frozen=True)
class Outer:
    inner: Inner
    steps: int = 3


def claim(folder: Path, **parts: object) -> Run:
    return Run.claim(folder, "train", parts or {"recipe": Outer(Inner(0.1))}, device="cpu")


def test_a_new_folder_is_claimed_and_the_same_run_resumes_it(tmp_path: Path) -> None:
    first = claim(tmp_path / "run")
    assert not first.resumed
    del first
    assert claim(tmp_path / "run").resumed


def test_another_run_is_refused_and_the_difference_named(tmp_path: Path) -> None:
    run = claim(tmp_path / "run", recipe=Outer(Inner(0.1)), seed=0)
    before = (run.folder / "manifest.json").read_text()
    with pytest.raises(UsageError, match="belongs to another run; it differs in parts.recipe.inner.eps: 0.1 -> 0.2"):
        claim(tmp_path / "run", recipe=Outer(Inner(0.2)), seed=0)
    with pytest.raises(UsageError, match=r'differs in kind: "train" -> "evaluate"'):
        Run.claim(tmp_path / "run", "evaluate", {"recipe": Outer(Inner(0.1)), "seed": 0}, device="cpu")
    assert (run.folder / "manifest.json").read_text() == before


def test_an_added_or_removed_part_makes_another_run(tmp_path: Path) -> None:
    claim(tmp_path / "run", seed=0)
    with pytest.raises(UsageError, match="parts.data"):
        claim(tmp_path / "run", seed=0, data="digits")


def test_partly_written_files_of_a_killed_process_are_ignored(tmp_path: Path) -> None:
    left = [".manifest.json.71.part", "checkpoints/.step-7.pt.71.part", "eval/quick/shown/.3.pt.71.part"]
    left.append("study/parts/.one.pt.71.part")
    (tmp_path / left[0]).write_text("{")
    claim(tmp_path)
    for name in left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("half")
    (tmp_path / "checkpoints" / "step-6.pt").write_text("whole")
    assert claim(tmp_path).resumed
    assert not any((tmp_path / name).exists() for name in left)
    assert (tmp_path / "checkpoints" / "step-6.pt").exists()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="is not empty and not a run folder"):
        claim(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file, and a run needs a folder"):
        claim(tmp_path / "file")


def test_a_folder_that_cannot_be_created_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write .*Choose a folder you may write to"):
        claim(tmp_path / "file" / "run")


def test_an_inaccessible_folder_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path / "run")
    opened = Path.open

    def locked(path: Path, mode: str = "r", *more: object, **others: object) -> object:
        if mode == "w":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, *more, **others)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", locked)
    with pytest.raises(UsageError, match="run: Permission denied. Make it writable, or choose another"):
        claim(tmp_path / "run")

    def hidden(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", hidden)
    for look in (claim, Run.open):
        with pytest.raises(UsageError, match="cannot look into .*run: Permission denied. Make it readable"):
            look(tmp_path / "run")


def test_two_processes_cannot_write_to_one_run(tmp_path: Path) -> None:
    held = claim(tmp_path / "run", seed=1)
    code = (
        "from pathlib import Path; from vitadel.runs import Run; from vitadel.core.errors import UsageError\n"
        f"try: Run.claim(Path(r'{held.folder}'), 'train', {{'seed': 1}}, device='cpu')\n"
        "except UsageError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "is in use by another process" in done.stdout


def test_of_two_simultaneous_claims_one_succeeds(tmp_path: Path) -> None:
    """Each thread opens the lock itself, as a process would: a lock belongs to what was opened."""
    for number in range(20):
        folder, together, claimed = tmp_path / str(number), threading.Barrier(3), list[tuple[int, Run]]()

        def take(seed: int, folder: Path = folder, together: threading.Barrier = together) -> None:
            together.wait()
            with contextlib.suppress(UsageError):
                claimed.append((seed, claim(folder, seed=seed)))  # noqa: B023

        threads = [threading.Thread(target=take, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ((seed, run),) = claimed
        assert run.manifest.parts == {"seed": seed}


def test_a_refused_claim_leaves_nothing_and_releases_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not a run folder"):
        claim(tmp_path / "thesis")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]

    def full(*arguments: object) -> None:
        raise UsageError("cannot write")

    with monkeypatch.context() as patch:
        patch.setattr("vitadel.runs.run.write_json", full)
        with pytest.raises(UsageError, match="cannot write") as refused:
            claim(tmp_path / "run")
    assert refused.tb is not None  # holding the error does not hold the lock
    assert not claim(tmp_path / "run").resumed


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")  # not on Windows

    def without(*arguments: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(UsageError, match="cannot lock .*: Function not implemented. Choose a --run on a file system"):
        claim(tmp_path / "run")


def test_a_name_that_is_too_long_is_a_usage_error(tmp_path: Path) -> None:
    for look in (claim, Run.open):
        with pytest.raises(UsageError, match="cannot look into .*: File name too long"):
            look(tmp_path / ("x" * 300))


def test_a_name_that_is_not_utf8_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"caf\\udce9' is not UTF-8, .* Choose another --run"):
        claim(tmp_path / "caf\udce9")
    assert not list(tmp_path.iterdir())


def test_a_difference_in_long_values_is_short(tmp_path: Path) -> None:
    long = [f"image {number}: cannot be read" for number in range(400)]
    claim(tmp_path / "run", skipped=long, data="d" * 5000, **{f"{'n' * 500}{n}": n for n in range(5)})
    with pytest.raises(UsageError) as refused:
        claim(tmp_path / "run", skipped=[*long[:200], "another", *long[200:]], data={"spec": "digits"})
    message = str(refused.value).removeprefix(str(tmp_path))
    assert len(message) < 1000
    assert 'image 199: cannot be read", "image 200' in message
    assert 'cannot be read", "another", "i' in message
    assert "and 4 more" in message


def test_reading_needs_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a run folder: it has no manifest\.json"):
        Run.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UsageError, match="is not readable JSON"):
        _ = Run.open(tmp_path).manifest


def test_the_manifest_records_what_a_run_needs_to_be_repeated(tmp_path: Path) -> None:
    manifest = claim(tmp_path / "run").manifest
    assert manifest.parts == {"recipe": {"is": "Outer", "inner": {"is": "Inner", "eps": 0.1}, "steps": 3}}
    assert manifest.hashes == {"recipe": fingerprint(Outer(Inner(0.1)))}
    assert manifest.versions["torch"]
    assert manifest.machine["system"]
    assert manifest.created.endswith("Z")
    assert (manifest.device, manifest.command) == ("cpu", None)
    assert (manifest.text("recipe", "inner", "is"), manifest.find("recipe", "steps")) == ("Inner", 3)
    assert (manifest.text("recipe", "steps"), manifest.find("model", "sha256")) == ("", None)


def test_repeated_log_steps_count_once_and_partial_lines_are_ignored(tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    for step, loss in ((10, 3.0), (20, 2.0), (10, 2.5)):
        run.log("step", step=step, loss=loss)
    run.log("holdout", step=20, clean=0.5)
    with (run.folder / "log.jsonl").open("a") as handle:
        handle.write('{"event": "step", "step": 30, "lo')
    assert [(entry["step"], entry["loss"]) for entry in run.read_log("step")] == [(10, 2.5), (20, 2.0)]
    assert [entry["clean"] for entry in run.read_log("holdout")] == [0.5]


def logged(folder: Path) -> Run:
    run = claim(folder)
    for step in (1, 2, 3):
        run.log("step", step=step, loss=1 / step)
    return run


@pytest.mark.parametrize(
    "line",
    [
        b'{"event": "step", "step": 9, "loss": 2\xff}',
        b'{"event": "step", "step": "9", "loss": 2}',
        b'{"event": "step", "step": null, "loss": 2}',
        b'{"event": "step", "step": [9], "loss": 2}',
        b'{"event": "step", "step": NaN, "loss": 2}',
        b'{"event": "step", "step": true, "loss": 2}',
        b'{"event": "step", "step": 9, "loss": "low"}',
        b'{"event": "step", "step": ' + b"9" * 5000 + b"}",
        b'{"event": "step", "step": ' + b"9" * 400 + b', "loss": 2}',
        b'{"event": "step", "step": 9, "loss": ' + b"9" * 400 + b"}",
        b"[" * 100_000 + b"}",
        b"\xff\xfe}",
        b"[1]}",
    ],
)
def test_damaged_log_lines_are_skipped_and_counted(tmp_path: Path, line: bytes) -> None:
    run = logged(tmp_path)
    with (tmp_path / "log.jsonl").open("ab") as handle:
        handle.write(line + b"\n")
    run.log("step", step=4, loss=0.5)
    assert [entry["step"] for entry in run.read_log("step")] == [1, 2, 3, 4]
    assert run.damaged_log_lines == 1


def test_a_flipped_bit_in_the_log_changes_no_number(tmp_path: Path) -> None:
    run, path = logged(tmp_path), tmp_path / "log.jsonl"
    whole = path.read_bytes()
    written = {entry["step"]: entry["loss"] for entry in run.read_log("step")}
    for place in range(len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        result = {entry["step"]: entry["loss"] for entry in run.read_log("step")}
        assert result.items() <= written.items()
        assert len(result) == 3 or run.damaged_log_lines, place


def test_a_partial_last_line_is_not_damage(tmp_path: Path) -> None:
    run = logged(tmp_path)
    whole = (tmp_path / "log.jsonl").read_bytes()
    (tmp_path / "log.jsonl").write_bytes(whole[:-40])
    run.log("step", step=3, loss=0.25)
    assert [entry["loss"] for entry in run.read_log("step")] == [1.0, 0.5, 0.25]
    assert run.damaged_log_lines == 0


def test_a_log_of_an_earlier_version_without_checksums_is_read(tmp_path: Path) -> None:
    run = claim(tmp_path)
    (tmp_path / "log.jsonl").write_text('{"event": "step", "step": 1, "loss": null}\n{"event": "alarm", "at": 1}\n')
    assert run.read_log("step") == [LogEntry("step", {"step": 1, "loss": None})]
    assert run.read_log("alarm") == [LogEntry("alarm", {"at": 1})]
    assert run.damaged_log_lines == 0


def test_a_partial_last_line_does_not_damage_the_next(tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    (run.folder / "log.jsonl").write_text('{"event": "step", "st')
    run.log("step", step=1)
    assert [entry["step"] for entry in run.read_log("step")] == [1]


def test_describe_names_types_and_functions_and_refuses_other_objects() -> None:
    assert describe({"a": (1, None, True), "f": fingerprint, "p": Path("x")}) == {
        "a": [1, None, True],
        "f": "vitadel.runs.manifest.fingerprint",
        "p": "x",
    }
    with pytest.raises(TypeError, match="a manifest cannot hold a set"):
        describe({1, 2})


def test_fingerprints_do_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1, "b": 3})


def test_differences_are_reported_per_value() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3, "d": 4}}) == ["a.c: 2 -> 3", "a.d: null -> 4"]


def test_a_failed_write_leaves_the_old_file_and_no_partial_file(tmp_path: Path) -> None:
    target = tmp_path / "file.json"
    write_json(target, {"old": 1})

    def breaks(temporary: Path) -> None:
        temporary.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, breaks)
    assert read_json(target) == {"old": 1}
    assert os.listdir(tmp_path) == ["file.json"]


def test_a_flipped_bit_in_a_json_file_is_detected_or_harmless(tmp_path: Path) -> None:
    path, content = tmp_path / "file.json", {"spec": "digits", "n": 10, "shares": [0.25, 1e-9, None], "ok": True}
    write_json(path, content)
    whole, outcomes = path.read_bytes(), []
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            outcomes.append(str(read_json(path) == content))
        except UsageError as error:
            outcomes.append("named" if str(path) in str(error) else str(error))
    assert set(outcomes) == {"True", "named"}
    assert outcomes.count("True") < len(outcomes) / 3


def test_a_json_file_without_a_hash_is_read(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{"old": 1}')
    assert read_json(tmp_path / "file.json") == {"old": 1}
    (tmp_path / "file.json").write_text("{}")
    assert read_json(tmp_path / "file.json") == {}


def test_a_json_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read .*: Is a directory. Restore it, or delete it and run the same"):
        read_json(tmp_path)


def test_a_manifest_of_an_earlier_version_is_checked_by_the_hashes_of_its_parts(tmp_path: Path) -> None:
    run = claim(tmp_path / "run", seed=1)
    path = run.folder / "manifest.json"
    old = read_json(path)
    path.write_text(json.dumps(old))
    assert run.manifest.to_json() == old
    path.write_text(json.dumps({**old, "parts": {"seed": 2}}))
    with pytest.raises(UsageError, match="manifest.json is damaged or was edited: its seed does not .* Restore it"):
        _ = run.manifest
    path.write_text("{}")
    with pytest.raises(UsageError, match="does not say what the run is: .* Restore it from a copy, or choose another"):
        claim(tmp_path / "run", seed=1)


def test_nan_is_never_written_to_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "file.json", {"loss": float("nan")})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "is nested more than 100 levels deep"),
        ('{"parts": ' + "[" * 100_000 + "]" * 100_000 + "}", "is nested more than 100 levels deep"),
        ('{"seed": ' + "9" * 5_000 + "}", "has an integer of 5000 digits"),
        ("{", "is not readable JSON"),
        ("[]", "should hold a JSON object, got a list"),
    ],
)
def test_a_malicious_manifest_is_shown_on_one_line(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    for read in (lambda: Run.open(tmp_path).manifest, lambda: claim(tmp_path)):
        with pytest.raises(UsageError, match=reason) as refused:
            read()
        assert len(str(refused.value)) < 300


def test_json_is_read_from_regular_files_only(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")  # reading it would wait forever
    with pytest.raises(UsageError, match="cannot read .*folder.json: Is a directory"):
        read_json(tmp_path / "folder.json")
    with pytest.raises(UsageError, match="pipe.json is not readable JSON .it is not a regular file"):
        read_json(tmp_path / "pipe.json")
    with pytest.raises(UsageError, match="does not exist"):
        read_json(tmp_path / "none.json")


@pytest.mark.timeout(20)
def test_a_named_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "report.html"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match=r"cannot write .*report\.html: it is a named pipe\. Give the path of a"):
        write_json(pipe, {"a": 1})
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.timeout(20)
def test_named_pipes_in_a_run_folder_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    run = Run(tmp_path)
    for use in (lambda: run.log("step", step=1), lambda: run.read_log("step"), lambda: run.damaged_log_lines):
        with pytest.raises(UsageError, match=r"log\.jsonl: it is a named pipe"):
            use()
    (tmp_path / "claimed").mkdir()
    os.mkfifo(tmp_path / "claimed" / ".lock")
    with pytest.raises(UsageError, match=r"\.lock: it is a named pipe"):
        claim(tmp_path / "claimed")


def test_numbers_of_a_log_that_no_float32_holds_are_no_numbers(tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    run.log("step", step=1, loss=3e38, best=1e308, worst=-1e308)
    (entry,) = run.read_log("step")
    assert entry.numbers == {"step": 1, "loss": 3e38}
