"""Speed and memory of reading generated images in random order, as their number grows.

    python benchmarks/mixer.py --gigabytes 1,20 --folder /tmp/mixer --out benchmarks/results/mixer.jsonl

For each size it writes shards of random pixels, then reads batches of 820 images (the synthetic 80 percent of 1024) in
a fresh process: once from disk, with the page cache cleared, and once from the cache. The peer is the same rows of the
same files by np.load(mmap_mode="r"). Memory is that of the process according to Linux. The folder of each size is
removed afterwards. One JSON line per size.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from record import hardware, versions, write_record
from torch import Tensor

from vitadel.data import Permutation, Shards
from vitadel.data.shards.writer import Block, write_shards

BATCH = 820
SIZE = 32
CLASSES = 10
Read = Callable[[Tensor], tuple[Tensor, Tensor]]


def write(folder: Path, count: int) -> None:
    """Random pixels; the label of row r is r modulo 10, so that reading a wrong row is detected."""

    def blocks(length: int = 10_000) -> Iterator[Block]:
        pixels = np.random.default_rng(0).integers(0, 256, (length, SIZE, SIZE, 3), dtype=np.uint8)
        for first in range(0, count, length):
            rows = np.arange(first, min(first + length, count))
            yield pixels[: len(rows)], rows % CLASSES

    write_shards(folder, blocks(), count=count, image_size=SIZE, num_classes=CLASSES)


def forget(folder: Path) -> None:
    """Remove the files from the page cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def by_shards(folder: Path) -> Read:
    shards = Shards.read(folder)
    return lambda rows: (shards.pixels(rows), shards.labels(rows))


def by_numpy(folder: Path) -> Read:
    images, labels = (
        [np.load(path, mmap_mode="r") for path in sorted(folder.glob(f"{kind}-*.npy"))] for kind in ("images", "labels")
    )

    def read(rows: Tensor) -> tuple[Tensor, Tensor]:
        shard, place = rows.numpy() // len(images[0]), rows.numpy() % len(images[0])
        pixels = np.stack([images[s][p] for s, p in zip(shard, place, strict=True)])
        y = np.array([labels[s][p] for s, p in zip(shard, place, strict=True)])
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y).long()

    return read


READERS = {"shards": by_shards, "np.load": by_numpy}


def memory() -> dict[str, float]:
    """Of this process, in MiB: resident, of that mapped files, the most ever resident, page tables."""
    names = {"VmRSS": "resident", "RssFile": "of_files", "VmHWM": "peak", "VmPTE": "page_tables"}
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {names[name]: round(int(rest[0]) / 1024, 1) for key, *rest in lines if (name := key.rstrip(":")) in names}


def measure(reader: str, folder: Path, count: int, batches: int) -> dict[str, object]:
    """Read the same batches twice; the second time most of them are in the system's cache."""
    permutation, sizes = Permutation(count, seed=0), {"mib_before": memory()}
    forget(folder)
    read, rates = READERS[reader](folder), {}
    for state in ("from_disk", "from_cache"):
        started, busy = time.perf_counter(), time.process_time()
        for number in range(batches):
            rows = permutation.at(torch.arange(number * BATCH, (number + 1) * BATCH))
            _, y = read(rows)
            assert torch.equal(y, rows % CLASSES)
        rates[f"images_per_s_{state}"] = round(batches * BATCH / (time.perf_counter() - started))
        rates[f"images_per_cpu_s_{state}"] = round(batches * BATCH / (time.process_time() - busy))
        sizes[f"mib_{state}"] = memory()
    return {**rates, **sizes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", default="1")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", nargs=2, metavar=("READER", "COUNT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        reader, count = args.measure
        sys.stdout.write(json.dumps(measure(reader, args.folder, int(count), args.batches)))
        return
    for gigabytes in map(float, args.gigabytes.split(",")):
        folder, count = args.folder / f"{gigabytes:g}", int(gigabytes * 1e9 / (3 * SIZE**2))
        started = time.perf_counter()
        write(folder, count)
        record: dict[str, object] = {
            "benchmark": "mixer",
            "gigabytes": gigabytes,
            "images": count,
            "batch": BATCH,
            "batches": args.batches,
            **hardware(torch.device("cpu")),
            "versions": {**versions(), "numpy": np.__version__},
            "write_s": round(time.perf_counter() - started, 1),
            "load": round(os.getloadavg()[0], 1),  # above `cores`, the rates are too low
        }
        for reader in READERS:
            words = ["--folder", str(folder), "--batches", str(args.batches), "--measure", reader, str(count)]
            done = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE)  # noqa: S603
            record[reader] = json.loads(done.stdout)
        shutil.rmtree(folder)
        write_record(record, args.out)


if __name__ == "__main__":
    main()
