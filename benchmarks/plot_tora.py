"""Plot the trade-off of TORA and its baselines, from a record of `tora.py`.

python benchmarks/plot_tora.py benchmarks/results/tora-h200-2026-11-16.jsonl --out docs/tora-curve.png
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# color, marker, and the offset of the labels, in points
STYLES: dict[str, tuple[str, str, tuple[int, int]]] = {
    "tora": ("#1b6ca8", "o", (4, 8)),
    "single-adapter": ("#c8553d", "s", (8, 4)),
    "adapter-fusion": ("#3f8f4f", "D", (-6, -14)),
    "head-only": ("#7a5ea8", "^", (-20, -3)),
    "all-weights": ("#555555", "*", (8, 4)),
}


def points(lines: list[dict[str, Any]], tuning: str) -> list[tuple[str, dict[str, float], dict[str, float]]]:
    """Lambda, clean accuracy and robust accuracy under AutoAttack with intervals, of joint outputs."""
    points = []
    for line in lines:
        if line["way"].startswith(tuning) and line["head"] == "joint":
            weight = line["way"].removeprefix(tuning).removeprefix("-")
            points.append((weight, line["quick"]["clean"], line["adversarial"]["square"]))
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.file.read_text().splitlines()]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for tuning, (color, marker, beside) in STYLES.items():
        there = points(lines, tuning)
        x, y = [100 * clean["accuracy"] for _, clean, _ in there], [100 * left["accuracy"] for *_, left in there]
        across, along = (
            [
                [100 * (one["accuracy"] - one["low"]) for one in ends],
                [100 * (one["high"] - one["accuracy"]) for one in ends],
            ]
            for ends in ([clean for _, clean, _ in there], [left for *_, left in there])
        )
        axes.errorbar(x, y, along, across, color=color, marker=marker, lw=1.5, elinewidth=0.7, label=tuning, ms=7)
        for (weight, _, _), at in zip(there, zip(x, y, strict=True), strict=True):
            axes.annotate(weight, at, beside, textcoords="offset points", fontsize=8, color=color)
    axes.set(xlabel="clean accuracy, %", ylabel="robust accuracy under AutoAttack, %")
    axes.set_title("CIFAR-10, Linf 4/255, equal training time; numbers are lambda, bars 95% intervals", fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(args.out, dpi=130)


if __name__ == "__main__":
    main()
