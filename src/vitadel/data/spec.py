"""The text that names a data set: KIND[:DIR][@LIST][[:n]]."""

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from vitadel.core.errors import UsageError, short_repr, unknown_name_error
from vitadel.core.files import check_regular_file
from vitadel.core.numeric import parse_int


class Kind(Enum):
    """The kinds of data sets, by the first word of their spec."""

    DIGITS = "digits"
    CIFAR10 = "cifar10"
    CIFAR100 = "cifar100"
    FOLDER = "folder"
    IMAGENET = "imagenet"
    IMAGENET_A = "imagenet-a"
    IMAGENET_R = "imagenet-r"
    CUE_CONFLICT = "cue-conflict"


@dataclass(frozen=True, slots=True)
class Spec:
    """The parts of a data set's spec; `listed` is the file after the @, `first` the number in [:n]."""

    kind: Kind
    folder: Path
    listed: Path | None
    first: int | None


def parse_spec(text: str) -> Spec:
    """Read the name of a data set, such as `digits`, `cifar10:DIR` or `imagenet:DIR@LIST[:256]`."""
    rest, first = _cut_first(text)
    word = re.split("[:@]", rest, maxsplit=1)[0]
    kinds = {kind.value: kind for kind in Kind}
    if word not in kinds:
        raise unknown_name_error("data set", word, kinds)
    folder, listed = _cut_list(rest.removeprefix(word), text)
    if kinds[word] is Kind.DIGITS and folder:
        raise UsageError(f"digits comes with scikit-learn and takes no folder, got {short_repr(text)}. Write digits.")
    if kinds[word] is not Kind.DIGITS:
        _check_folder(word, folder, text)
    return Spec(kinds[word], _path(folder), listed, first)


def read_list(path: Path) -> tuple[str, ...]:
    """One class name or one image per line; blank lines and comments after # are ignored."""
    check_regular_file(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(
            f"cannot read the list {path}: {reason}. Write after the @ a text file with one class name per line, "
            "or one image as CLASS/FILE."
        ) from error
    return tuple(name for line in lines if (name := re.sub(r"(^|\s)#.*", "", line).strip()))


def _cut_first(text: str) -> tuple[str, int | None]:
    if not text.endswith("]"):
        return text, None
    rest, _, inside = text[:-1].rpartition("[")
    if not re.fullmatch(r":[0-9]+", inside):
        raise UsageError(
            f"cannot read [{inside[:60]}] in the data set {short_repr(text)}. Write [:256] for the first 256 images."
        )
    first = parse_int(inside[1:], f"the number of images in {short_repr(text)}")
    if first < 1:
        raise UsageError(f"the data set {short_repr(text)} selects no images. Write [:n] with n at least 1.")
    return rest, first


def _cut_list(rest: str, text: str) -> tuple[str, Path | None]:
    """Take `:DIR@LIST` apart; an @ within the name of an existing folder belongs to the folder."""
    if "@" not in rest or (rest[0] == ":" and os.path.isdir(_path(rest[1:]))):
        return rest[1:], None
    folder, _, listed = rest.rpartition("@")
    if not listed:
        raise UsageError(f"no list follows the @ in {short_repr(text)}. Write SPEC@LIST, or leave out the @.")
    return folder[1:], _path(listed)


def _check_folder(kind: str, folder: str, text: str) -> None:
    if not folder:
        raise UsageError(f"{kind} needs the folder it lies in, got {short_repr(text)}. Write {kind}:DIR.")
    if not os.path.isdir(_path(folder)):
        raise UsageError(f"there is no folder {folder!r}, named in the data set {short_repr(text)}. Write {kind}:DIR.")


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text))  # unlike Path.expanduser, leaves the name of an unknown user alone
