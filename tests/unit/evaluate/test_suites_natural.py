"""Natural hard images: among some classes and among all, and shape bias."""

from pathlib import Path

import numpy as np
import pytest
import torch
from evaluations import evaluate_one  # type: ignore[import-not-found]
from PIL import Image
from suite_parts import Bins, claim, gray_images  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.data import SHAPES, DataSet, InMemory, Split, Squash, load, subset_wnids, wnids
from vitadel.evaluate.suites import ImageNetA, ImageNetR, LabelSpace, NaturalAdversarial, ShapeBias
from vitadel.evaluate.suites.shape_bias import decisions
from vitadel.runs import ResultFolder


def rows_of(folder: Path, name: str) -> dict[str, list[object]]:
    return ResultFolder(folder / "eval" / name).rows()


def values(summary: dict[str, object]) -> dict[str, float]:
    measures = summary["measures"]
    assert isinstance(measures, list)
    return {one["name"]: one["value"] for one in measures}


def codes(summary: dict[str, object]) -> list[str]:
    flags = summary["flags"]
    assert isinstance(flags, list)
    return [flag["code"] for flag in flags]


class Scripted(nn.Module):
    """Given logits: image number n has n/255 in its first pixel."""

    def __init__(self, z: Tensor) -> None:
        super().__init__()
        self.z = z

    def forward(self, x: Tensor) -> Tensor:
        return self.z[(x[:, 0, 0, 0] * 255).round().long()]


def numbered(labels: list[int], classes: tuple[str, ...], ids: list[str] | None = None) -> DataSet:
    pixels = torch.zeros(len(labels), 3, 8, 8, dtype=torch.uint8)
    pixels[:, 0, 0, 0] = torch.arange(len(labels))
    split = Split("test", tuple(ids or map(str, range(len(labels)))), torch.tensor(labels), InMemory(pixels))
    return DataSet("numbered", classes, Squash(8), None, None, split)


# -------------------------------------------------------------- label spaces


@pytest.mark.parametrize("kind", [ImageNetA, ImageNetR])
def test_released_sets_choose_among_their_200_classes(tmp_path: Path, kind: type[ImageNetA] | type[ImageNetR]) -> None:
    settings, name = kind(), kind.name
    members = [wnids().index(one) for one in subset_wnids(name)]
    outside = next(label for label in range(1000) if label not in members)
    z = torch.zeros(4, 1000)
    z[0, members[3]] = 9  # right
    z[1, outside], z[1, members[5]] = 9, 8  # right among the 200, wrong among all
    z[2, members[7]] = 9  # wrong
    z[3, outside], z[3, members[0]] = 9, 8  # wrong either way
    data = numbered([members[3], members[5], members[6], members[6]], wnids())
    settings.check(Scripted(z), data, "test")
    summary = evaluate_one(Scripted(z), data, settings, claim(tmp_path / "run"), batch=3)
    assert values(summary) == {"200-way accuracy": 0.5, "1000-way accuracy": 0.25}
    rows = rows_of(tmp_path / "run", name)
    assert rows["correct"] == rows["correct_among"] == [1, 1, 0, 0]
    assert rows["correct_all"] == [1, 0, 0, 0]
    assert rows["clean_prediction"] == [members[3], outside, members[7], outside]
    assert rows["prediction_among"] == [members[3], members[5], members[7], members[0]]
    assert summary["clean"] is None
    assert codes(summary) == ["classes-missing"]
    assert "197 of the 200 classes have no image here" in summary["flags"][0]["sentence"]
    other = evaluate_one(Scripted(z), data, kind(label_space=LabelSpace.ALL), claim(tmp_path / "all"))
    assert [one["main"] for one in other["measures"]] == [False, True]
    assert rows_of(tmp_path / "all", name)["correct"] == [1, 0, 0, 0]


