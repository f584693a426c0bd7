"""The cells of ImageNet-C at 224 px: us against imagecorruptions-imaug, in one run.

    python benchmarks/corruptions.py --data folder:DIR -n 16 [--out benchmarks/results/FILE.jsonl]
    python benchmarks/corruptions.py --data folder:DIR -n 512 --device cuda --peer-record benchmarks/results/FILE.jsonl

Both get the same images, frost from the peer's photographs. A number is milliseconds per image for all five severities
of a corruption, the best of --repeats, we and the peer in turn. The peer works on one core image by image, which is all
it can do; we on one core too, or with --device cuda on the GPU, on as many images at once as -n says. On a core the
clock counts the time the process has had, so that other work on the machine takes part in neither number; on a GPU it
counts seconds. Writing files and the model that would look at the images are no part of it.

Without --data the images are smooth noise. Where the peer is not installed, --peer-record takes its times from an
earlier record, which the new one names, and --no-peer does without; --frost names the folder of photographs then.
"""

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import clock, hardware, versions, write_record
from torch import Tensor
from torch.nn.functional import interpolate

from vitadel import data
from vitadel.shifts import CORRUPTIONS, SEVERITIES, Corruption

SIZE = 224
PEER = ("imagecorruptions-imaug", "numba", "opencv-python-headless", "scikit-image", "scipy")
Run = Callable[[], None]


def images(spec: str | None, n: int) -> Tensor:
    if spec is None:
        coarse = torch.rand(n, 3, SIZE // 16, SIZE // 16, generator=torch.Generator().manual_seed(0))
        return interpolate(coarse, size=SIZE, mode="bicubic").clamp_(0, 1)
    split = data.load(spec, preprocess=data.parse_preprocess(f"crop:{SIZE}:256")).split("test")
    return split.images(torch.arange(min(n, len(split))))


def now(device: torch.device) -> float:
    return time.process_time() if device.type == "cpu" else clock(device)


def best_in_turn(runs: list[tuple[Run, torch.device]], repeats: int) -> list[float]:
    """The least seconds of each run, one repeat of each after the other."""
    for run, _ in runs:
        run()  # warm: tables here, compilation there
    least = [float("inf")] * len(runs)
    for _ in range(repeats):
        for number, (run, device) in enumerate(runs):
            started = now(device)
            run()
            least[number] = min(least[number], now(device) - started)
    return least


def ours(name: str, x: Tensor, frost: Path | None) -> Run:
    cells = [Corruption(name, severity, frost=frost if name == "frost" else None) for severity in SEVERITIES]
    rows = torch.arange(len(x))

    def run() -> None:
        for cell in cells:
            cell(x, rows, seed=0)

    return run


def theirs(peer: Any, name: str, x: Tensor) -> Run:
    pictures = list((x * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy())

    def run() -> None:
        for severity in SEVERITIES:
            for picture in pictures:
                peer.corrupt(picture, severity=severity, corruption_name=name)

    return run


def kept(record: Path) -> dict[str, Any]:
    """The last line of a file of records that has the peer's times."""
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    records = [line for line in lines if line["benchmark"] == "corruptions" and line["peer"] == "in this run"]
    if not records:
        raise SystemExit(f"{record} holds no run of this benchmark with the peer")
    return records[-1]


def totals(table: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """What the 75 cells cost together, and the 95."""
    sums = {}
    for count, extra in (("75", False), ("95", True)):
        names = [name for name, kind in CORRUPTIONS.items() if extra or kind.group != "extra"]
        us = sum(table[name]["ours_ms"] for name in names)
        sums[count] = {"ours_ms": round(us, 3)}
        if all("peer_ms" in table[name] for name in names):
            them = sum(table[name]["peer_ms"] for name in names)
            sums[count] |= {"peer_ms": round(them, 1), "times": round(them / us, 2)}
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("-n", type=int, default=16)
    parser.add_argument("--peer-n", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--peer-record", type=Path)
    parser.add_argument("--frost", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer, earlier, frost = None, None, args.frost
    if args.peer_record:
        earlier = kept(args.peer_record)
    elif not args.no_peer:
        peer = importlib.import_module("imagecorruptions")
        importlib.import_module("cv2").setNumThreads(1)
        frost = frost or Path(str(peer.__file__)).parent / "frost"
    x = images(args.data, args.n)
    seen_by_peer, x = x[: args.peer_n], x.to(args.device)

    table: dict[str, dict[str, float]] = {}
    for name in CORRUPTIONS:
        runs = [(ours(name, x, frost), args.device)]
        if peer:
            runs.append((theirs(peer, name, seen_by_peer), torch.device("cpu")))
        us, *them = best_in_turn(runs, args.repeats)
        table[name] = {"ours_ms": round(us / len(x) * 1e3, 5)}
        if peer:
            table[name]["peer_ms"] = round(them[0] / len(seen_by_peer) * 1e3, 3)
        if earlier:
            table[name]["peer_ms"] = earlier["corruptions"][name]["peer_ms"]
        if "peer_ms" in table[name]:
            table[name]["times"] = round(table[name]["peer_ms"] / table[name]["ours_ms"], 2)
    write_record(
        {
            "benchmark": "corruptions",
            "data": Path(args.data.partition(":")[2]).name if args.data else "smooth noise",
            "size": SIZE,
            "images": len(x),
            "frost": "procedural" if frost is None else "photographs",
            "peer": "in this run" if peer else earlier and {key: earlier[key] for key in ("at", "device", "versions")},
            "peer_images": len(seen_by_peer) if peer else earlier and earlier["peer_images"],
            **hardware(args.device),
            "load": round(os.getloadavg()[0], 1),
            "clock": "seconds of one core" if args.device.type == "cpu" else "seconds",
            "versions": versions("numpy", "Pillow", *(PEER if peer else ())),
            "cells": totals(table),
            "corruptions": table,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
