"""Turned and shifted images: is there a small move of the camera that fools the model?

The grid of Bhojanapalli et al. 2021 (arXiv:2103.14586), after Engstrom et al. 2019 (arXiv:1712.02779): 9 x 9 shifts of
up to 16 pixels and 31 turns of up to 30 degrees, 2511 moves of which the image itself is one. An image falls if any of
them is misclassified. Images of less than 128 px have the same grid scaled to 3 pixels of 32, Engstrom's on CIFAR.

Nothing is looked at that cannot change a verdict: an image that fell is done. The first `mapped` images see all moves,
which gives the map of the accuracy per move, and the order for all others: at every place the move that fells most of
the mapped images which those before it left. Moves are tried in blocks of 1, 2, 4 ... 64, so what is spent on an image
depends on that order alone, not on batches. Verdicts are those of the whole grid.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.core.numeric import Count, CountOrZero, Degrees, NotNegative, check_ranges
from vitadel.core.stats import Accuracy, accuracy, expected_accuracy
from vitadel.data import DataSet
from vitadel.evaluate.suites.base import Desk, Outcome, Sheet, Work, share_of
from vitadel.evaluate.suites.pictures import picture
from vitadel.runs.exhibits import Exhibit, Heat, Line, Lines, Matrix, Picture, Pictures
from vitadel.runs.schema import Measure
from vitadel.shifts.rotate_translate import RotateTranslate, moved

_CLEAN = "clean"
_REACH, _SMALL, _SHARE = 16.0, 128, 3 / 32
_LONGEST = 64  # moves of a block
_STANDS = -1
_IMAGES = 6  # shown


@dataclass(frozen=True, slots=True)
class Spatial:
    """Accuracy when every image is turned and shifted as it suits the model least.

    `reach` is the longest shift in pixels, by the size of the images if not said, `degrees` the widest turn; `shifts`
    and `turns` count the values in between, ends and middle included. `mapped` images see every move.
    """

    name: ClassVar[str] = "spatial"
    title: ClassVar[str] = "Turns and shifts"
    about: ClassVar[str] = "the worst of 9 x 9 shifts and 31 turns for every image, and the accuracy per move"
    needs_threat: ClassVar[bool] = False

    reach: NotNegative | None = None
    degrees: Degrees = 30.0
    shifts: Count = 9
    turns: Count = 31
    mapped: CountOrZero = 32

    def __post_init__(self) -> None:
        check_ranges(self)
        self.threat(_SMALL)  # which refuses what makes no sense
        if self.shifts * self.turns < 2:
            raise UsageError("spatial needs more moves than none. Write shifts=9,turns=31.")

    def threat(self, side: int) -> RotateTranslate:
        """The moves of images of this size."""
        usual = _REACH if side >= _SMALL else _SHARE * side
        return RotateTranslate(usual if self.reach is None else self.reach, self.degrees, self.shifts, self.turns)

    def refuse(self, model: nn.Module, data: DataSet, split: str) -> None:
        """Any model and any data will do."""

    # ---------------------------------------------------------------- looking

    def look(self, desk: Desk) -> None:
        moves = self._moves(desk)
        tell = desk.meter(len(desk.share) * len(moves))
        self._classify(desk)
        self._map(desk, moves, tell)
        desk.ranks.wait()  # the order of the moves comes from what all processes found
        self._search(desk, moves, tell)

    def _classify(self, desk: Desk) -> None:
        sheet = desk.sheet(_CLEAN)
        for rows, fetch in desk.portions(sheet.missing(desk.share)):
            sheet.fill(rows, fetch, desk.classify, batch=desk.batch)

    def _map(self, desk: Desk, moves: Tensor, tell: Callable[[int], None]) -> None:
        """Every move of the first images, one angle at a time."""
        share = [row for row in desk.share if row < self.mapped]
        angles = list(moves.split(self.shifts**2))
        sheets = [desk.sheet(_angle(number)) for number in range(len(angles))]
        for sheet, angle in zip(sheets, angles, strict=True):
            tell(len(angle) * (len(share) - len(sheet.missing(share))))
        for rows, fetch in desk.portions(sorted({row for sheet in sheets for row in sheet.missing(share)})):
            for sheet, angle in zip(sheets, angles, strict=True):
                many = max(1, desk.batch // len(angle))
                sheet.fill(rows, fetch, _mapping(desk, angle), batch=many, tell=_times(tell, len(angle)))

    def _search(self, desk: Desk, moves: Tensor, tell: Callable[[int], None]) -> None:
        order = self._order(desk, moves)
        blocks = list(_blocks(len(order)))
        sheets = [desk.sheet(_block(first)) for first, _ in blocks]
        clean, labels = desk.sheet(_CLEAN).known, desk.images.labels.tolist()
        rest = [row for row in desk.share if row >= self.mapped]
        right = [row for row in rest if int(str(clean[row]["prediction"])) == labels[row]]
        tell((len(rest) - len(right)) * len(moves))
        todo = [row for row in right if not _settled(row, sheets)]
        tell((len(right) - len(todo)) * len(moves))
        for rows, fetch in desk.portions(todo):
            standing = rows
            for sheet, (first, last) in zip(sheets, blocks, strict=True):
                tell((last - first) * (len(standing) - len(sheet.missing(standing))))
                many = max(1, desk.batch // (last - first))
                work = _searching(desk, moves[order[first:last]], first)
                sheet.fill(standing, fetch, work, batch=many, tell=_times(tell, last - first))
                left = [row for row in standing if sheet.known[row]["fell"] == _STANDS]
                tell((len(standing) - len(left)) * (len(moves) - last) + (len(left) if last == len(order) else 0))
                standing = left

    def _moves(self, desk: Desk) -> Tensor:
        return self.threat(min(desk.size)).moves()

    def _fell(self, desk: Desk) -> Tensor | None:
        """[images, moves]: which of the mapped images each move fells; None if none are mapped."""
        count = min(self.mapped, len(desk.images))
        if not count:
            return None
        parts = []
        for number in range(self.turns):
            lines = desk.lines(_angle(number))
            parts.append(torch.tensor([_whole(lines[row]["fell"]) for row in range(count)], dtype=torch.bool))
        return torch.cat(parts, 1)

    def _order(self, desk: Desk, moves: Tensor) -> Tensor:
        """The moves in the order they are tried in; the image itself has been seen."""
        fell_NM, itself = self._fell(desk), len(moves) // 2
        if fell_NM is not None:
            fell_NM = fell_NM[~fell_NM[:, itself]]  # what is wrong anyway says nothing of the moves
        order = likely_first(moves, fell_NM)
        return order[order != itself]

    # ------------------------------------------------------------- concluding

    def conclude(self, desk: Desk) -> Outcome:
        moves, labels = self._moves(desk), desk.images.labels.tolist()
        order, fell_NM = self._order(desk, moves), self._fell(desk)
        answers = desk.answers(_CLEAN)
        verdicts = self._verdicts(desk, order, fell_NM, [a == y for a, y in zip(answers, labels, strict=True)])
        right = [float(one.move is None) for one in verdicts]
        worst, clean = share_of(right), share_of([float(a == y) for a, y in zip(answers, labels, strict=True)])
        found = [None if one.move is None else moves[one.move].tolist() for one in verdicts]
        spent = sum(one.forwards for one in verdicts)
        measures = [Measure.of(f"worst of {len(moves)} moves", worst, main=True)]
        if fell_NM is not None:
            mean = expected_accuracy((~fell_NM).double().mean(1).tolist())
            measures.append(Measure.of("mean over moves, mapped images", mean))
        threat = self.threat(min(desk.size))
        return Outcome(
            columns={
                "clean_prediction": answers,
                "right": right,
                **{
                    what: [None if one is None else one[place] for one in found]
                    for place, what in enumerate(("down", "to_the_right", "degrees"))
                },
                "forwards": [one.forwards for one in verdicts],
            },
            clean=clean,
            measures=measures,
            sentence=(
                f"{clean.accuracy:.1%} of {len(labels)} images are right as they are and {worst.accuracy:.1%} under "
                f"each of {len(moves)} moves; it took {spent} forward passes of {len(moves) * len(labels)}."
            ),
            conventions={
                "shifts": f"{self.shifts} x {self.shifts} of up to {threat.reach:g} px",
                "turns": f"{self.turns} of up to {self.degrees:g} degrees",
                "transform": "one composed affine map, rotation about the center first, bilinear, black outside",
                "mapped": 0 if fell_NM is None else len(fell_NM),
                "forwards": spent,
                "forwards_of_the_whole_grid": len(moves) * len(labels),
            },
            exhibits=self._exhibits(desk, moves, fell_NM, found),
        )

    def _verdicts(self, desk: Desk, order: Tensor, fell_NM: Tensor | None, clean: Sequence[bool]) -> "list[_Verdict]":
        blocks = list(_blocks(len(order)))
        pages = [desk.lines(_block(first)) for first, _ in blocks]
        itself, mapped = len(order) // 2, 0 if fell_NM is None else len(fell_NM)
        found = []
        for row, right in enumerate(clean):
            if not right:
                found.append(_Verdict(itself, 2 + len(order) if row < mapped else 1))
            elif fell_NM is not None and row < mapped:
                felling = order[fell_NM[row][order]]
                found.append(_Verdict(int(felling[0]) if len(felling) else None, 2 + len(order)))
            else:
                found.append(_tried(row, order, blocks, pages))
        return found

    def _exhibits(
        self, desk: Desk, moves: Tensor, fell_NM: Tensor | None, found: Sequence[list[float] | None]
    ) -> list[Exhibit]:
        shown = self._pictures(desk, found)
        if fell_NM is None:
            return [shown]
        share_TSS = (~fell_NM).double().mean(0).view(self.turns, self.shifts, self.shifts)
        lengths = [f"{one:g}" for one in moves[: self.shifts, 1].tolist()]
        angles = moves[:: self.shifts**2, 2].tolist()
        middle = self.shifts // 2
        counted = f"On the first {len(fell_NM)} images, which were shown every move."
        heat = Heat(
            "Accuracy per shift",
            f"{counted} Left: the mean over all turns; then without a turn, and at both ends.",
            [
                Matrix("mean over turns", share_TSS.mean(0).tolist()),
                Matrix("upright", share_TSS[self.turns // 2].tolist()),
                Matrix(f"at ±{self.degrees:g} degrees", ((share_TSS[0] + share_TSS[-1]) / 2).tolist()),
            ],
            "accuracy",
            "down, px",
            "right, px",
            lengths,
            lengths,
            low=0.0,
            high=1.0,
        )
        intervals = [_mean_of_moves(fell_NM, number, self.shifts**2) for number in range(self.turns)]
        lines = Lines(
            "Accuracy per turn",
            f"{counted} The band is a 95% interval over images.",
            [
                Line(
                    "mean over shifts",
                    angles,
                    [one.accuracy for one in intervals],
                    [one.low for one in intervals],
                    [one.high for one in intervals],
                ),
                Line("not shifted", angles, share_TSS[:, middle, middle].tolist(), dashed=True),
            ],
            "degrees",
            "accuracy",
            y_range=(0.0, 1.0),
        )
        return [heat, lines, shown]

    def _pictures(self, desk: Desk, found: Sequence[list[float] | None]) -> Pictures:
        rows = torch.arange(min(_IMAGES, len(desk.images)))
        x = desk.images.images(rows)
        above = [picture(image, desk.data.classes[int(desk.images.labels[at])]) for at, image in enumerate(x)]
        below: list[Picture | None] = []
        for at in range(len(rows)):
            move = found[at]
            if move is None:
                below.append(None)
            else:
                note = f"{move[0]:+.2g}, {move[1]:+.2g} px, {move[2]:+.3g}°" if any(move) else "wrong as it is"
                below.append(picture(moved(x[at : at + 1], torch.tensor([move]))[0], note))
        caption = (
            "The first images of the data set, and below the first move found that fools the model, if any does: "
            "down, to the right, and turned."
        )
        return Pictures("Moves that fool the model", caption, [above, below], ["as it is", "moved"])


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The move that felled an image, if one did, and how often the model was asked."""

    move: int | None
    forwards: int


