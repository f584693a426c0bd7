"""Join the parts of an AutoAttack benchmark: ours in one run, the peer's in several, over the same images.

    python benchmarks/parts.py benchmarks/results/FILE.jsonl -n 5000 [--model vit-s4] [--out FILE]

The peer attacks batch after batch, so its time is additive. The record states the number of parts; parts from other
hardware or versions are refused.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from autoattack import compare
from record import unpack_bits, write_record
from torch import Tensor

# records of earlier versions call the mask "stands"
MASKS = ("robust_bits", "stands")
SAME = ("model", "threat", "device", "cores")


def mask_of(side: dict[str, Any], n: int) -> Tensor:
    """Which of n images are robust."""
    return unpack_bits(next(side[key] for key in MASKS if key in side), n)


def join(parts: list[dict[str, Any]], n: int) -> tuple[dict[str, object], Tensor]:
    """The peer's parts as one: seconds added up, accuracies weighted, masks joined."""
    parts = sorted(parts, key=lambda part: int(part["first"]))
    covered = [i for part in parts for i in range(part["first"], part["first"] + part["n"])]
    if covered != list(range(n)):
        held = [(part["first"], part["n"]) for part in parts]
        raise SystemExit(f"the peer's parts must cover images 0 to {n} once; the file holds (first, n) = {held}")
    components = []
    for each in zip(*(part["peer"]["components"] for part in parts), strict=True):
        robust = sum(one["robust"] * part["n"] for one, part in zip(each, parts, strict=True)) / n
        seconds = round(sum(one["seconds"] for one in each), 2)
        components.append({"name": each[0]["name"], "robust": round(robust, 5), "seconds": seconds})
    robust = torch.cat([mask_of(part["peer"], part["n"]) for part in parts])
    seconds = round(sum(part["peer"]["seconds"] for part in parts), 2)
    return {"seconds": seconds, "components": components, "parts": len(parts)}, robust


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("-n", type=int, required=True)
    parser.add_argument("--model", default="vit-s4")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.file.read_text().splitlines()]
    ran = [line for line in lines if line["benchmark"] == "autoattack" and line["model"] == args.model]
    (whole,) = [line for line in ran if line["n"] == args.n and "ours" in line and "peer" not in line]
    parts = [line for line in ran if "peer" in line and "ours" not in line]
    for part in parts:
        odd = [key for key in SAME if part[key] != whole[key]]
        odd += [key for key in ("python", "torch", "timm") if part["versions"][key] != whole["versions"][key]]
        if odd:
            raise SystemExit(f"the part from image {part['first']} was made with another {', '.join(odd)}")
    peer, their_robust = join(parts, args.n)
    ours, our_robust = whole["ours"], mask_of(whole["ours"], args.n)
    result = {key: whole[key] for key in (*SAME, "n", "engine")}
    result |= {"benchmark": "autoattack-parts", "versions": parts[0]["versions"]}
    result["ours"] = {key: value for key, value in ours.items() if key not in MASKS}
    result["peer"] = {**peer, "robust": float(their_robust.float().mean())}
    write_record(result | compare(ours, our_robust, peer, their_robust), args.out)


if __name__ == "__main__":
    main()
