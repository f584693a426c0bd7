"""From the pages of a journal to one row per image.

A row says what an image is, what the model makes of it, to which attack it fell first and what each attack spent on it.
"""

from collections.abc import Mapping, Sequence

from vitadel.evaluate.attack_suites import Entry
from vitadel.evaluate.book import COSTS
from vitadel.evaluate.cascade import Images
from vitadel.evaluate.journal import Journal

STANDING, WRONG = "", "clean"
_CLEAN = -1  # the place of the image itself, before the attacks

Fall = tuple[str, int, float]  # to which attack, as which class, at which distance


def verdicts(
    journal: Journal, images: Images, ids: Sequence[str], entries: Sequence[Entry], fallen: Mapping[int, Fall]
) -> dict[str, list[object]]:
    """One row per image of the split; `fallen` are those that fell inside a smaller threat, and how."""
    clean = journal.page("clean").read()
    pages = [_by_row(journal.page(entry.name).read()) for entry in entries]
    columns: dict[str, list[object]] = {name: [] for name in (*_NAMES, *COSTS)}
    for place, row in enumerate(int(str(row)) for row in clean["row"]):
        label, answer = int(str(clean["label"][place])), int(str(clean["clean_prediction"][place]))
        known = [page.get(row, {}) for page in pages]
        right = float(str(clean["right_scored"][place]))
        worst = _CLEAN
        if any("right_chosen" in line for line in known) or 0 < right < 1:
            worst, right = _worst(float(str(clean["right_chosen"][place])), right, known)
            name, size = (
                (WRONG, 0.0) if worst == _CLEAN else (entries[worst].name, float(str(known[worst]["distance"])))
            )
            fall: Fall = (STANDING if right >= 0.5 else name), answer, size
        else:
            fall = _first_fall(answer, label == answer, known, entries, fallen.get(row))
            right = float(fall[0] == STANDING)
        columns["row"].append(row)
        columns["id"].append(ids[row])
        columns["label"].append(label)
        columns["clean_prediction"].append(answer)
        columns["clean_right"].append(float(str(clean["right_scored"][place])))
        for name, value in zip(("fell_to", "prediction", "size"), fall, strict=True):
            columns[name].append(value)
        columns["right"].append(right)
        columns["worst"].append(worst)
        for cost in COSTS:
            columns[cost].append([float(str(line.get(cost, 0))) for line in known])
    return columns


_NAMES = (
    "row",
    "id",
    "label",
    "clean_prediction",
    "clean_right",
    "prediction",
    "fell_to",
    "size",
    "right",
    "worst",
    *COSTS,
)


def _by_row(lines: Mapping[str, Sequence[object]]) -> dict[int, dict[str, object]]:
    rows = lines.get("row", ())
    return {int(str(row)): {name: values[at] for name, values in lines.items()} for at, row in enumerate(rows)}


def _first_fall(
    answer: int, right: bool, known: Sequence[Mapping[str, object]], entries: Sequence[Entry], before: Fall | None
) -> Fall:
    if not right:
        return WRONG, answer, 0.0
    if before is not None:
        return before
    size = 0.0
    for entry, line in zip(entries, known, strict=True):
        size = float(str(line.get("distance", size)))
        if line.get("success"):
            return entry.name, int(str(line["prediction"])), size
    return STANDING, answer, size


def _worst(chosen: float, scored: float, known: Sequence[Mapping[str, object]]) -> tuple[int, float]:
    """Which attack led to the point a random model is least often right about, and how often on fresh draws."""
    options = [(chosen, scored, _CLEAN)]
    for place, line in enumerate(known):
        if line:
            options.append((float(str(line["right_chosen"])), float(str(line["right_scored"])), place))
    _, right, place = min(options, key=lambda option: option[0])
    return place, right
