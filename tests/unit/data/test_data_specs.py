"""The text that names a data set, and the choice of classes."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitadel.core.errors import UsageError
from vitadel.data import Squash, load, parse_preprocess
from vitadel.data.spec import Kind, Spec, parse_spec, read_list


@pytest.mark.parametrize(
    ("tail", "class_file", "first"),
    [("", None, None), ("[:256]", None, 256), ("@names.txt", "names.txt", None), ("@names.txt[:5]", "names.txt", 5)],
)
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.DIGITS])
def test_every_spec_is_read(tmp_path: Path, kind: Kind, tail: str, class_file: str | None, first: int | None) -> None:
    expected = Spec(kind, tmp_path, None if class_file is None else Path(class_file), first)
    assert parse_spec(f"{kind.value}:{tmp_path}{tail}") == expected


def test_digits_need_no_folder() -> None:
    assert parse_spec("digits@a/b.txt[:12]") == Spec(Kind.DIGITS, Path(), Path("a/b.txt"), 12)


def test_an_at_sign_in_an_existing_folder_belongs_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "me@home"
    folder.mkdir()
    assert parse_spec(f"folder:{folder}") == Spec(Kind.FOLDER, folder, None, None)
    assert parse_spec(f"folder:{folder}@c.txt") == Spec(Kind.FOLDER, folder, Path("c.txt"), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "cifar",
            "unknown data set 'cifar'. Did you mean 'cifar10'? Known: cifar10, cifar100, cue-conflict, digits, folder, "
            "imagenet, imagenet-a, imagenet-r.",
        ),
        ("", "unknown data set ''. Known: "),
        ("digits[:0]", "the data set 'digits[:0]' selects no images. Write [:n] with n at least 1."),
        ("digits[:-3]", "cannot read [:-3] in the data set 'digits[:-3]'. Write [:256] for the first 256 images."),
        ("digits[:99999999999999999999]", "the number of images in 'digits[:99999999999999999999]' is too large a"),
        ("digits[:\N{FULLWIDTH DIGIT FIVE}]", "cannot read [:\N{FULLWIDTH DIGIT FIVE}] in the data set"),
        ("digits[256]", "cannot read [256] in the data set"),
        ("digits[3:5]", "cannot read [3:5] in the data set"),
        (
            "digits:somewhere",
            "digits comes with scikit-learn and takes no folder, got 'digits:somewhere'. Write digits.",
        ),
        ("digits@", "no list follows the @ in 'digits@'. Write SPEC@LIST, or leave out the @."),
        ("cifar10", "cifar10 needs the folder it lies in, got 'cifar10'. Write cifar10:DIR."),
        ("imagenet:[:5]", "imagenet needs the folder it lies in, got 'imagenet:[:5]'. Write imagenet:DIR."),
        ("folder:nowhere", "there is no folder 'nowhere', named in the data set 'folder:nowhere'. Write folder:DIR."),
    ],
)
def test_an_invalid_spec_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        load(text, preprocess=Squash(8))


def test_class_files_may_have_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("# two classes\n\n  c#  \nbig cat   # a lion\n#end\n")
    assert read_list(path) == ("c#", "big cat")


def test_class_file_and_argument_choose_the_same(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("4\n2\n")
    by_file = load(f"digits@{path}[:20]", preprocess=Squash(8))
    by_hand = load("digits[:20]", preprocess=Squash(8), classes=["4", "2"])
    assert by_file.classes == by_hand.classes == ("4", "2")
    assert by_file.describe()["splits"] == by_hand.describe()["splits"]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ((), "no class is chosen. Name at least one, or leave the choice out for all of them."),
        (("1", "2", "1"), "class '1' is chosen twice. Name each class once: its position is its label."),
        (("1", "ten"), "unknown class 'ten'. Known: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9."),
    ],
)
def test_an_invalid_choice_is_named(classes: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        load("digits", preprocess=Squash(8), classes=classes)


def test_an_invalid_class_file_is_named(tmp_path: Path) -> None:
    missing, binary, empty = tmp_path / "missing.txt", tmp_path / "binary.txt", tmp_path / "empty.txt"
    binary.write_bytes(b"\xff\xfe")
    empty.write_text("# nothing\n")
    with pytest.raises(UsageError, match=r"cannot read the list .*missing.txt: No such file"):
        load(f"digits@{missing}", preprocess=Squash(8))
    with pytest.raises(UsageError, match=r"binary.txt: not UTF-8 text. Write after the @ a text file"):
        load(f"digits@{binary}", preprocess=Squash(8))
    with pytest.raises(UsageError, match=r"no class is chosen"):
        load(f"digits@{empty}", preprocess=Squash(8))
    with pytest.raises(
        UsageError, match=r"classes are selected twice: by the file .*empty.txt and by classes=. Leave one"
    ):
        load(f"digits@{empty}", preprocess=Squash(8), classes=("1",))


@given(st.sampled_from(["", "folder:", "digits", "crop:"]), st.text(alphabet="cdfigtsrop10:@[]~/. \u0663", max_size=20))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_refused_in_a_sentence(head: str, tail: str) -> None:
    for parse in (parse_spec, parse_preprocess):
        try:
            parse(head + tail)
        except UsageError as error:
            assert str(error).endswith(".")  # noqa: PT017
