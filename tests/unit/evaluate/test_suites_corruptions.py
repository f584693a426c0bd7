"""Corruptions with known results, in memory and from the files their authors released."""

from pathlib import Path

import numpy as np
import pytest
import torch
from evaluations import evaluate_one  # type: ignore[import-not-found]
from PIL import Image
from suite_parts import Bins, claim, gray_images  # type: ignore[import-not-found]

from vitadel.core.errors import UsageError
from vitadel.core.stats import ALEXNET_ERRORS, mean_corruption_error, relative_mean_corruption_error
from vitadel.data import DataSet, InMemory, Split, Squash, load, wnids
from vitadel.evaluate.suites import Corruptions
from vitadel.runs import ResultFolder
from vitadel.shifts import CORRUPTIONS, Corruption


def value(summary: dict[str, object], name: str) -> float:
    measures = summary["measures"]
    assert isinstance(measures, list)
    (result,) = [one["value"] for one in measures if one["name"] == name]
    return float(result)


def names(summary: dict[str, object]) -> list[str]:
    measures = summary["measures"]
    assert isinstance(measures, list)
    return [one["name"] for one in measures]


def test_brightness_and_contrast_of_gray_images_are_exact(tmp_path: Path) -> None:
    # the CIFAR table brightens by .05 .1 .15 .2 .3; contrast leaves an image of one gray as it is
    data = gray_images([2, 20, 240])
    settings = Corruptions(names=("contrast", "brightness"))
    summary = evaluate_one(Bins(), data, settings, claim(tmp_path / "run"))
    rows = ResultFolder(tmp_path / "run" / "eval" / "corruptions").rows()
    assert rows["clean_prediction"] == [0, 0, 9]
    # 2/255 + .1 has left the lowest tenth, 20/255 + .05 has; 240/255 is as bright as an image can get
    assert rows["predictions"] == [[0, 1, 1, 2, 3, 0, 0, 0, 0, 0], [1, 1, 2, 2, 3, 0, 0, 0, 0, 0], [9] * 10]
    assert rows["correct"] == [0.6, 0.5, 1.0]
    assert value(summary, "mean over 10 cells") == pytest.approx(0.7)
    assert value(summary, "weather") == pytest.approx((0.2 + 0 + 1) / 3)
    assert value(summary, "digital") == 1
    clean, conventions = summary["clean"], summary["conventions"]
    assert isinstance(clean, dict)
    assert isinstance(conventions, dict)
    assert (clean["correct"], clean["n"]) == (3, 3)
    assert conventions["table"] == "cifar"
    assert conventions["mCE"].startswith("undefined: AlexNet's errors are known for the 1000 classes")
    assert "mCE" not in names(summary)
    assert "brightness at severity 2 is the worst with 33.3%" in str(summary["sentence"])
    heat = summary["exhibits"][0]
    assert heat["rows"] == ["brightness", "contrast"]
    expected = np.array([[2 / 3, *[1 / 3] * 4], [1.0] * 5])
    assert np.allclose(heat["matrices"][0]["values"], expected)


def test_the_benchmark_has_75_cells_or_95_with_extra(tmp_path: Path) -> None:
    summary = evaluate_one(Bins(), gray_images([30, 128]), Corruptions(), claim(tmp_path / "run"))
    assert names(summary)[:2] == ["mean over 75 cells", "mean over 95 cells"]
    predictions = np.array(ResultFolder(tmp_path / "run" / "eval" / "corruptions").rows()["predictions"])
    right = predictions == [[1], [5]]
    assert value(summary, "mean over 75 cells") == pytest.approx(right[:, :75].mean())
    assert value(summary, "mean over 95 cells") == pytest.approx(right.mean())
    assert len(Corruptions(extra=False).cells) == 75
    assert len(Corruptions(severities=(3, 1)).cells) == 38
    # every cell is what `vitadel.shifts` makes of the image with its row and the seed
    x = gray_images([30, 128]).test.images(torch.arange(2))
    for place, (name, severity) in enumerate(Corruptions().cells):
        made = Corruption(name, severity)(x, torch.arange(2), seed=0)
        assert Bins()(made).argmax(1).tolist() == predictions[:, place].tolist(), name


