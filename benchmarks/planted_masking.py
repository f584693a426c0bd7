"""Gradient attacks, Square and attacks with scaled attention on a network whose gradients are exactly zero.

    vitadel train digits-masked-gradient --run runs/masked
    python benchmarks/planted_masking.py runs/masked [--threat linf:24/255] [--out FILE.jsonl]

Scored on the network itself. Of each scaling: the images it breaks, its share of those that Square breaks, and the
number of images it breaks that Square does not.
"""

import argparse
from pathlib import Path

import torch
from record import hardware, load, versions, write_record

from vitadel import threats
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
    threat, goal = threats.parse_threat(args.threat), Untargeted(y)
    with torch.no_grad():
        correct_B = model(x).argmax(1) == y
    square = Square(queries=5000)(model, x, Untargeted(y, margin), threat, seed=0)
    of_square_B = square.success & correct_B
    broken: dict[str, object] = {"square-5000": int(of_square_B.sum())}
    zero: dict[str, float] = {}
    for name, attack in (("fgsm", FGSM()), ("pgd-100", PGD(steps=100)), ("apgd-ce", APGD())):
        plain = attack(model, x, goal, threat, seed=0)
        broken[name] = int((plain.success & correct_B).sum())
        zero[name] = plain.zero_gradients / plain.backwards
    ways = {}
    for name, make in SCALINGS.items():
        ready, search = AAS(PGD(steps=100), make()).prepared(model, x, y, threat)
        success_B = ready(model, x, goal, threat, seed=0).success & correct_B
        ways[name] = {
            "factors": list(search.best.attentions),
            "broken": int(success_B.sum()),
            "of_square": round(float((success_B & of_square_B).sum() / of_square_B.sum()), 4),
            "that_square_leaves": int((success_B & ~of_square_B).sum()),
        }
    write_record(
        {
            "benchmark": "planted-masking",
            "model": "vitadel:masked_gradient_net",
            "threat": args.threat,
            "n": len(x),
            "correct": int(correct_B.sum()),
            **hardware(device),
            "versions": versions("timm"),
            "broken": broken,
            "zero_gradients": zero,
            "pgd-100 with": ways,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
