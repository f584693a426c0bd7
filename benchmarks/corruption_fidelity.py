"""Corruptions against those of imagecorruptions-imaug: pixels, statistics, and accuracy of a model.

    python benchmarks/corruption_fidelity.py MODEL --data imagenet:DIR -n 200 [--out benchmarks/results/FILE.jsonl]

One JSON line per corruption, with one entry per severity. Both corrupt the same images, ours with frost from the peer's
photographs; each draws its own random numbers. Compared are
- for corruptions that draw nothing: by how many gray levels pixels differ at most, and the share that differ by more
  than one;
- the mean and the spread of each image's pixels and its mean distance from the clean image, in gray levels: ours, the
  peer's, and the mean difference over images with its standard error;
- the accuracy of MODEL on both, the images that only one of the two kept right, and how likely chance alone makes them
  so uneven (exact McNemar, two-sided).
Corruptions that --out has lines for already are left alone, so an interrupted run resumes.
"""

import argparse
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import hardware, versions, write_record
from torch import Tensor

from vitadel import data, models
from vitadel.core.stats import mcnemar
from vitadel.shifts import CORRUPTIONS, SEVERITIES, Corruption

FIXED = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur",
         "saturate")  # fmt: skip
SEEDED = ("glass_blur", "impulse_noise")  # these have generators of their own
STATISTICS = ("mean", "spread", "change")
BATCH = 16
Judge = Callable[[Tensor, Tensor], Tensor]  # images and labels -> which are right


def by_peer(peer: Any, x: Tensor, name: str, severity: int) -> Tensor:
    np.random.seed(severity)  # the only way to seed it
    made = []
    for row, picture in enumerate((x * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()):
        seed = {"seed": 1000 * severity + row} if name in SEEDED else {}
        made.append(peer.corrupt(picture, severity=severity, corruption_name=name, **seed))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).float().div(255).contiguous()


def statistics(y: Tensor, x: Tensor) -> Tensor:
    """[B, 3]: the mean, the spread and the distance from the clean image, in gray levels."""
    rows = []
    for image, clean in zip(y, x, strict=True):
        gray = image.double() * 255
        rows.append(torch.stack([gray.mean(), gray.std(), (gray - clean.double() * 255).abs().mean()]))
    return torch.stack(rows)


def compare_statistics(ours: Tensor, theirs: Tensor, x: Tensor) -> dict[str, list[float]]:
    """Ours, the peer's, the mean difference, its standard error."""
    us, them = statistics(ours, x), statistics(theirs, x)
    apart = us - them
    error = apart.std(0) / len(apart) ** 0.5
    columns = torch.stack([us.mean(0), them.mean(0), apart.mean(0), error]).T.tolist()
    return {key: [round(value, 4) for value in column] for key, column in zip(STATISTICS, columns, strict=True)}


def compare_verdicts(ours: Tensor, theirs: Tensor) -> dict[str, float]:
    only_us, only_them = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    chance = mcnemar(only_us, only_them)
    accuracies = {"ours": ours.double().mean().item(), "peer": theirs.double().mean().item()}
    return {**accuracies, "only_ours": only_us, "only_peer": only_them, "p": round(chance, 4)}


def verdicts(right: Judge, ours: Tensor, theirs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The predictions for both; equal images are evaluated once."""
    for_us = right(ours, labels)
    for_them, other = for_us.clone(), (ours != theirs).flatten(1).any(1)
    if other.any():
        for_them[other] = right(theirs[other], labels[other])
    return for_us, for_them


def one_severity(
    peer: Any, right: Judge, x: Tensor, labels: Tensor, name: str, severity: int, photos: Path, judged: bool
) -> dict[str, object]:
    cell = Corruption(name, severity, "imagenet", frost=photos if name == "frost" else None)
    ours, theirs = cell(x, torch.arange(len(x)), seed=0), by_peer(peer, x, name, severity)
    record: dict[str, object] = {"severity": severity}
    if name in FIXED:
        apart = ((ours - theirs).abs() * 255).round()
        record["largest"] = int(apart.max())
        record["beyond_one"] = round((apart > 1).double().mean().item(), 6)
    record["pixels"] = compare_statistics(ours, theirs, x)
    if judged:
        record["accuracy"] = compare_verdicts(*verdicts(right, ours, theirs, labels))
    return record


def done_in(out: Path | None, same: dict[str, object]) -> set[str]:
    if out is None or not out.exists():
        return set()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {line["corruption"] for line in lines if all(line.get(key) == value for key, value in same.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=list(CORRUPTIONS))
    parser.add_argument("--severities", type=int, nargs="*", default=list(SEVERITIES))
    parser.add_argument("--judge", type=int, nargs="*", default=list(SEVERITIES), help="severities the model sees")
    parser.add_argument("--bf16", action="store_true", help="run the model in bfloat16")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    peer = importlib.import_module("imagecorruptions")
    importlib.import_module("cv2").setNumThreads(1)
    photos = Path(str(peer.__file__)).parent / "frost"
    model = models.load(args.model).eval().requires_grad_(False)
    split = data.load(args.data, preprocess=data.parse_preprocess("crop:224:256")).split("test")
    rows = torch.arange(min(args.n, len(split)))
    x, labels = split.images(rows), split.labels[rows]
    x = (x * 255).round() / 255

    def right(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            return torch.cat([model(part).argmax(1) for part in images.split(BATCH)]) == labels

    same: dict[str, object] = {
        "benchmark": "corruption-fidelity",
        "model": args.model.partition("@")[0],
        "data": Path(args.data.partition(":")[2]).name,
        "precision": "bfloat16" if args.bf16 else "float32",
        "n": len(x),
    }
    clean = right(x, labels).double().mean().item()
    done = done_in(args.out, same)
    for name in args.only:
        if name not in done:
            cells = [
                one_severity(peer, right, x, labels, name, severity, photos, severity in args.judge)
                for severity in args.severities
            ]
            known = {**hardware(torch.device("cpu")), "versions": versions("imagecorruptions-imaug", "numpy", "timm")}
            write_record({**same, "corruption": name, **known, "clean": clean, "severities": cells}, args.out)


if __name__ == "__main__":
    main()