def test_custom_images_are_evaluated_among_their_classes(tmp_path: Path) -> None:
    # Bins predicts 0, 1 and 3; among the classes 1 and 3, the first image is nearest to 1
    summary = evaluate_one(Bins(), gray_images([5, 40, 90], [1, 1, 3]), NaturalAdversarial(), claim(tmp_path / "run"))
    assert values(summary) == {"2-way accuracy": 1.0, "10-way accuracy": pytest.approx(2 / 3)}
    assert codes(summary) == []
    table = summary["exhibits"][1]
    assert [row[:3] for row in table["rows"]] == [["1", 2, 1.0], ["3", 1, 1.0]]
    shown = summary["exhibits"][2]["cells"]
    assert [one["note"] for row in shown for one in row if one] == ["1", "1", "3"]
    with pytest.raises(UsageError, match="images of one class only"):
        NaturalAdversarial().check(Bins(), gray_images([5, 6]), "test")


def test_images_are_labeled_with_wrong_predictions_only(tmp_path: Path) -> None:
    # of ten classes, Bins predicts 0, 1 and 3
    settings = NaturalAdversarial(label_space=LabelSpace.ALL)
    summary = evaluate_one(Bins(), gray_images([5, 40, 90], [1, 1, 3]), settings, claim(tmp_path / "run"))
    shown = summary["exhibits"][2]["cells"]
    assert [one["note"] for row in shown for one in row if one] == ["1, predicted as 0", "1", "3"]


def test_other_images_are_refused() -> None:
    with pytest.raises(UsageError, match="about the 200 classes of imagenet-a, and grays has others. Write --data"):
        ImageNetA().check(Bins(), gray_images([5]), "test")
    outside = next(label for label, name in enumerate(wnids()) if name not in subset_wnids("imagenet-r"))
    with pytest.raises(UsageError, match="200 classes of imagenet-r"):
        ImageNetR().check(Bins(), numbered([outside], wnids()), "test")


# ---------------------------------------------------------------- shape bias

IDS = [
    "cat/cat1-dog2.png",
    "cat/cat2-knife1.png",
    "bear/bear1-oven3.png",
    "bear/bear4-bear2.png",
    "oven/oven1-oven2.png",
]


def stimuli() -> DataSet:
    labels = [SHAPES.index(one.partition("/")[0]) for one in IDS]
    return numbered(labels, SHAPES, IDS)


def test_shape_accuracy_and_shape_bias_match_their_definitions(tmp_path: Path) -> None:
    z = torch.full((5, 1000), -9.0)
    z[0, 283] = 9  # a cat: the shape
    z[1, 499] = 9  # a knife: the texture
    z[2, 404] = 9  # an airplane: neither
    z[3, 294] = 9  # a bear, where both agree
    z[4, 766] = 9  # an oven, where both agree
    summary = evaluate_one(Scripted(z), stimuli(), ShapeBias(), claim(tmp_path / "run"), batch=2)
    assert values(summary) == {
        "shape accuracy": 3 / 5,  # with the two that agree
        "shape bias": 1 / 2,  # of the one for the shape and the one for the texture
        "texture decisions": pytest.approx(1 / 3),
        "decisions for neither": pytest.approx(1 / 3),
    }
    rows = rows_of(tmp_path / "run", "shape-bias")
    assert rows["correct"] == [1, 0, 0, 1, 1]
    assert rows["shape"] == ["cat", "cat", "bear", "bear", "oven"]
    assert rows["texture"] == ["dog", "knife", "oven", "bear", "oven"]
    assert [SHAPES[int(str(one))] for one in rows["decision"]] == ["cat", "knife", "airplane", "bear", "oven"]
    assert rows["clean_prediction"] == [283, 499, 404, 294, 766]
    assert codes(summary) == ["stimuli-missing"]
    table = summary["exhibits"][2]
    assert [row for row in table["rows"] if row[0] in ("bear", "cat")] == [
        ["bear", 0, 0, 1, None],
        ["cat", 1, 1, 0, 0.5],
    ]
    heat = summary["exhibits"][1]["matrices"][0]["values"]
    assert heat[SHAPES.index("bear")][SHAPES.index("airplane")] == 0.5


