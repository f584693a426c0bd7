"""The study in a run folder, whichever it is: read, and drawn as files beside it.

A result with exhibits says itself what is to be shown. That of masking is older than exhibits and has its own reader.
"""

from pathlib import Path

from vitadel.errors import UsageError
from vitadel.report.exhibit_figures import write_exhibits
from vitadel.report.exhibits import Findings, findings
from vitadel.report.masking import Masking, masking
from vitadel.report.masking_figures import write_masking
from vitadel.runs import read_json


def read_study(folder: Path) -> Masking | Findings | None:
    """What the study in a run folder found; None if it is not finished, or not one that can be shown."""
    path = folder / "study" / "result.json"
    if not path.exists():
        return None
    told = read_json(path)
    try:
        if "exhibits" in told:
            return findings(told)
        return masking(told) if told.get("study") == "masking" else None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is not as the study wrote it ({error!r}). Delete it and run the study again."
        ) from error


def write_figures(folder: Path) -> list[Path]:
    """The figures of the study in a run folder, as PNG and PDF beside it; none if there is no finished study."""
    study = read_study(folder)
    if isinstance(study, Findings):
        return write_exhibits(study, folder / "figures")
    return [] if study is None else write_masking(study, folder / "figures")
