"""Cost of AutoAttack by number of images and number of classes.

    python benchmarks/growth.py MODEL --data folder:DIR --images 250,500,1000 --out benchmarks/results/growth.jsonl
    python benchmarks/growth.py MODEL --data folder:DIR --classes 10,100,1000 -n 250 --out ...

A model with more classes is the same model with rows of its head repeated, each with smaller logits: the new classes
are never predicted, but every loss, rank and projection includes them. One JSON line per point.
"""

import argparse
import resource
from pathlib import Path

import torch
from record import clock, hardware, load, versions, write_record
from torch import Tensor, nn

from vitadel import robustness, threats
from vitadel.attacks import Engine


class MoreClasses(nn.Module):
    """The logits of a model, followed by weaker copies of them up to `classes`."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model, self.classes = model, classes

    def forward(self, x: Tensor) -> Tensor:
        z_BK = self.model(x)
        copies = -(-self.classes // z_BK.shape[1])
        weaker = torch.arange(copies, device=x.device, dtype=z_BK.dtype).repeat_interleave(z_BK.shape[1])
        return (z_BK.repeat(1, copies) - weaker)[:, : self.classes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--threat", default="linf:8/255")
    parser.add_argument("--images", default="")
    parser.add_argument("--classes", default="")
    parser.add_argument("-n", type=int, default=250)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    points: list[tuple[int, int | None]] = [(int(n), None) for n in args.images.split(",") if n]
    points += [(args.n, int(classes)) for classes in args.classes.split(",") if classes]
    for n, classes in points:
        model, x, y = load(args.model, args.data, n, device)
        subject = model if classes is None else MoreClasses(model, classes)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        started = clock(device)
        result = robustness(subject, x, y, threats.parse_threat(args.threat), engine=Engine())
        record: dict[str, object] = {
            "benchmark": "growth",
            "model": Path(args.model).stem,
            "threat": args.threat,
            "n": n,
            "classes": classes or 10,
            **hardware(device),
            "versions": versions("timm"),
            "seconds": round(clock(device) - started, 2),
            "robust": result.robust.accuracy,
            "components": {one.name: one.seconds for one in result.attacks},
            "gpu_mib": round(torch.cuda.max_memory_allocated() / 2**20) if device.type == "cuda" else None,
            "resident_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
        write_record(record, args.out)


if __name__ == "__main__":
    main()
