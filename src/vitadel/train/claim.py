"""One run, several processes: the first one writes."""

from collections.abc import Mapping
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from vitadel.core.errors import UsageError
from vitadel.runs import Run


def claim_together(folder: Path, kind: str, parts: Mapping[str, object], *, device: str) -> Run:
    """Claim `folder` once for all processes of a launch; the others get it to read from.

    Refused in the first process, it is refused in all.
    """
    run, refusal = None, [""]
    if Accelerator().is_main_process:
        try:
            run = Run.claim(folder, kind, parts, device=device)
        except UsageError as error:
            refusal = [str(error)]
    broadcast_object_list(refusal)
    if refusal[0]:
        raise UsageError(refusal[0])
    return run or Run.open(folder)