def imagenet(levels: list[int], labels: list[int]) -> DataSet:
    pixels = torch.tensor(levels).view(-1, 1, 1, 1).expand(-1, 3, 16, 16).to(torch.uint8).contiguous()
    ids = tuple(f"val/{wnids()[label]}/{number}.JPEG" for number, label in enumerate(labels))
    split = Split("test", ids, torch.tensor(labels), InMemory(pixels))
    return DataSet("imagenet:x", wnids(), Squash(16), None, None, split)


def test_mce_is_normalized_by_name_and_has_all_fifteen(tmp_path: Path) -> None:
    data = imagenet([100, 60, 200], [392, 235, 3])
    summary = evaluate_one(Bins(1000), data, Corruptions(), claim(tmp_path / "run"))
    predictions = np.array(ResultFolder(tmp_path / "run" / "eval" / "corruptions").rows()["predictions"])
    wrong = predictions != [[392], [235], [3]]
    errors = {name: float(wrong[:, 5 * at : 5 * at + 5].mean()) for at, name in enumerate(CORRUPTIONS)}
    assert value(summary, "mCE") == pytest.approx(100 * mean_corruption_error(errors))
    assert value(summary, "relative mCE") == pytest.approx(100 * relative_mean_corruption_error(errors, 1 / 3))
    columns = {one["name"]: one.get("column") for one in summary["measures"]}
    assert columns["mCE"] == "mce"
    assert columns["mean over 95 cells"] == "correct_in_all"
    rows = ResultFolder(tmp_path / "run" / "eval" / "corruptions").rows()
    assert rows["correct_in_all"] == pytest.approx((1 - wrong.mean(1)).tolist())
    assert np.mean(rows["correct_in_all"]) == pytest.approx(value(summary, "mean over 95 cells"))
    assert np.mean(rows["mce"]) == pytest.approx(value(summary, "mCE"))
    some = evaluate_one(Bins(1000), data, Corruptions(severities=(1, 2)), claim(tmp_path / "some"))
    assert "undefined: it takes all fifteen" in some["conventions"]["mCE"]
    small = evaluate_one(Bins(1000), data, Corruptions(table="cifar"), claim(tmp_path / "small"))
    assert "on ImageNet's table" in small["conventions"]["mCE"]
    assert "mCE" not in [*names(some), *names(small)]
    assert "mce" not in ResultFolder(tmp_path / "some" / "eval" / "corruptions").rows()
    assert list(ALEXNET_ERRORS) == [name for name, kind in CORRUPTIONS.items() if kind.group != "extra"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"names": ("fogg",)}, "unknown corruption 'fogg'. Did you mean 'fog'?"),
        ({"severities": (1, 6)}, r"Corruptions.severities\[1\] must lie in \[1, 5\], got 6"),
        ({"severities": ()}, "Write severities=1"),
        ({"table": "cifer"}, "Did you mean 'cifar'"),
        ({"jpeg": 0}, r"jpeg must lie in \[1, 100\], got 0"),
        ({"frost": "nowhere"}, "nowhere"),
        ({"files": "x", "jpeg": 85}, "corrupted already"),
        ({"skip": True}, "skip=true is about files="),
        ({"names": ("spatter",), "extra": False}, "leaves nothing of spatter"),
    ],
)
def test_invalid_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Corruptions(**settings)  # type: ignore[arg-type]


# ------------------------------------------------------------------ ImageNet-C

SOME = {"names": ("fog", "brightness"), "severities": (1, 4)}


def paint(path: Path, level: int, size: int = 20) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size, 3), level, np.uint8)).save(path, "PNG")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[DataSet, Path]:
    """Four clean images and their cells: in cell number c, image i has the gray of class i + c."""
    labels, root = [0, 1, 2, 3], tmp_path / "imagenet-c"
    clean = tmp_path / "imagenet"
    for label in labels:
        wnid = wnids()[label]
        paint(clean / "val" / wnid / f"ILSVRC_{label}.JPEG", 26 * label + 13)
        for number, (place, severity) in enumerate((p, s) for p in ("weather/fog", "brightness") for s in (1, 4)):
            paint(root / place / str(severity) / wnid / f"ILSVRC_{label}.JPEG", 26 * (label + number) + 13)
    return load(f"imagenet:{clean}", preprocess=Squash(20)), root


