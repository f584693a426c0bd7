"""What a run folder shows: its study read, whichever it is, and all its exhibits drawn as files beside it.

A result with exhibits says itself what is to be shown. That of masking is older than exhibits and has its own reader.
"""

from pathlib import Path

from vitadel.core.errors import UsageError
from vitadel.core.files import read_json
from vitadel.report.exhibits import Exhibit, Findings, exhibits, findings
from vitadel.report.figures.exhibits import write_exhibits
from vitadel.report.figures.masking import write_masking
from vitadel.report.masking import Masking, masking


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
    """What a run folder shows, as PNG and PDF in its `figures`: of its study there, of each survey in a folder there.

    None if nothing is finished that shows something.
    """
    study, into = read_study(folder), folder / "figures"
    if isinstance(study, Findings):
        written = write_exhibits(study.exhibits, into)
    else:
        written = [] if study is None else write_masking(study, into)
    for path in sorted(folder.glob("eval/*/summary.json")):
        written += write_exhibits(_shown(path), into / path.parent.name)
    return written


def _shown(path: Path) -> tuple[Exhibit, ...]:
    try:
        return exhibits(read_json(path).get("exhibits", []))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not as the survey wrote it ({error!r}). Run the evaluation again.") from error
