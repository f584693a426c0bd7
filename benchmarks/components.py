"""Every component of AutoAttack separately, image by image: Vitadel against pyautoattack, in float32.

    python benchmarks/components.py MODEL --data digits -n 1000 --threat linf:24/255 [--only square]

Each component attacks every correctly classified image. Random starts differ, so some results do too; few should, in
both directions. One JSON line per component.

The peer's Square never moves its window to the last row and column, which costs it strength on small images. With
--mend-square it reaches them, as in the paper, so that the rest can be compared.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from pyautoattack import AutoAttack
from pyautoattack.square import SquareAttack
from record import clock, hardware, load, versions, write_record
from torch import Tensor, nn

from vitadel import robustness, threats
from vitadel.attacks import Engine
from vitadel.attacks.autoattack import VERSIONS
from vitadel.evaluate import NamedAttack
from vitadel.threats import Threat

NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


def mend_square() -> None:
    """Include the last position: the peer truncates numbers below `high`, which is the last allowed one."""

    def random_int(self: SquareAttack, low: int = 0, high: int = 1, shape: Sequence[int] = (1,)) -> Tensor:
        return (low + (high - low + 1) * torch.rand(list(shape))).long().to(self.device)

    SquareAttack.random_int = random_int


def broken_by_peer(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, norm: str, name: str, batch: int) -> Tensor:
    peer = AutoAttack(model, norm=NORMS[norm], eps=threat.eps, device=x.device, seed=0)
    peer.attacks_to_run = [name]  # with the budgets of the standard version
    x_adv, *_ = peer.run_standard_evaluation(x, y, batch_size=batch)
    with torch.no_grad():
        return torch.cat([model(part).argmax(1) for part in x_adv.split(batch)]) != y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--threat", default="linf:8/255")
    parser.add_argument("--split", default="test")
    parser.add_argument("--only")
    parser.add_argument("--mend-square", action="store_true")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.mend_square:
        mend_square()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, x, y = load(args.model, args.data, args.n, device, args.split)
    x, y = x.to(device), y.to(device)
    with torch.no_grad():
        correct = torch.cat([model(part).argmax(1) for part in x.split(args.batch)]) == y
    x, y = x[correct], y[correct]
    threat = threats.parse_threat(args.threat)
    for stage in VERSIONS["standard"](threat):
        if args.only not in (None, stage.name):
            continue
        started = clock(device)
        entry = NamedAttack(stage.name, stage.attack, stage.loss)
        result = robustness(model, x, y, threat, [entry], engine=Engine(precision="float32"))
        ours, our_seconds = torch.tensor([to != "" for to in result.broken_by]), clock(device) - started
        started = clock(device)
        norm = args.threat.partition(":")[0]
        theirs = broken_by_peer(model, x, y, threat, norm, stage.name, args.batch).cpu()
        their_seconds = clock(device) - started
        record: dict[str, object] = {
            "benchmark": "components",
            "component": stage.name,
            "model": Path(args.model).stem,
            "data": args.data if args.data == "digits" else "cifar10-jpeg",
            "split": args.split,
            "threat": args.threat,
            "images": len(x),
            "peer_square_mended": args.mend_square,
            **hardware(device),
            "versions": versions("timm", "pyautoattack"),
            "broken": {"ours": int(ours.sum()), "peer": int(theirs.sum())},
            "only_ours": int((ours & ~theirs).sum()),
            "only_peer": int((theirs & ~ours).sum()),
            "differ": round(float((ours != theirs).float().mean()), 5),
            "seconds": {"ours": round(our_seconds, 2), "peer": round(their_seconds, 2)},
            "ratio": round(their_seconds / our_seconds, 2),
        }
        write_record(record, args.out)


if __name__ == "__main__":
    main()
