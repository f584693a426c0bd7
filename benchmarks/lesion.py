"""What lesions cost: ours, which shares the beginnings of forward passes, against a whole pass for every lesion.

    python benchmarks/lesion.py timm:vit_small_patch16_224 [--settings kinds=block,draws=0] [-n 32] [--batch 16]

Weights are drawn unless MODEL names a file (timm:NAME@FILE), images are noise, labels are what the intact model
answers. Both count right answers for all lesions, and the counts must be equal. One JSON line: seconds, on a CPU of its
own time, and forward passes' worth of blocks.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from record import clock, hardware, tell, versions
from torch import Tensor

from vitadel import models
from vitadel.analyze import study
from vitadel.cli.analyze import read_study

ENDINGS = {"block": "", "attention": ".attn", "mlp": ".mlp"}


def busy(device: torch.device) -> float:
    """Seconds of work: of the processor, which others may be using too, or of the device until it is done."""
    return time.process_time() if device.type == "cpu" else clock(device)


def one_by_one(model: models.Model, x: Tensor, y: Tensor, told: dict[str, Any], batch: int) -> dict[str, int]:
    """Right answers of every lesion that the study tells of, each by forward passes of its own."""
    lesions = [[f"{one['layer']}{ENDINGS[one['kind']]}"] for one in told["single"]]
    lesions += [
        [f"{name}{ENDINGS[one['kind']]}" for name in layers] for one in told["random"] for layers in one["layers"]
    ]
    right: dict[str, int] = {}
    with torch.no_grad():
        for names in lesions:
            if (key := "+".join(names)) in right:
                continue
            with model.taps.skip(*names):
                answers = [model(part).argmax(1) for part in x.split(batch)]
            right[key] = int((torch.cat(answers) == y).sum())
    return right


def ours(told: dict[str, Any]) -> dict[str, int]:
    right = {f"{one['layer']}{ENDINGS[one['kind']]}": one["correct"] for one in told["single"]}
    for one in told["random"]:
        for layers, share in zip(one["layers"], one["accuracies"], strict=True):
            right["+".join(f"{name}{ENDINGS[one['kind']]}" for name in layers)] = round(share * told["n"])
    return right


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
    told: Any = study(model, x, y, read_study(f"lesion:{args.settings}"), batch=args.batch)
    shared, started = busy(device) - started, busy(device)
    peer = one_by_one(model, x, y, told, args.batch)
    whole = busy(device) - started
    record: dict[str, object] = {
        "benchmark": "lesion",
        "model": args.model.partition("@")[0],
        "settings": args.settings,
        "n": args.n,
        "batch": args.batch,
        **hardware(device),
        "versions": versions("timm"),
        "same_counts": ours(told) == peer,
        "cost": told["cost"],
        "forwards_per_block": round(told["cost"]["forwards"] / told["cost"]["layers"], 3),
        "seconds": {"shared": round(shared, 2), "one_by_one": round(whole, 2)},
        "ratio": round(whole / shared, 2),
    }
    tell(record, args.out)


if __name__ == "__main__":
    main()
