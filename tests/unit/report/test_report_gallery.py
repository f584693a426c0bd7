"""The pictures of attacked images on the page."""

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from vitadel.report.figures.gallery import cards, perturbation, pixelated, png
from vitadel.runs.schema import ROBUST, WRONG_BEFORE, Gallery


def gallery(broken_by: list[str], height: int = 4, width: int = 6) -> Gallery:
    count = len(broken_by)
    clean = np.full((count, height, width, 3), 51, np.uint8)
    adversarial = np.full((count, height, width, 3), 0.2, np.float32)
    adversarial[:, 0, 0] += np.float32(0.04)
    numbers = list(range(count))
    return Gallery(clean, adversarial, numbers, numbers, [9] * count, broken_by, ["cat", "dog"], 0.08, "linf")


def decoded(address: str) -> np.ndarray:
    prefix, _, body = address.partition(",")
    assert prefix == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


def test_a_picture_survives_its_file() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(pixels)))), pixels)


def test_gray_levels_of_a_perturbation() -> None:
    change = np.array([-0.2, -0.1, 0.0, 0.05, 0.1, 0.3])
    result = perturbation(np.zeros(6, np.float32), change.astype(np.float32), 0.1)
    assert result.tolist() == [0, 0, 128, 191, 255, 255]
    assert perturbation(np.zeros(2, np.float32), np.zeros(2, np.float32), 0.0).tolist() == [128, 128]


def test_a_card_shows_three_pictures_and_the_names_of_classes() -> None:
    card, other = cards(gallery(["pgd", ROBUST]), unit="1/255", galleries=1)
    assert (card.true, card.before, card.after) == ("cat", "cat", "9")  # a number without a name stays a number
    assert (card.state, card.result, card.scale) == ("broken", "broken by pgd", "\N{PLUS-MINUS SIGN}20.4/255")
    assert (other.true, other.state, other.result) == ("dog", "robust", "robust")
    assert np.unique(decoded(card.clean)).tolist() == [51]
    assert np.unique(decoded(card.adversarial)).tolist() == [51, 61]
    assert np.unique(decoded(card.perturbation)).tolist() == [128, 191]  # half of eps
    (wrong,) = cards(gallery([WRONG_BEFORE]), unit="1/255", galleries=1)
    assert (wrong.state, wrong.result) == ("wrong", "misclassified before any attack")


def test_the_scale_of_another_norm_is_the_largest_change() -> None:
    (card,) = cards(replace(gallery(["pgd"]), norm="l2"), unit="", galleries=1)
    assert np.unique(decoded(card.perturbation)).tolist() == [128, 255]


def test_cards_take_turns_between_broken_robust_and_misclassified_images() -> None:
    states = [
        card.state
        for card in cards(gallery([*["pgd"] * 9, *[ROBUST] * 5, *[WRONG_BEFORE] * 9]), unit="1/255", galleries=1)
    ]
    assert states == [*["broken"] * 4, *["robust"] * 4, *["wrong"] * 4]
    states = [card.state for card in cards(gallery([*["pgd"] * 20, ROBUST]), unit="1/255", galleries=1)]
    assert states == [*["broken"] * 11, "robust"]


@pytest.mark.parametrize(
    ("side", "galleries", "count"), [(8, 1, 12), (258, 1, 12), (258, 2, 10), (258, 4, 5), (258, 60, 2)]
)
def test_large_pictures_on_many_galleries_are_fewer(side: int, galleries: int, count: int) -> None:
    # 12 million bytes per page, three pictures of side x side x 3 bytes per card
    assert len(cards(gallery(["pgd"] * 13, side, side), unit="1/255", galleries=galleries)) == count


@pytest.mark.parametrize(
    ("height", "width", "small"), [(95, 95, True), (96, 8, False), (8, 96, False), (224, 224, False)]
)
def test_images_below_96_pixels_are_not_smoothed(height: int, width: int, small: bool) -> None:
    assert pixelated(gallery([ROBUST], height, width)) == small
