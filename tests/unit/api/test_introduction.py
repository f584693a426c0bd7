"""The ten lines that introduce the API run as they are written, with local files in place of downloads."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import vitadel as vd

LINES = """
model = vd.load_model("timm:vit_tiny_patch16_224", pretrained=True)
x, y = vd.load_data("cifar10:DIR").test.tensors(256)

x_adv = vd.attacks.PGD(steps=20)(model, x, y, "linf:8/255").x_adv
result = vd.robustness(model, x, y, "linf:8/255")
print(result.clean_accuracy, result.robust_accuracy, result.flags)

vd.evaluate(model, "cifar10:DIR[:1000]", ["autoattack", "corruptions"], threat="linf:8/255", run="runs/vit")
vd.train("digits-adversarial", run="runs/robust", overrides={"plan.epochs": 3})
vd.analyze(model, "cifar10:DIR[:200]", "lesion", run="runs/lesion")
vd.report(["runs/vit", "runs/robust"], "report.html")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """CIFAR-10 in its own format, with few images."""
    rng = np.random.default_rng(0)
    base = tmp_path / "cifar-10-batches-py"
    base.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        content = {b"data": rng.integers(0, 256, (8, 3072), dtype=np.uint8), b"labels": list(range(8))}
        (base / name).write_bytes(pickle.dumps(content))
    (base / "batches.meta").write_bytes(pickle.dumps({b"label_names": [f"class {k}".encode() for k in range(10)]}))
    return tmp_path


def test_the_introductory_lines_run_as_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    tiny = vd.load_model(
        "timm:test_vit",
        num_classes=10,
        image_size=32,
        patch_size=8,
        options={"depth": 1, "embed_dim": 32, "num_heads": 2},
    )
    vd.models.save(tiny, Path("tiny.safetensors"))
    lines = LINES
    for written, local in (
        ('"timm:vit_tiny_patch16_224", pretrained=True', '"tiny.safetensors"'),
        ("cifar10:DIR", f"cifar10:{folder}"),
        ("tensors(256)", "tensors(8)"),
        ('run="runs/robust", ', 'run="runs/robust", data="digits[:64]", '),
    ):
        assert written in lines
        lines = lines.replace(written, local)
    names: dict[str, object] = {"vd": vd}
    exec(lines, names)  # noqa: S102
    x, x_adv, y = names["x"], names["x_adv"], names["y"]
    assert isinstance(x, torch.Tensor)
    assert isinstance(x_adv, torch.Tensor)
    assert y.shape == (8,)  # type: ignore[attr-defined]
    assert 0 < float((x_adv - x).abs().max()) <= 8 / 255 + 1e-6
    page = Path("report.html").read_text("utf-8")
    for shown in ("AutoAttack", "corruption", "robust"):
        assert shown in page
