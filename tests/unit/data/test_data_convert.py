"""Archives of generated images into shards: the same numbers, little memory, and every kind of invalid archive."""

import importlib
import io
import json
import os
import pickle
import re
import shlex
import signal
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vitadel.cli import main
from vitadel.core.errors import UsageError
from vitadel.data import Shards, convert

ROOT = Path(__file__).parents[3]
# by its name in the package one gets the function
MODULE = importlib.import_module("vitadel.data.shards.convert")
COUNT = 40
MAKE = "Write the archive that np.savez(path, image=..., label=...) makes."


def pictures(count: int = COUNT, size: int = 8, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def labels(count: int = COUNT, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(count) % 10


def save(path: Path, *, image: object = None, label: object = None, compressed: bool = False) -> Path:
    """An archive that is valid except for the given arrays."""
    write: Callable[..., None] = np.savez_compressed if compressed else np.savez
    write(path, image=pictures() if image is None else image, label=labels() if label is None else label)
    return path


def same(shards: Shards, images: NDArray[np.uint8], y: NDArray[np.int64]) -> None:
    rows = torch.arange(len(images))
    assert len(shards) == len(images)
    assert np.array_equal(shards.pixels(rows).permute(0, 2, 3, 1).numpy(), images)
    assert np.array_equal(shards.labels(rows).numpy(), y)


def refused(archive: Path, message: str, **settings: object) -> None:
    out = archive.parent / "out"
    with pytest.raises(UsageError, match=re.escape(message)):
        convert([archive], out, **settings)  # type: ignore[arg-type]
    assert not out.exists() or not list(out.iterdir())


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shard_images", [1000, 40, 17, 1])
@pytest.mark.parametrize("block", [1, 5 * 8 * 8 * 3, 2**20])
def test_shards_equal_the_archive(
    tmp_path: Path, compressed: bool, shard_images: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "BLOCK_BYTES", block)
    archive = save(tmp_path / "a.npz", compressed=compressed)
    reports: list[tuple[str, int, int]] = []
    shards = convert(
        [archive],
        tmp_path / "out",
        shard_images=shard_images,
        notify=lambda what, done, total, numbers: reports.append((what, done, total)),
    )
    with np.load(archive) as content:
        same(shards, content["image"], content["label"])
    same(Shards.read(tmp_path / "out"), pictures(), labels())
    assert (shards.num_classes, shards.image_size) == (10, 8)
    assert reports[-1] == ("converting", 40, 40)
    assert [done for _, done, _ in reports] == sorted({done for _, done, _ in reports})


def test_several_archives_are_concatenated(tmp_path: Path) -> None:
    archives = [
        save(tmp_path / f"{seed}.npz", image=pictures(seed=seed), label=labels(seed=seed), compressed=seed == 2)
        for seed in (2, 0, 1)
    ]
    shards = convert(archives, tmp_path / "out", shard_images=33)
    same(
        shards,
        np.concatenate([pictures(seed=seed) for seed in (2, 0, 1)]),
        np.concatenate([labels(seed=seed) for seed in (2, 0, 1)]),
    )
    assert [shard.count for shard in shards.index.shards] == [33, 33, 33, 21]


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int32", ">i2", "uint64"])
def test_labels_may_have_any_integer_type(tmp_path: Path, dtype: str) -> None:
    archive = save(tmp_path / "a.npz", label=labels().astype(dtype))
    same(convert([archive], tmp_path / "out"), pictures(), labels())


def test_keys_and_classes_can_be_chosen(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=pictures(), y=labels() * 30)
    shards = convert([tmp_path / "a.npz"], tmp_path / "out", image_key="x", label_key="y", num_classes=1000)
    assert shards.num_classes == 1000
    same(shards, pictures(), labels() * 30)


def test_headers_of_the_second_version_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for key, array in (("image", pictures()), ("label", labels())):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, version=(2, 0))
            archive.writestr(f"{key}.npy", buffer.getvalue())
    same(convert([tmp_path / "a.npz"], tmp_path / "out"), pictures(), labels())


def test_memory_stays_small(tmp_path: Path) -> None:
    count = 30_000  # 92 MB
    archive = save(tmp_path / "a.npz", image=pictures(count, 32), label=labels(count))
    tracemalloc.start()
    try:
        convert([archive], tmp_path / "out")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 * 2**20


# --- archives that are wrong ---------------------------------------------------------------------------------------


def test_files_of_other_formats_are_named(tmp_path: Path) -> None:
    refused(tmp_path / "none.npz", f"cannot read {tmp_path / 'none.npz'}: No such file or directory. Check the path.")
    (tmp_path / "folder.npz").mkdir()
    refused(tmp_path / "folder.npz", f"cannot read {tmp_path / 'folder.npz'}: Is a directory. Check the path.")
    for name, content in (("text.npz", b"hello"), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, f"{tmp_path / name} is not an .npz archive. {MAKE}")
    np.save(tmp_path / "one.npy", pictures())
    refused(tmp_path / "one.npy", f"{tmp_path / 'one.npy'} is not an .npz archive. {MAKE}")
    with pytest.raises(UsageError, match="no archive is named. Write at least one .npz file."):
        convert([], tmp_path / "out")


def test_missing_arrays_are_named_with_those_present(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pictures(), labels=labels())
    refused(tmp_path / "a.npz", "a.npz has no array 'image'. It has: images, labels. Write the names of the images and")
    refused(tmp_path / "a.npz", "a.npz has no array 'label'. It has: images, labels.", image_key="images")
    np.savez(tmp_path / "b.npz", image=pictures())
    refused(tmp_path / "b.npz", "b.npz has no array 'label'. It has: image. Write")
    np.savez(tmp_path / "c.npz")
    refused(tmp_path / "c.npz", "c.npz has no array 'image'. It has: none.")


WRONG_IMAGES: Mapping[str, tuple[object, str]] = {
    "float": (pictures() / 255.0, "must be uint8, got float64 [40, 8, 8, 3]. Write pixels from 0 to 255, not normaliz"),
    "int8": (pictures().astype(np.int8), "must be uint8, got int8 [40, 8, 8, 3]."),
    "channels first": (
        pictures().transpose(0, 3, 1, 2).copy(),
        "has its channels first, got uint8 [40, 3, 8, 8]. Write [N, H, W, 3]: image.transpose(0, 2, 3, 1).",
    ),
    "oblong": (
        pictures()[:, :4].copy(),
        "must be square images in color, got uint8 [40, 4, 8, 3]. Write [N, H, W, 3]",
    ),
    "gray": (pictures()[..., 0].copy(), "must be square images in color, got uint8 [40, 8, 8]."),
    "four channels": (np.zeros((40, 8, 8, 4), np.uint8), "must be square images in color, got uint8 [40, 8, 8, 4]."),
    "one number": (np.uint8(3), "must be square images in color, got uint8 []."),
    "no pixels": (np.zeros((40, 0, 0, 3), np.uint8), "must be square images in color, got uint8 [40, 0, 0, 3]."),
    "no image": (np.zeros((0, 8, 8, 3), np.uint8), "holds no image. Leave that archive out."),
    "Fortran order": (np.asfortranarray(pictures()), "is in Fortran order: its images do not lie one after the other."),
}


@pytest.mark.parametrize("case", WRONG_IMAGES)
def test_images_of_another_shape_are_named(tmp_path: Path, case: str) -> None:
    image, message = WRONG_IMAGES[case]
    archive = save(tmp_path / "a.npz", image=image, label=labels(0) if case == "no image" else None)
    refused(archive, f"'image' in {archive} {message}")


WRONG_LABELS: Mapping[str, tuple[object, str]] = {
    "float": (labels() * 1.0, "must be one whole number per image, got float64 [40]. Write class numbers, not scores"),
    "bool": (labels() > 4, "must be one whole number per image, got bool [40]."),
    "one-hot": (np.eye(10, dtype=np.int64)[labels()], "must be one whole number per image, got int64 [40, 10]."),
    "text": (labels().astype("U2"), "must be one whole number per image, got str64 [40]."),
}


@pytest.mark.parametrize("case", WRONG_LABELS)
def test_labels_of_another_shape_are_named(tmp_path: Path, case: str) -> None:
    label, message = WRONG_LABELS[case]
    archive = save(tmp_path / "a.npz", label=label)
    refused(archive, f"'label' in {archive} {message}")


def test_labels_out_of_range_are_named(tmp_path: Path) -> None:
    archive = save(tmp_path / "a.npz", label=labels()[:39])
    refused(archive, f"{archive} has 40 images and 39 labels. {MAKE}")
    archive = save(tmp_path / "b.npz", label=labels() - 1)
    refused(archive, f"{archive} has the label -1. Make labels count from 0.")
    archive = save(tmp_path / "c.npz", label=labels() + 65530)
    refused(archive, f"{archive} has the label 65539, but 65536 classes have labels from 0 to 65535. Write a larger")
    archive = save(tmp_path / "d.npz")
    refused(archive, f"{archive} has the label 9, but 9 classes have labels from 0 to 8. Write a larger", num_classes=9)
    for number in (0, 65537):
        refused(archive, f"the number of classes must lie between 1 and 65536, got {number}.", num_classes=number)
    refused(
        archive, "a shard must hold at least 1 image, got 0. Write for example 1000000, the default.", shard_images=0
    )


def test_archives_of_two_resolutions_are_named(tmp_path: Path) -> None:
    first, second = save(tmp_path / "a.npz"), save(tmp_path / "b.npz", image=pictures(size=16))
    message = f"{second} holds images of 16 x 16 pixels, {first} of 8 x 8. Convert them into separate folders."
    with pytest.raises(UsageError, match=re.escape(message)):
        convert([first, second], tmp_path / "out")


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("key", ["image", "label"])
def test_objects_are_never_unpickled(tmp_path: Path, key: str) -> None:
    trace = tmp_path / "trace"
    objects = np.empty(40, object)
    objects[:] = [Malicious(trace)] * 40
    np.savez(tmp_path / "a.npz", **{"image": pictures(), "label": labels(), key: objects})  # type: ignore[arg-type]
    refused(tmp_path / "a.npz", f"'{key}' in {tmp_path / 'a.npz'} holds Python objects, which are never unpickled.")
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("image.npy", pickle.dumps(Malicious(trace)))
        archive.writestr("label.npy", b"")
    refused(tmp_path / "b.npz", f"'image' in {tmp_path / 'b.npz'} is not a numpy array (")
    assert not trace.exists()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_a_truncated_archive_is_named(tmp_path: Path, compressed: bool, share: float) -> None:
    archive = save(tmp_path / "a.npz", compressed=compressed)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(share * len(whole))])
    refused(archive, f"{archive} is cut short or damaged: File is not a zip file. Fetch it again.")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_wrong_byte_among_the_pixels_is_detected(tmp_path: Path, compressed: bool, place: str) -> None:
    archive = save(tmp_path / "a.npz", compressed=compressed)
    content = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as opened:
        size = opened.getinfo("image.npy").compress_size
        start = opened.getinfo("label.npy").header_offset - size
    # the last bits of a compressed member may be padding
    content[start + (200 if place == "first" else size - 4 if compressed else size - 1)] ^= 0x10
    archive.write_bytes(content)
    refused(archive, f"{archive} is cut short or damaged: ")


