"""Plot the cost of AutoAttack by number of images and classes, from records.

python benchmarks/plot_growth.py benchmarks/results/h200-2026-11-15.jsonl --out docs/growth.png
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def points(lines: list[dict[str, Any]], threat: str) -> list[tuple[int, float, float]]:
    """(images, seconds, MiB) of our uncompiled runs with ten classes, the last run of each number of images."""
    measured: dict[int, tuple[float, float]] = {}
    for line in lines:
        if line.get("model") != "vit-s4" or line.get("threat") != threat:
            continue
        if line["benchmark"] == "growth" and line["classes"] == 10:
            measured[line["n"]] = line["seconds"], line["gpu_mib"]
        elif line["benchmark"] == "autoattack" and "ours" in line and not line["engine"]["compile"]:
            # older records hold the memory one level higher
            measured[line["n"]] = line["ours"]["seconds"], line["ours"].get("gpu_mib") or line["gpu_mib"]
    return [(n, *measured[n]) for n in sorted(measured)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.file.read_text().splitlines()]
    figure, (times, memory, classes) = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    for threat, color in (("linf:8/255", "#1b6ca8"), ("linf:16/255", "#c8553d")):
        images, seconds, mib = zip(*points(lines, threat), strict=True)
        times.loglog(images, seconds, "o-", color=color, label=threat)
        memory.semilogx(images, [one / 1024 for one in mib], "o-", color=color, label=threat)
    grown = [line for line in lines if line["benchmark"] == "growth" and line["n"] == 250]
    last = {line["classes"]: sum(line["components"].values()) for line in grown if line["threat"] == "linf:16/255"}
    classes.semilogx(list(last), list(last.values()), "o-", color="#c8553d", label="linf:16/255, 250 images")
    times.set(xlabel="images", ylabel="seconds", title="time by images")
    memory.set(xlabel="images", ylabel="GiB on the GPU", title="memory by images", ylim=(0, 10))
    classes.set(xlabel="classes", ylabel="seconds of search", title="time by classes", ylim=(0, 9))
    for axes in (times, memory, classes):
        axes.grid(alpha=0.25, which="both")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle("autoattack on ViT-S/4, 32 px, one H200", fontsize=11)
    figure.savefig(args.out, dpi=130)


if __name__ == "__main__":
    main()