def likely_first(moves: Tensor, fell_NM: Tensor | None) -> Tensor:
    """[M] numbers of moves: greedily those that fell most of what is left, then all others, the most felling first.

    Between equals, and if nothing is known, the largest moves come first: far corners of the grid fell most.
    """
    size = (moves / moves.abs().amax(0).clamp_min(1e-9)).square().sum(1)
    if fell_NM is None or not len(fell_NM):
        return size.argsort(descending=True, stable=True)
    rank = fell_NM.double().sum(0) + size / 10  # sizes are at most 3, so they only decide between equals
    left_N, chosen = torch.ones(len(fell_NM), dtype=torch.bool), list[int]()
    while bool((gain_M := fell_NM[left_N].double().sum(0)).any()):
        best = int((gain_M * (len(fell_NM) + 1) + rank / (len(fell_NM) + 1)).argmax())
        chosen.append(best)
        left_N &= ~fell_NM[:, best]
    rest = rank.argsort(descending=True, stable=True).tolist()
    taken = set(chosen)
    return torch.tensor([*chosen, *(number for number in rest if number not in taken)])


def _mapping(desk: Desk, moves: Tensor) -> Work:
    def work(rows: Tensor, x: Tensor) -> dict[str, list[object]]:
        return {"fell": list(_falls(desk, rows, x, moves).int().tolist())}

    return work