def test_files_of_imagenet_c_are_found_by_class_and_name(tmp_path: Path, folders: tuple[DataSet, Path]) -> None:
    data, root = folders
    settings = Corruptions(**SOME, files=str(root))  # type: ignore[arg-type]
    summary = evaluate_one(Bins(), data, settings, claim(tmp_path / "run"), batch=3)
    rows = ResultFolder(tmp_path / "run" / "eval" / "corruptions").rows()
    # fog comes before brightness in the benchmark; the order of rows is the data set's, not the folders'
    assert rows["predictions"] == [[label + 0, label + 1, label + 2, label + 3] for label in rows["label"]]
    assert sorted(rows["label"]) == [0, 1, 2, 3]
    assert rows["label"] != [0, 1, 2, 3]
    assert rows["correct"] == [0.25] * 4
    assert summary["conventions"]["source"] == "files of ImageNet-C, squash20-bilinear"
    assert "jpeg" not in summary["conventions"]


def test_missing_or_broken_files_are_skipped_only_on_request(tmp_path: Path, folders: tuple[DataSet, Path]) -> None:
    data, root = folders
    settings = Corruptions(**SOME, files=str(root))  # type: ignore[arg-type]
    first = int(data.test.labels[0])  # which is the one that is shown
    broken = root / "brightness" / "4" / wnids()[first] / f"ILSVRC_{first}.JPEG"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(UsageError, match=rf"cannot read the image .*brightness/4/.*ILSVRC_{first}.JPEG"):
        evaluate_one(Bins(), data, settings, claim(tmp_path / "refused"))
    skipping = Corruptions(**SOME, files=str(root), skip=True)  # type: ignore[arg-type]
    summary = evaluate_one(Bins(), data, skipping, claim(tmp_path / "run"))
    rows = ResultFolder(tmp_path / "run" / "eval" / "corruptions").rows()
    assert rows["predictions"][0] == [first, first + 1, first + 2, -1]
    assert rows["correct"][0] == pytest.approx(1 / 3)
    assert summary["exhibits"][3]["cells"][0][2:] == [None] * 3
    flags = summary["flags"]
    assert isinstance(flags, list)
    assert len(flags) == 1
    assert flags[0]["sentence"] == "1 of 16 corrupted files could not be read and were skipped on request"

    (root / "brightness" / "4" / wnids()[3]).rename(root / "moved")
    with pytest.raises(UsageError, match=f"has no folder {wnids()[3]}, and the clean images have that class"):
        settings.check(Bins(), data, "test")
    with pytest.raises(UsageError, match="has no folder snow/1"):
        Corruptions(names=("snow",), files=str(root)).check(Bins(), data, "test")
    with pytest.raises(UsageError, match="there is no folder 'nowhere'"):
        Corruptions(files="nowhere").check(Bins(), data, "test")


