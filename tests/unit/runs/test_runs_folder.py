"""A run folder belongs to one run, and a kill at any moment costs nothing that was written."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from vitadel.errors import UsageError
from vitadel.runs import Run, describe, fingerprint, read_json, write_json, write_whole
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


def test_a_part_that_appears_or_vanishes_makes_another_run(tmp_path: Path) -> None:
    claim(tmp_path / "run", seed=0)
    with pytest.raises(UsageError, match="parts.data"):
        claim(tmp_path / "run", seed=0, data="digits")


def test_what_a_kill_left_half_written_is_in_nobodys_way(tmp_path: Path) -> None:
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


def test_a_folder_of_something_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="is not empty and not a run folder"):
        claim(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file; --run wants a folder"):
        claim(tmp_path / "file")


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write .*Choose a folder you may write to"):
        claim(tmp_path / "file" / "run")


def test_a_folder_one_may_not_write_or_enter_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path / "run")
    opened = Path.open

    def locked(path: Path, mode: str = "r", *more: object, **others: object) -> object:
        if mode == "w":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, *more, **others)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", locked)
    with pytest.raises(UsageError, match="cannot write to .*run: Permission denied. Make it writable, or choose a new"):
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
        "from pathlib import Path; from vitadel.runs import Run; from vitadel.errors import UsageError\n"
        f"try: Run.claim(Path(r'{held.folder}'), 'train', {{'seed': 1}}, device='cpu')\n"
        "except UsageError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "is in use by another process" in done.stdout


def test_reading_needs_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a run folder: it has no manifest\.json"):
        Run.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UsageError, match="is not readable JSON"):
        _ = Run.open(tmp_path).manifest


def test_the_manifest_records_what_a_run_needs_to_be_repeated(tmp_path: Path) -> None:
    manifest = claim(tmp_path / "run").manifest
    assert manifest["parts"] == {"recipe": {"is": "Outer", "inner": {"is": "Inner", "eps": 0.1}, "steps": 3}}
    assert manifest["hashes"] == {"recipe": fingerprint(Outer(Inner(0.1)))}
    assert {"versions", "commit", "machine", "device", "command", "created"} <= set(manifest)
    assert isinstance(manifest["versions"], dict)
    assert manifest["versions"]["torch"]


def test_log_lines_of_a_step_done_twice_count_once_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    for step, loss in ((10, 3.0), (20, 2.0), (10, 2.5)):
        run.log("step", step=step, loss=loss)
    run.log("holdout", step=20, clean=0.5)
    with (run.folder / "log.jsonl").open("a") as handle:
        handle.write('{"event": "step", "step": 30, "lo')
    assert [(entry["step"], entry["loss"]) for entry in run.read_log("step")] == [(10, 2.5), (20, 2.0)]
    assert [entry["clean"] for entry in run.read_log("holdout")] == [0.5]


def test_a_torn_last_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    run = claim(tmp_path / "run")
    (run.folder / "log.jsonl").write_text('{"event": "step", "st')
    run.log("step", step=1)
    assert [entry["step"] for entry in run.read_log("step")] == [1]


def test_describe_names_types_and_functions_and_refuses_what_it_cannot_say() -> None:
    assert describe({"a": (1, None, True), "f": fingerprint, "p": Path("x")}) == {
        "a": [1, None, True],
        "f": "vitadel.runs.manifest.fingerprint",
        "p": "x",
    }
    with pytest.raises(TypeError, match="a manifest cannot hold a set"):
        describe({1, 2})


def test_fingerprints_do_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1, "b": 3})


def test_differences_are_leaves() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3, "d": 4}}) == ["a.c: 2 -> 3", "a.d: null -> 4"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "file.json"
    write_json(target, {"old": 1})

    def breaks(beside: Path) -> None:
        beside.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(target, breaks)
    assert json.loads(target.read_text()) == {"old": 1}
    assert os.listdir(tmp_path) == ["file.json"]


def test_nan_never_enters_a_json_file(tmp_path: Path) -> None:
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
def test_a_hostile_manifest_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    for read in (lambda: Run.open(tmp_path).manifest, lambda: claim(tmp_path)):
        with pytest.raises(UsageError, match=reason) as refused:
            read()
        assert len(str(refused.value)) < 300


def test_json_is_read_from_regular_files_only(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")  # to read it would wait for ever
    for name in ("folder.json", "pipe.json"):
        with pytest.raises(UsageError, match=f"{name} is not readable JSON .it is no regular file"):
            read_json(tmp_path / name)
    with pytest.raises(UsageError, match="does not exist"):
        read_json(tmp_path / "none.json")
