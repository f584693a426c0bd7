"""The cells of ImageNet-C at 224 px: us against imagecorruptions-imaug, in one run.

    python benchmarks/corruptions.py --data folder:DIR -n 16 [--device cuda] [--out benchmarks/results/FILE.jsonl]

Both get the same images, frost from the peer's photographs. Each of the 19 corruptions is timed at its five severities;
a number is milliseconds per image for all five, the best of --repeats. The peer works on one core image by image, which
is all it can do; we on one core too, or with --device cuda on the GPU, on as many images at once as -n says. Without
--data the images are smooth noise. Writing files and the model that would look at the images are no part of it.
"""

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from record import clock, hardware, tell, versions
from torch import Tensor
from torch.nn.functional import interpolate

from vitadel import data
from vitadel.shifts import CORRUPTIONS, SEVERITIES, Corruption

SIZE = 224
CPU = torch.device("cpu")


def images(spec: str | None, n: int) -> Tensor:
    if spec is None:
        coarse = torch.rand(n, 3, SIZE // 16, SIZE // 16, generator=torch.Generator().manual_seed(0))
        return interpolate(coarse, size=SIZE, mode="bicubic").clamp_(0, 1)
    split = data.load(spec, preprocess=data.parse_preprocess(f"crop:{SIZE}:256")).split("test")
    return split.images(torch.arange(min(n, len(split))))


def by_peer(x: Tensor) -> list[NDArray[np.uint8]]:
    return list((x * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy())


def best(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    run()  # warm: tables here, compilation there
    seconds = []
    for _ in range(repeats):
        started = clock(device)
        run()
        seconds.append(clock(device) - started)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("-n", type=int, default=16)
    parser.add_argument("--peer-n", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", type=torch.device, default=CPU)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    peer = importlib.import_module("imagecorruptions")
    importlib.import_module("cv2").setNumThreads(1)
    torch.set_num_threads(1)
    photos = Path(str(peer.__file__)).parent / "frost"
    x = images(args.data, args.n)
    rows, pictures, x = torch.arange(len(x)), by_peer(x[: args.peer_n]), x.to(args.device)

    table: dict[str, dict[str, float]] = {}
    for name in CORRUPTIONS:
        cells = [Corruption(name, severity, frost=photos if name == "frost" else None) for severity in SEVERITIES]

        def ours(cells: list[Corruption] = cells) -> None:
            for cell in cells:
                cell(x, rows, seed=0)

        def theirs(name: str = name) -> None:
            for severity in SEVERITIES:
                for picture in pictures:
                    peer.corrupt(picture, severity=severity, corruption_name=name)

        us = best(ours, args.device, args.repeats) / len(x) * 1e3
        them = best(theirs, CPU, args.repeats) / len(pictures) * 1e3
        table[name] = {"ours_ms": round(us, 4), "peer_ms": round(them, 2), "times": round(them / us, 1)}

    common = [name for name, kind in CORRUPTIONS.items() if kind.group != "extra"]
    totals = {}
    for cells_counted, names in (("75", common), ("95", list(CORRUPTIONS))):
        us, them = (sum(table[name][who] for name in names) for who in ("ours_ms", "peer_ms"))
        totals[cells_counted] = {"ours_ms": round(us, 2), "peer_ms": round(them, 1), "times": round(them / us, 1)}
    tell(
        {
            "benchmark": "corruptions",
            "data": args.data or "smooth noise",
            "size": SIZE,
            "images": len(x),
            "peer_images": len(pictures),
            **hardware(args.device),
            "versions": versions("imagecorruptions-imaug", "numba", "opencv-python-headless", "scikit-image", "Pillow"),
            "cells": totals,
            "corruptions": table,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
