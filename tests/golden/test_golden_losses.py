"""Thirty recorded losses: a refactoring must not change them.

Record anew with `python tests/golden/test_golden_losses.py` after an intended change.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from vitadel.recipes import RECIPES, override, train_recipe
from vitadel.runs import Run

RECORD = Path(__file__).with_name("digits_adversarial.json")
SETTINGS = ["plan.epochs=6", "plan.warmup_epochs=1", "plan.log_every_steps=1", "plan.ema=0.9"]


def losses(folder: Path) -> list[float]:
    train_recipe(override(RECIPES["digits-adversarial"](), SETTINGS), folder, data_spec="digits[:160]")
    return [float(str(entry["loss"])) for entry in Run.open(folder).read_log("step")]


def test_losses_match_the_record(tmp_path: Path) -> None:
    recorded = json.loads(RECORD.read_text())
    assert len(recorded) == 30
    # other processors round sums differently; over thirty steps that stays far below this
    assert losses(tmp_path / "run") == pytest.approx(recorded, abs=2e-3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        RECORD.write_text(json.dumps(losses(Path(folder) / "run")) + "\n")