@pytest.mark.parametrize("entries", [39, 41])
def test_an_array_that_contradicts_its_header_is_named(tmp_path: Path, entries: int) -> None:
    buffer, label = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array(buffer, pictures(41))
    np.lib.format.write_array(label, labels())
    header = buffer.getvalue()[:128].replace(b"(41,", b"(40,")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("image.npy", header + buffer.getvalue()[128 : 128 + entries * 192])
        archive.writestr("label.npy", label.getvalue())
    what = "ends before" if entries < 40 else "goes on after"
    refused(tmp_path / "a.npz", f"a.npz is cut short or damaged: 'image' {what} its 40 entries. Fetch it again.")


def test_damage_anywhere_is_detected_or_harmless(tmp_path: Path) -> None:
    """Nothing but UsageError, whichever byte is wrong; and what is accepted is what was meant."""
    archive = save(tmp_path / "a.npz", image=pictures(3), label=labels(3), compressed=True)
    whole, accepted = archive.read_bytes(), 0
    places = [*range(0, 250), *range(len(whole) - 250, len(whole)), *range(250, len(whole) - 250, 31)]
    for number, place in enumerate(places):
        archive.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << number % 8)]) + whole[place + 1 :])
        try:
            shards = convert([archive], tmp_path / f"out{number}")
        except UsageError:
            continue
        same(shards, pictures(3), labels(3))
        accepted += 1
    assert accepted < len(places) / 2


