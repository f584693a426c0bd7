"""The cost of the study `correlation` relative to plain inference, on the same images in the same batches.

    python benchmarks/correlation.py timm:vit_small_patch16_224 [--settings per=token] [-n 128] [--batch 32]

Weights are random unless MODEL names a file (timm:NAME@FILE), images are noise: neither changes the cost. Inference and
study alternate `--rounds` times; the ratio is that of the fastest rounds. One JSON line; on a CPU, seconds are CPU
time.
"""

import argparse
import time
from pathlib import Path

import torch
from record import clock, hardware, versions, write_record

from vitadel import models
from vitadel.analyze import run_study, tensor_context
from vitadel.api.analyze import as_study


def busy(device: torch.device) -> float:
    """CPU time, or the time until the device has finished."""
    return time.process_time() if device.type == "cpu" else clock(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--settings", default="")
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = models.load(args.model).to(device)
    assert model.spec is not None
    size, study = model.spec.image_size, as_study(f"correlation:{args.settings}")
    x = torch.rand(args.n, 3, size, size, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(args.n, dtype=torch.int64)

    def infer() -> None:
        with torch.no_grad():
            for part in x.split(args.batch):
                model(part.to(device)).cpu()

    def measure_similarity() -> str:
        result = run_study(study, tensor_context(model, x, labels, batch_size=args.batch))
        return str(result.numbers["measure"])

    measure = measure_similarity()
    plain: list[float] = []
    whole: list[float] = []
    infer()
    for _ in range(args.rounds):
        for work, seconds in ((infer, plain), (measure_similarity, whole)):
            started = busy(device)
            work()
            seconds.append(busy(device) - started)
    record: dict[str, object] = {
        "benchmark": "correlation",
        "model": args.model.partition("@")[0],
        "settings": args.settings,
        "measure": measure,
        "n": args.n,
        "batch": args.batch,
        **hardware(device),
        "versions": versions("timm"),
        "seconds": {"inference": round(min(plain), 3), "study": round(min(whole), 3)},
        "ratio": round(min(whole) / min(plain), 3),
    }
    write_record(record, args.out)


if __name__ == "__main__":
    main()
