"""AutoAttack, standard: us against pyautoattack, which computes what the official code computes, in one run.

    python benchmarks/autoattack.py MODEL --data folder:DIR -n 500 [--compile] [--out benchmarks/results/FILE.jsonl]

Reports total time, time and robust accuracy per component, and the images on which the final verdicts differ. Both
sides see the same images in memory and start warm; what compiling costs is reported apart.
"""

import argparse
import logging
import re
from pathlib import Path

import torch
from pyautoattack import AutoAttack
from record import clock, hardware, load, tell, versions
from torch import Tensor, nn

from vitadel import threat as threats
from vitadel.attacks import Engine
from vitadel.evaluate import Robustness, robustness
from vitadel.threat import Linf, Threat

NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


class Ear(logging.Handler):
    """Hears what the peer says after each component: robust accuracy and seconds so far."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, tuple[float, float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r"after ([A-Z0-9-]+): ([\d.]+)% \(total time ([\d.]+) s\)", record.getMessage())
        if found:
            self.heard[found[1].lower()] = float(found[2]) / 100, float(found[3])


def run_peer(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, norm: str, batch: int) -> dict[str, object]:
    device = next(model.parameters()).device
    ear, logger = Ear(), logging.getLogger("auto-attack")
    logger.addHandler(ear)
    logger.setLevel(logging.DEBUG)
    peer = AutoAttack(model, norm=NORMS[norm], eps=threat.eps, device=device, seed=0)
    with torch.no_grad():  # warm: libraries set themselves up on first use
        model(x[:batch].to(device))
    started = clock(device)
    found, *_ = peer.run_standard_evaluation(x.to(device), y.to(device), batch_size=batch)
    seconds = clock(device) - started
    with torch.no_grad():
        right = torch.cat([model(part.to(device)).argmax(1).cpu() for part in found.split(batch)]) == y
    before = 0.0
    components = []
    for name, (robust, so_far) in ear.heard.items():
        components.append({"name": name, "robust": robust, "seconds": round(so_far - before, 2)})
        before = so_far
    return {"seconds": seconds, "right": right, "components": components}


def run_us(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, engine: Engine) -> tuple[float, Robustness]:
    device = next(model.parameters()).device
    started = clock(device)
    result = robustness(model, x, y, threat, engine=engine)
    return clock(device) - started, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("-n", type=int, default=500)
    parser.add_argument("--threat", default="linf:8/255")
    parser.add_argument("--batch", type=int, default=250, help="the peer's batch; 250 is its default")
    parser.add_argument("--precision")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--skip-peer", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, x, y = load(args.model, args.data, args.n, device)
    threat = threats.read(args.threat)
    engine = Engine(precision=args.precision, compile=args.compile)

    run_us(model, x[:32], y[:32], Linf(1e-4), Engine(precision=args.precision)) if device.type == "cuda" else None
    seconds, ours = run_us(model, x, y, threat, engine)
    standing = torch.tensor([to == "" for to in ours.fell_to])
    stood, components = len(x), []
    wrong = sum(to == "clean" for to in ours.fell_to)
    stood -= wrong
    for attack in ours.attacks:
        stood -= int(str(attack["fell"]))
        components.append({"name": attack["name"], "robust": stood / len(x), "seconds": attack["seconds"]})
    result: dict[str, object] = {
        "benchmark": "autoattack",
        "model": Path(args.model).stem,
        "threat": args.threat,
        "n": len(x),
        **hardware(device),
        "versions": versions("timm", "pyautoattack"),
        "engine": {"precision": engine.on(device).precision, "compile": args.compile, "rows": engine.on(device).rows},
        "clean": ours.clean.accuracy,
        "ours": {"seconds": round(seconds, 2), "robust": ours.robust.accuracy, "components": components},
        "search_seconds": round(ours.seconds, 2),
        "flags": [flag["code"] for flag in ours.flags],
        "gpu_mib": round(torch.cuda.max_memory_allocated() / 2**20) if device.type == "cuda" else None,
    }
    if not args.skip_peer:
        peer = run_peer(model, x, y, threat, args.threat.partition(":")[0], args.batch)
        right, their_seconds = peer.pop("right"), float(str(peer["seconds"]))
        assert isinstance(right, Tensor)
        result["peer"] = {**peer, "seconds": round(their_seconds, 2), "robust": float(right.float().mean())}
        result["only_we_felled"] = int((right & ~standing).sum())
        result["only_peer_felled"] = int((~right & standing).sum())
        result["ratio"] = round(their_seconds / seconds, 2)
        result["ratio_without_setup"] = round(their_seconds / ours.seconds, 2)
    tell(result, args.out)


if __name__ == "__main__":
    main()