def _searching(desk: Desk, moves: Tensor, first: int) -> Work:
    def work(rows: Tensor, x: Tensor) -> dict[str, list[object]]:
        fell_BM = _falls(desk, rows, x, moves)
        place_B = torch.where(fell_BM.any(1), first + fell_BM.int().argmax(1), _STANDS)
        return {"fell": list(place_B.tolist())}

    return work


def _falls(desk: Desk, rows: Tensor, x: Tensor, moves: Tensor) -> Tensor:
    """[B, M]: which moves of which images are misclassified, as many at once as a batch holds."""
    image, move = torch.meshgrid(torch.arange(len(x)), torch.arange(len(moves)), indexing="ij")
    image, move = image.flatten(), move.flatten()
    wrong = []
    for part in torch.arange(len(image)).split(desk.batch):
        at = image[part]
        z_BK = desk.answer(moved(x[at.to(x.device)], moves[move[part]]), rows[at])
        wrong.append(z_BK.argmax(1) != desk.images.labels[rows[at]])
    return torch.cat(wrong).view(len(x), len(moves))


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the blocks of moves that are tried together: 1, 2, 4 ... 64, 64 ..."""
    first, length = 0, 1
    while first < count:
        yield first, min(count, first + length)
        first, length = first + length, min(2 * length, _LONGEST)


def _settled(row: int, sheets: Sequence[Sheet]) -> bool:
    """Whether the verdict on an image is already written down."""
    known = [sheet.known[row]["fell"] for sheet in sheets if row in sheet.known]
    return len(known) == len(sheets) or any(fell != _STANDS for fell in known)


def _tried(
    row: int, order: Tensor, blocks: Sequence[tuple[int, int]], pages: Sequence[Mapping[int, Mapping[str, object]]]
) -> _Verdict:
    for (_, last), page in zip(blocks, pages, strict=True):
        place = int(str(page[row]["fell"]))
        if place != _STANDS:
            return _Verdict(int(order[place]), 1 + last)
    return _Verdict(None, 1 + len(order))


def _mean_of_moves(fell_NM: Tensor, number: int, count: int) -> Accuracy:
    some = (~fell_NM[:, number * count : (number + 1) * count]).double().mean(1)
    return accuracy(int(some.sum()), len(some)) if count == 1 else expected_accuracy(some.tolist())


def _times(tell: Callable[[int], None], factor: int) -> Callable[[int], None]:
    return lambda count: tell(count * factor)


def _angle(number: int) -> str:
    return f"angle-{number}"


def _block(first: int) -> str:
    return f"block-{first}"


def _whole(values: object) -> list[int]:
    assert isinstance(values, list)
    return [int(str(value)) for value in values]