def test_a_cell_without_a_readable_file_is_named(tmp_path: Path, folders: tuple[DataSet, Path]) -> None:
    data, root = folders
    for path in (root / "brightness" / "4").glob("*/*"):
        path.write_bytes(b"no image")
    skipping = Corruptions(**SOME, files=str(root), skip=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as raised:
        evaluate_one(Bins(), data, skipping, claim(tmp_path / "run"))
    assert str(raised.value) == (
        f"not one file of brightness/4 in {root} can be read, so there is nothing to score there. "
        "Unpack them again, or leave them out with names= or severities= and choose another run folder."
    )
    fewer = Corruptions(names=("fog", "brightness"), severities=(1,), files=str(root), skip=True)
    evaluate_one(Bins(), data, fewer, claim(tmp_path / "fewer"))


def test_replaced_imagenet_c_files_are_detected(folders: tuple[DataSet, Path]) -> None:
    data, root = folders
    settings = Corruptions(**SOME, files=str(root))  # type: ignore[arg-type]
    before = settings.named_files(data, "test")
    assert before == settings.named_files(data, "test")
    assert set(before) == {"files"}
    paint(next((root / "brightness" / "4").glob("*/*")), 77, size=30)
    assert settings.named_files(data, "test") != before
    assert Corruptions(names=("fog",)).named_files(data, "test") == {}


# ------------------------------------------------------------------- CIFAR-C


@pytest.fixture
def arrays(tmp_path: Path) -> tuple[DataSet, Path]:
    """Six test images in an order of their own, and their arrays: severity s adds s - 1 to the class."""
    labels, root = np.array([3, 1, 4, 1, 5, 2]), tmp_path / "CIFAR-10-C"
    root.mkdir()
    blocks = np.concatenate([labels + severity for severity in range(5)])
    pictures = np.broadcast_to((25.5 * blocks + 13)[:, None, None, None], (30, 32, 32, 3)).astype(np.uint8)
    np.save(root / "fog.npy", pictures)
    np.save(root / "labels.npy", np.tile(labels, 5))
    order = [5, 0, 3, 2, 1, 4]
    ids = tuple(f"test/{number:05d}" for number in order)
    split = Split(
        "test", ids, torch.from_numpy(labels[order]), InMemory(torch.from_numpy(pictures[order]).permute(0, 3, 1, 2))
    )
    return DataSet("cifar10:x", tuple(map(str, range(10))), Squash(32), None, None, split), root


def test_replaced_arrays_of_the_same_size_are_detected(arrays: tuple[DataSet, Path]) -> None:
    data, root = arrays
    settings = Corruptions(names=("fog",), files=str(root))
    before = settings.named_files(data, "test")
    assert before == settings.named_files(data, "test")
    np.save(root / "fog.npy", 255 - np.load(root / "fog.npy"))
    assert settings.named_files(data, "test") != before


def test_arrays_of_cifar_c_are_read_in_the_order_of_the_clean_images(
    tmp_path: Path, arrays: tuple[DataSet, Path]
) -> None:
    data, root = arrays
    settings = Corruptions(names=("fog",), files=str(root))
    summary = evaluate_one(Bins(), data, settings, claim(tmp_path / "run"), batch=4)
    rows = ResultFolder(tmp_path / "run" / "eval" / "corruptions").rows()
    assert rows["label"] == [2, 3, 1, 4, 1, 5]
    assert rows["predictions"] == [[label + more for more in range(5)] for label in (2, 3, 1, 4, 1, 5)]
    assert value(summary, "mean over 5 cells") == pytest.approx(0.2)


def test_invalid_arrays_are_named(arrays: tuple[DataSet, Path]) -> None:
    data, root = arrays
    fog = Corruptions(names=("fog",), files=str(root))
    with pytest.raises(UsageError, match="snow.npy is missing"):
        Corruptions(names=("snow",), files=str(root)).check(Bins(), data, "test")
    labels = np.load(root / "labels.npy")
    np.save(root / "labels.npy", (labels + 1) % 10)
    with pytest.raises(UsageError, match="gives other labels than the clean images have"):
        fog.check(Bins(), data, "test")
    np.save(root / "labels.npy", labels[:3])
    with pytest.raises(UsageError, match="has 3 labels, and an image has number 5"):
        fog.check(Bins(), data, "test")
    np.save(root / "labels.npy", labels)
    whole = (root / "fog.npy").read_bytes()
    (root / "fog.npy").write_bytes(whole[:1000])
    with pytest.raises(UsageError, match=r"cannot read .*fog.npy"):
        fog.check(Bins(), data, "test")
    np.save(root / "fog.npy", np.zeros((29, 32, 32, 3), np.uint8))
    with pytest.raises(UsageError, match="should hold five blocks"):
        fog.check(Bins(), data, "test")
    with pytest.raises(UsageError, match="do not say their place in it: the first is gray/000-30"):
        fog.check(Bins(), gray_images([30]), "test")


@pytest.mark.parametrize(
    ("severities", "shown"), [((1, 2, 3), 3), ((3, 4, 5), 3), ((1, 2), 2), ((5, 4), 5), ((1, 2, 4, 5), 4)]
)
def test_pictures_show_severity_three_or_else_the_middle_one(
    severities: tuple[int, ...], shown: int, tmp_path: Path
) -> None:
    settings = Corruptions(names=("brightness", "contrast"), severities=severities)
    summary = evaluate_one(Bins(), gray_images([20]), settings, claim(tmp_path / "run"))
    (pictures,) = [one for one in summary["exhibits"] if one["kind"] == "pictures"]
    assert f"at severity {shown}," in pictures["caption"]
    cells = [cell for row in pictures["cells"] for cell in row if cell is not None]
    assert [cell["note"].partition(":")[0] for cell in cells] == ["clean", "brightness", "contrast"]
