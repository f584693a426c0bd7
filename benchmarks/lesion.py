"""Cost of the study `lesion`, which shares the first layers of forward passes, against a whole pass for every lesion.

    python benchmarks/lesion.py timm:vit_small_patch16_224 [--settings kinds=block,draws=0] [-n 32] [--batch 16]

Weights are random unless MODEL names a file (timm:NAME@FILE), images are noise, labels are the predictions of the
intact model. Both count correct predictions for all lesions, and the counts must be equal. One JSON line: seconds (CPU
time on a CPU), and forward passes' worth of blocks.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from record import clock, hardware, versions, write_record
from torch import Tensor

from vitadel import models
from vitadel.analyze import study
from vitadel.api.analyze import as_study

ENDINGS = {"block": "", "attention": ".attn", "mlp": ".mlp"}


def busy(device: torch.device) -> float:
    """CPU time, or the time until the device has finished."""
    return time.process_time() if device.type == "cpu" else clock(device)


def one_by_one(model: models.Model, x: Tensor, y: Tensor, result: dict[str, Any], batch: int) -> dict[str, int]:
    """Correct predictions under every lesion of the study, each by forward passes of its own."""
    lesions = [[f"{one['layer']}{ENDINGS[one['kind']]}"] for one in result["single"]]
    lesions += [
        [f"{name}{ENDINGS[one['kind']]}" for name in layers] for one in result["random"] for layers in one["layers"]
    ]
    correct: dict[str, int] = {}
    with torch.no_grad():
        for names in lesions:
            if (key := "+".join(names)) in correct:
                continue
            with model.taps.skip(*names):
                predictions = [model(part).argmax(1) for part in x.split(batch)]
            correct[key] = int((torch.cat(predictions) == y).sum())
    return correct


def ours(result: dict[str, Any]) -> dict[str, int]:
    correct = {f"{one['layer']}{ENDINGS[one['kind']]}": one["correct"] for one in result["single"]}
    for one in result["random"]:
        for layers, share in zip(one["layers"], one["accuracies"], strict=True):
            correct["+".join(f"{name}{ENDINGS[one['kind']]}" for name in layers)] = round(share * result["n"])
    return correct


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--settings", default="kinds=block,draws=0")
    parser.add_argument("-n", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = models.load(args.model).to(device)
    assert model.spec is not None
    size = model.spec.image_size
    x = torch.rand(args.n, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        y = torch.cat([model(part).argmax(1) for part in x.split(args.batch)])
    started = busy(device)
    result: Any = study(model, x, y, as_study(f"lesion:{args.settings}"), batch_size=args.batch)
    shared, started = busy(device) - started, busy(device)
    peer = one_by_one(model, x, y, result, args.batch)
    whole = busy(device) - started
    record: dict[str, object] = {
        "benchmark": "lesion",
        "model": args.model.partition("@")[0],
        "settings": args.settings,
        "n": args.n,
        "batch": args.batch,
        **hardware(device),
        "versions": versions("timm"),
        "same_counts": ours(result) == peer,
        "cost": result["cost"],
        "forwards_per_block": round(result["cost"]["forwards"] / result["cost"]["layers"], 3),
        "seconds": {"shared": round(shared, 2), "one_by_one": round(whole, 2)},
        "ratio": round(whole / shared, 2),
    }
    write_record(record, args.out)


if __name__ == "__main__":
    main()
