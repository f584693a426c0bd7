"""Gaps between the two largest pre-softmax scores, without and with attention scaling (Jain & Dutta 2024, Figure 2).

    python benchmarks/gaps.py timm:vit_tiny_patch16_224@FILE --data imagenet:DIR -n 500 \
        --preprocess crop:224:249:bicubic [--scalings aas-paper,0.01] [--out FILE.jsonl] [--figure FILE.png]

One JSON line per scaling: per attention the median and the largest gap, and the share of rows above the limits at which
exp(-gap) underflows in float16 and float32. Factors are found on the images themselves, without labels or attacks.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from record import hardware, versions, write_record

from vitadel import data, models
from vitadel.analyze.attention_gaps import EDGES, LINES, measure_gaps
from vitadel.attacks import SCALINGS
from vitadel.attacks.attention_scaling.factor_search import maximize_factors
from vitadel.evaluate.context import Context

SHOWN = (0, 5, 11)  # the paper's blocks 1, 6 and 12


def factors_of(model: models.Model, images: data.Split, way: str) -> tuple[float, ...]:
    count = len(model.taps.attentions())
    if way not in SCALINGS:
        return (float(way),) * count
    rows = torch.arange(min(256, len(images)))
    return maximize_factors(model, images.images(rows), images.labels[rows], SCALINGS[way]()).best.attentions


def draw(scores: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """One row of histograms per way, one column per block."""
    figure, axes = plt.subplots(len(scores), len(SHOWN), figsize=(3.2 * len(SHOWN), 2.1 * len(scores)), sharex="col")
    for row, (way, attentions) in zip(axes.reshape(len(scores), -1), scores.items(), strict=True):
        for axis, at in zip(row, SHOWN, strict=True):
            counts = attentions[at]["all"]["counts"]
            axis.stairs([100 * one / sum(counts) for one in counts[1:-1]], EDGES, fill=True, color="#0072b2")
            for name, line in LINES.items():
                axis.axvline(line, color="#d55e00", lw=1, ls=":" if "normal" in name.split(", ")[-1][:6] else "-")
            axis.set(xscale="log", xlim=(1e-8, 1e3), title=f"block {at + 1}, {way}")
            axis.tick_params(labelsize=7)
            axis.title.set_fontsize(8)
            axis.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("% of rows", fontsize=8)
    for axis in axes.reshape(len(scores), -1)[-1]:
        axis.set_xlabel("largest minus second score", fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("-n", type=int, default=500)
    parser.add_argument("--preprocess", default="squash:32")
    parser.add_argument("--scalings", default="aas-paper,0.01")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = models.load(args.model).eval().to(device)
    split = data.load(args.data, preprocess=data.parse_preprocess(args.preprocess)).split("test")
    images = split.take(torch.arange(min(args.n, len(split))))
    scores: dict[str, list[dict[str, Any]]] = {}
    for way in ("as it is", *args.scalings.split(",")):
        factors = None if way == "as it is" else factors_of(model, images, way)
        scores[way] = measure_gaps(Context(model, images), way, factors)
        record: dict[str, object] = {
            "benchmark": "gaps",
            "model": args.model.partition("@")[0],
            "data": Path(args.data).name,
            "n": len(images),
            **hardware(device),
            "versions": versions("timm"),
            "scaling": way,
            "factors": factors,
            "lines": {name: round(line, 1) for name, line in LINES.items()},
            "attentions": [
                {
                    "name": one["name"],
                    "median": float(f"{one['all']['median']:.4g}"),
                    "max": float(f"{one['all']['max']:.4g}"),
                    "beyond": [float(f"{share / one['all']['rows']:.4g}") for share in one["all"]["beyond"]],
                }
                for one in scores[way]
            ],
        }
        write_record(record, args.out)
    if args.figure is not None:
        draw(scores, args.figure)


if __name__ == "__main__":
    main()