# --- folders, and work that was stopped ----------------------------------------------------------------------------


def test_a_folder_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    archive, out = save(tmp_path / "a.npz"), tmp_path / "out"
    out.mkdir()
    (out / "images-00000.npy").write_text("mine")
    message = f"{out} is not empty: it holds 'images-00000.npy'. Choose a new folder."
    with pytest.raises(UsageError, match=re.escape(message)):
        convert([archive], out)
    assert (out / "images-00000.npy").read_text() == "mine"
    assert [path.name for path in out.iterdir()] == ["images-00000.npy"]
    with pytest.raises(UsageError, match=re.escape(f"{archive} is a file; the shards need a folder. Choose another")):
        convert([archive], archive)


def test_finished_shards_are_never_overwritten(tmp_path: Path) -> None:
    archive, out = save(tmp_path / "a.npz"), tmp_path / "out"
    described = convert([archive], out).describe()
    with pytest.raises(UsageError, match=re.escape(f"{out} already holds shards. Use them, or choose a new folder.")):
        convert([save(tmp_path / "b.npz", image=pictures(seed=1))], out)
    assert Shards.read(out).describe() == described


class Stopped(BaseException):
    """Like Ctrl-C: not an Exception."""


@pytest.mark.parametrize("at", [1, 20, 40])
def test_an_interrupted_conversion_leaves_an_empty_folder(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "BLOCK_BYTES", 1)

    def stop(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if done == at:
            assert list((tmp_path / "out").iterdir())
            with pytest.raises(UsageError, match="out is unfinished. Run the `vitadel data convert` that was to fill"):
                Shards.read(tmp_path / "out")
            with pytest.raises(UsageError, match="another process is filling .*out. Wait for it, or choose a new"):
                convert([archive], tmp_path / "out")
            raise Stopped

    archive = save(tmp_path / "a.npz")
    with pytest.raises(Stopped):
        convert([archive], tmp_path / "out", shard_images=15, notify=stop)
    assert not list((tmp_path / "out").iterdir())
    same(convert([archive], tmp_path / "out"), pictures(), labels())


def killed(archive: Path, out: Path, at: str) -> int:
    """The exit of a child that kills itself after so many images, or when a file is to get this name."""
    child = os.fork()  # not a new interpreter: importing torch takes seconds
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    rename = Path.replace

    def stop(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        if str(done) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(path: Path, target: Path) -> Path:
        if target.name == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(path, target)

    try:
        Path.replace = dying  # type: ignore[method-assign,assignment]
        convert([archive], out, shard_images=15, notify=stop)
    finally:
        os._exit(1)


@pytest.mark.parametrize("at", ["20", "shards.json"])
def test_a_killed_conversion_does_not_read_as_complete(
    tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "BLOCK_BYTES", 1)
    archive, out = save(tmp_path / "a.npz"), tmp_path / "out"
    assert killed(archive, out, at) == -signal.SIGKILL
    assert (out / "images-00000.npy").exists()
    with pytest.raises(UsageError, match="out is unfinished. Run the `vitadel data convert` that was to fill it again"):
        Shards.read(out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="out is not empty: it holds 'notes.txt'"):
        convert([archive], out)
    (out / "notes.txt").unlink()
    same(convert([archive], out), pictures(), labels())  # in one shard: what the killed one wrote is gone
    assert sorted(path.name for path in out.iterdir()) == ["images-00000.npy", "labels-00000.npy", "shards.json"]


def test_too_small_a_disk_is_reported_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = save(tmp_path / "a.npz")
    need = COUNT * (8 * 8 * 3 + 1)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": need - 1}))
    refused(archive, f"the images take 0.0 GB, but {tmp_path / 'out'} has 0.0 GB free. Choose a folder on a larger di")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": need}))
    same(convert([archive], tmp_path / "out"), pictures(), labels())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    archive, out = save(tmp_path / "a.npz"), tmp_path / "out"
    out.mkdir(mode=0o500)
    with pytest.raises(UsageError, match=re.escape(f"cannot write to {out}: Permission denied. Choose a folder you")):
        convert([archive], out)


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    archive = save(tmp_path / "a.npz")
    refused(archive, f"cannot write to {tmp_path / 'out'}: No space left on device. Choose a folder you may write to")


# --- the command ---------------------------------------------------------------------------------------------------


def vitadel(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["vitadel", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, *capsys.readouterr()


def test_the_command_converts_and_describes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", x=pictures(), y=labels())
    words = "data convert a.npz a.npz --out out --classes 12 --shard-images 30 --image-key x --label-key y --json"
    code, out, err = vitadel(words.split(), monkeypatch, capsys)
    assert (code, err) == (0, "")
    described = json.loads(out)
    shards = Shards.read(Path("out"))
    assert described == shards.describe()
    assert (len(shards), shards.num_classes, len(shards.index.shards)) == (80, 12, 3)
    code, out, _ = vitadel(["data", "describe", "shards:out", "--json"], monkeypatch, capsys)
    assert (code, json.loads(out)) == (0, described)
    code, _, err = vitadel(["data", "convert", "a.npz", "--out", "other"], monkeypatch, capsys)
    assert (code, err) == (
        2,
        "vitadel: a.npz has no array 'image'. It has: x, y. Write the names of the images and the labels with "
        "--image-key and --label-key.\n",
    )


def test_the_commands_in_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their archives are too large to make in a test: here small ones have the same names."""
    page = (ROOT / "docs" / "data.md").read_text()
    section = page.partition("## Synthetic images")[2].partition("\n## ")[0]
    lines = re.findall(r"^vitadel (data .*)$", section, re.M)
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"\S+\.npz", " ".join(lines)):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        save(Path(name))
    assert sum("convert" in line for line in lines) >= 1
    for line in lines:
        code, _, err = vitadel(shlex.split(line), monkeypatch, capsys)
        assert code == 0, err
