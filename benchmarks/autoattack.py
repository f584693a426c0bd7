"""AutoAttack, standard: Vitadel against pyautoattack, which computes what the official code computes, in one run.

    python benchmarks/autoattack.py MODEL --data folder:DIR -n 500 [--compile] [--out benchmarks/results/FILE.jsonl]

Reports total time, time and robust accuracy per component, and the images on which the results differ. Both
attack the same images in memory after a warm-up; compilation time is reported separately.

On machines with a short time limit, run each side alone on a part of the images and join the parts:

    python benchmarks/autoattack.py MODEL --data folder:DIR -n 5000 --side ours --out FILE.jsonl
    python benchmarks/autoattack.py MODEL --data folder:DIR -n 2500 --first 2500 --side peer --out FILE.jsonl
    python benchmarks/parts.py FILE.jsonl -n 5000
"""

import argparse
import logging
import re
from pathlib import Path

import torch
from pyautoattack import AutoAttack
from record import clock, hardware, load, pack_bits, versions, write_record
from torch import Tensor, nn

from vitadel import robustness, threats
from vitadel.attacks import Engine
from vitadel.threats import Linf, Threat

NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


class PeerLog(logging.Handler):
    """Collects the peer's log lines after each component: robust accuracy and seconds so far."""

    def __init__(self) -> None:
        super().__init__()
        self.components: dict[str, tuple[float, float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        match = re.search(r"after ([A-Z0-9-]+): ([\d.]+)% \(total time ([\d.]+) s\)", record.getMessage())
        if match:
            self.components[match[1].lower()] = float(match[2]) / 100, float(match[3])


Side = dict[str, object]


def run_peer(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, norm: str, batch: int) -> tuple[Side, Tensor]:
    device = next(model.parameters()).device
    log, logger = PeerLog(), logging.getLogger("auto-attack")
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    peer = AutoAttack(model, norm=NORMS[norm], eps=threat.eps, device=device, seed=0)
    with torch.no_grad():  # warm: libraries set themselves up on first use
        model(x[:batch].to(device))
    started = clock(device)
    x_adv, *_ = peer.run_standard_evaluation(x.to(device), y.to(device), batch_size=batch)
    seconds = clock(device) - started
    with torch.no_grad():
        robust_mask = torch.cat([model(part.to(device)).argmax(1).cpu() for part in x_adv.split(batch)]) == y
    before, components = 0.0, []
    for name, (robust, so_far) in log.components.items():
        components.append({"name": name, "robust": robust, "seconds": round(so_far - before, 2)})
        before = so_far
    return {"seconds": round(seconds, 2), "components": components}, robust_mask


def run_ours(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, engine: Engine) -> tuple[Side, Tensor]:
    device = next(model.parameters()).device
    started = clock(device)
    result = robustness(model, x, y, threat, engine=engine)
    seconds = clock(device) - started
    robust, components = sum(to != "clean" for to in result.broken_by), []
    for attack in result.attacks:
        robust -= attack.broken
        components.append({"name": attack.name, "robust": robust / len(x), "seconds": attack.seconds})
    side: Side = {
        "seconds": round(seconds, 2),
        "search_seconds": round(result.seconds, 2),  # without compilation and set-up
        "components": components,
        "clean": result.clean.accuracy,
        "flags": [flag.code for flag in result.flags],
        "gpu_mib": round(torch.cuda.max_memory_allocated() / 2**20) if device.type == "cuda" else None,
    }
    return side, torch.tensor([to == "" for to in result.broken_by])


def compare(ours: Side, our_robust: Tensor, peer: Side, their_robust: Tensor) -> dict[str, object]:
    theirs, mine = float(str(peer["seconds"])), float(str(ours["seconds"]))
    return {
        "only_ours_broke": int((their_robust & ~our_robust).sum()),
        "only_peer_broke": int((our_robust & ~their_robust).sum()),
        "ratio": round(theirs / mine, 2),
        "ratio_without_setup": round(theirs / float(str(ours["search_seconds"])), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("-n", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the first image of the split's order to take")
    parser.add_argument("--threat", default="linf:8/255")
    parser.add_argument("--batch", type=int, default=250, help="the peer's batch; 250 is its default")
    parser.add_argument("--precision")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--side", choices=("both", "ours", "peer"), default="both")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, x, y = load(args.model, args.data, args.n, device, first=args.first)
    threat = threats.parse_threat(args.threat)
    engine = Engine(precision=args.precision, compile=args.compile)
    result: dict[str, object] = {
        "benchmark": "autoattack",
        "model": Path(args.model).stem,
        "threat": args.threat,
        "first": args.first,
        "n": len(x),
        **hardware(device),
        "versions": versions("timm", "pyautoattack"),
        "engine": {
            "precision": engine.on(device).precision,
            "compile": args.compile,
            "rows": engine.on(device).batch_size,
        },
    }
    sides: dict[str, tuple[Side, Tensor]] = {}
    if args.side != "peer":
        if device.type == "cuda":  # warm
            run_ours(model, x[:32], y[:32], Linf(1e-4), Engine(precision=args.precision))
        sides["ours"] = run_ours(model, x, y, threat, engine)
    if args.side != "ours":
        sides["peer"] = run_peer(model, x, y, threat, args.threat.partition(":")[0], args.batch)
    for name, (side, robust) in sides.items():
        result[name] = {**side, "robust": float(robust.float().mean()), "robust_bits": pack_bits(robust)}
    if args.side == "both":
        result |= compare(*sides["ours"], *sides["peer"])
    write_record(result, args.out)


if __name__ == "__main__":
    main()
