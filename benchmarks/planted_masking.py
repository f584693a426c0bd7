"""A network whose gradients are exactly zero: what do gradient attacks, Square and scaled attacks find on it?

    vitadel train digits-pointer --run runs/pointer
    python benchmarks/planted_masking.py runs/pointer [--threat linf:24/255] [--out FILE.jsonl]

Scored on the network itself. Of each scaling: the images it fells, its share of what Square fells, and the share of the
images that Square leaves.
"""

import argparse
from pathlib import Path

import torch
from record import hardware, load, tell, versions

from vitadel import threats as threats
from vitadel.attacks import AAS, APGD, FGSM, PGD, SCALINGS, Square
from vitadel.goals import Untargeted
from vitadel.losses import margin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", default="digits")
    parser.add_argument("-n", type=int, default=359)
    parser.add_argument("--threat", default="linf:24/255")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cpu")
    model, x, y = load(args.model, args.data, args.n, device)
    threat, goal = threats.read(args.threat), Untargeted(y)
    with torch.no_grad():
        right_B = model(x).argmax(1) == y
    square = Square(queries=5000)(model, x, Untargeted(y, margin), threat, seed=0)
    of_square_B = square.success & right_B
    felled: dict[str, object] = {"square-5000": int(of_square_B.sum())}
    zero: dict[str, float] = {}
    for name, attack in (("fgsm", FGSM()), ("pgd-100", PGD(steps=100)), ("apgd-ce", APGD())):
        plain = attack(model, x, goal, threat, seed=0)
        felled[name] = int((plain.success & right_B).sum())
        zero[name] = plain.zero_gradients / plain.backwards
    ways = {}
    for name, make in SCALINGS.items():
        ready, found = AAS(PGD(steps=100), make()).prepared(model, x, y, threat)
        success_B = ready(model, x, goal, threat, seed=0).success & right_B
        ways[name] = {
            "factors": list(found.best.attentions),
            "felled": int(success_B.sum()),
            "of_square": round(float((success_B & of_square_B).sum() / of_square_B.sum()), 4),
            "that_square_leaves": int((success_B & ~of_square_B).sum()),
        }
    tell(
        {
            "benchmark": "planted-masking",
            "model": "vitadel:pointer",
            "threat": args.threat,
            "n": len(x),
            "right": int(right_B.sum()),
            **hardware(device),
            "versions": versions("timm"),
            "felled": felled,
            "zero_gradients": zero,
            "pgd-100 with": ways,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
