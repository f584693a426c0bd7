"""One run, several processes: the first one writes."""

from collections.abc import Mapping
from pathlib import Path

from accelerate import Accelerator

from vitadel.runs import Run


def claim_together(folder: Path, kind: str, parts: Mapping[str, object], *, device: str) -> Run:
    """Claim `folder` once for all processes of a launch; the others get it to read from."""
    state = Accelerator()
    if state.is_main_process:
        run = Run.claim(folder, kind, parts, device=device)
        state.wait_for_everyone()
        return run
    state.wait_for_everyone()
    return Run.open(folder)