def test_without_shape_or_texture_decisions_there_is_no_bias(tmp_path: Path) -> None:
    neither = torch.full((5, 1000), -9.0)
    neither[:, 404] = 9  # airplanes all
    summary = evaluate_one(Scripted(neither), stimuli(), ShapeBias(), claim(tmp_path / "run"))
    assert values(summary) == {"shape accuracy": 0, "texture decisions": 0, "decisions for neither": 1}
    assert summary["sentence"] == (
        "0.0% of 5 stimuli are classified by their shape; there is no shape bias, since none of 3 conflicts was "
        "decided for shape or texture."
    )
    agreeing = numbered([SHAPES.index("bear"), SHAPES.index("oven")], SHAPES, IDS[3:])
    alone = evaluate_one(Scripted(neither[:2]), agreeing, ShapeBias(), claim(tmp_path / "alone"))
    assert values(alone) == {"shape accuracy": 0}
    assert str(alone["sentence"]).endswith("; there are no conflicts.")


def test_class_probabilities_are_means_over_members() -> None:
    members = ShapeBias().members()
    assert sum(map(len, members.values())) == 207
    assert len({number for one in members.values() for number in one}) == 207
    assert list(members) == list(SHAPES)
    # two dogs with .3 each have more together than the knife's .35, but there are 110 dogs and one knife
    p = torch.full((1, 1000), 0.05 / 997)
    p[0, 152], p[0, 153], p[0, 499] = 0.3, 0.3, 0.35
    assert SHAPES[int(decisions(p.log(), members))] == "knife"


def test_other_classes_need_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    lines = [f"{name} {2 * place}-{2 * place + 1}" for place, name in enumerate(SHAPES)]
    path.write_text("# thirty-two classes\n" + "\n".join(lines) + "\n")
    z = torch.eye(32)[[14, 15, 0, 2, 28]] * 9  # cat, cat, airplane, bear, oven
    summary = evaluate_one(Scripted(z), stimuli(), ShapeBias(mapping=str(path)), claim(tmp_path / "run"))
    assert values(summary)["shape accuracy"] == 4 / 5
    before = ShapeBias(mapping=str(path)).named_files(stimuli(), "test")
    assert set(before) == {"mapping"}
    path.write_text(path.read_text().replace("bear ", "bear 0 "))
    assert ShapeBias(mapping=str(path)).named_files(stimuli(), "test") != before
    assert ShapeBias().named_files(stimuli(), "test") == {}
    with pytest.raises(UsageError, match="the model has 32 classes, and the mapping names class 914"):
        evaluate_one(Scripted(z), stimuli(), ShapeBias(), claim(tmp_path / "none"))
    for wrong, message in {
        "\n".join(lines[1:]): "has no line for airplane",
        "\n".join([*lines, "cat 5"]): "cannot read 'cat 5'",
        "\n".join([*lines, "cow 5"]): "cannot read 'cow 5'",
        "airplane x": "cannot read 'airplane x'",
        "airplane": "cannot read 'airplane'",
        "airplane 3-1": "cannot read 'airplane 3-1'",
        "airplane 5 3-1": "cannot read 'airplane 5 3-1'",
        "airplane 0-9999999999": "cannot read 'airplane 0-9999999999'",
        "airplane \N{FULLWIDTH DIGIT FIVE}": "cannot read 'airplane",
    }.items():
        path.write_text(wrong)
        with pytest.raises(UsageError, match=message):
            ShapeBias(mapping=str(path)).members()
    with pytest.raises(UsageError, match="cannot read the mapping"):
        ShapeBias(mapping="nowhere").members()
    with pytest.raises(UsageError, match="about cue-conflict stimuli, and grays are none"):
        ShapeBias().check(Bins(), gray_images([5]), "test")


def test_stimuli_from_a_folder(tmp_path: Path) -> None:
    for one in IDS:
        (tmp_path / "cues" / one).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "cues" / one)
    data = load(f"cue-conflict:{tmp_path / 'cues'}", preprocess=Squash(8))
    z = torch.full((1, 1000), -9.0)
    z[0, 283] = 9
    summary = evaluate_one(Scripted(z), data, ShapeBias(), claim(tmp_path / "run"))
    assert values(summary)["shape accuracy"] == 2 / 5
