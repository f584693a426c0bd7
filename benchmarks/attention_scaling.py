"""Attacks with rescaled attention: the tables of Jain & Dutta 2024, scored on the model and on the rescaled one.

    python benchmarks/attention_scaling.py MODEL --data folder:DIR -n 1000 [--threat linf:8/255] [--out FILE.jsonl]

First the factors: the same for all attentions over a grid, chosen by PGD-20, and those that AAS finds by three readings
of its algorithm, on 256 images of the training split, as in the paper, or of another. Then every attack, one JSON line
each: plain, the same with another seed (a second restart), with the best manual factor and with AAS. For each: accuracy
of the model itself under examples made on the rescaled model (`original`), under both searches (`union`), and of the
rescaled model under attack (`rescaled`, the paper's protocol), each with its interval; and p-values of the differences
from the plain attack and from the second restart.

With --saturation, instead: queries multiplied by growing factors, and the resulting model attacked.
"""

import argparse
from pathlib import Path

import torch
from record import accuracy_record, clock, hardware, load, pack_bits, versions, write_record
from torch import Tensor, nn

from vitadel import robustness, threats
from vitadel.attacks import FGSM, GAMA, PGD, SCALINGS, Engine, Factors, Scaling
from vitadel.attacks.attention_scaling.attack import find_attack_factors, rescale_attack
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel
from vitadel.core.stats import mcnemar
from vitadel.evaluate import NamedAttack
from vitadel.losses import dlr, margin
from vitadel.threats import Threat

GRID = (10.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5)
READINGS = ("aas", "aas-paper", "aas-literal")
SATURATION = (1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1e3, 1e4, 1e6)


def attacks(steps: int) -> list[NamedAttack]:
    return [
        NamedAttack("fgsm", FGSM()),
        NamedAttack("pgd-20", PGD(steps=20)),
        NamedAttack(f"pgd-{steps}", PGD(steps=steps)),
        NamedAttack("cw", PGD(steps=steps), margin),
        NamedAttack("dlr", PGD(steps=steps), dlr),
        NamedAttack("gama", GAMA(steps=steps), margin),
    ]


class Setup:
    """One model, one set of images, one threat."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> None:
        self.model, self.x, self.y, self.threat = model, x, y, threat
        self.engine = Engine(precision="float32")

    def robust(self, entry: NamedAttack, model: nn.Module | None = None, seed: int = 0) -> tuple[Tensor, float, float]:
        """Which images are robust, the share of zero gradients, and the seconds."""
        device = next(self.model.parameters()).device
        started = clock(device)
        result = robustness(model or self.model, self.x, self.y, self.threat, [entry], seed=seed, engine=self.engine)
        zero = sum(one.zero_gradients for one in result.attacks)
        made = sum(one.backwards for one in result.attacks)
        return torch.tensor([to == "" for to in result.broken_by]), zero / max(1.0, made), clock(device) - started

    def rescaled(self, factors: Factors) -> nn.Module:
        return RescaledModel(self.model, factors.attentions, factors.logits)  # type: ignore[arg-type]


def counted(mask: Tensor) -> tuple[int, int]:
    return int(mask.sum()), len(mask)


def compare(setup: Setup, entry: NamedAttack, ways: dict[str, Factors]) -> dict[str, object]:
    """One attack: plain, restarted, and with every kind of scaling."""
    plain, zero, seconds = setup.robust(entry)
    again, _, _ = setup.robust(entry, seed=1)
    record: dict[str, object] = {
        "attack": entry.name,
        "plain": {
            **accuracy_record(*counted(plain)),
            "seconds": round(seconds, 2),
            "zero_gradients": round(zero, 6),
            "robust_bits": pack_bits(plain),
        },
        "again": {"original": accuracy_record(*counted(again)), "union": accuracy_record(*counted(plain & again))},
    }
    for name, factors in ways.items():
        original, _, seconds = setup.robust(NamedAttack(entry.name, rescale_attack(entry.attack, factors), entry.loss))
        rescaled, _, _ = setup.robust(entry, setup.rescaled(factors))
        with torch.no_grad():
            device = next(setup.model.parameters()).device
            parts = zip(setup.x.split(500), setup.y.split(500), strict=True)
            model = setup.rescaled(factors)
            correct = torch.cat([model(x.to(device)).argmax(1).cpu() == y for x, y in parts])
        only = [int((first & ~second).sum()) for first, second in ((plain, original), (original, plain))]
        new = [int((plain & one).sum()) for one in (~original, ~again)]
        record[name] = {
            "original": accuracy_record(*counted(original)),
            "union": accuracy_record(*counted(plain & original)),
            "rescaled": accuracy_record(*counted(rescaled)),
            "rescaled_clean": accuracy_record(*counted(correct)),
            "seconds": round(seconds, 2),
            "only_scaled_breaks": only[0],
            "only_plain_breaks": only[1],
            "chance_against_plain": mcnemar(only[0], only[1], "greater"),
            "new_by_scaling": new[0],
            "new_by_second_try": new[1],
            "chance_against_second_try": mcnemar(
                int((plain & again & ~original).sum()), int((plain & ~again & original).sum()), "greater"
            ),
        }
    return record


def find_ways(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> tuple[dict[str, Factors], dict[str, object]]:
    """The factors to compare, and the cost of finding them."""
    device = next(model.parameters()).device
    x, y = x.to(device), y.to(device)
    manual = find_attack_factors(model, x, y, threat, Scaling.manual(*GRID))
    ways = {"manual": manual.best}
    notes: dict[str, object] = {"manual": {f"{one.attentions[0]:g}": one.broken for one in manual.tried}}
    for name in READINGS:
        search = find_attack_factors(model, x, y, threat, SCALINGS[name]())
        ways[name] = search.best
        notes[name] = {
            "factors": [float(f"{one:.4g}") for one in search.best.attentions],
            "logits": search.best.logits,
            "forwards": search.forwards,
            "backwards": search.backwards,
            "seconds": round(search.seconds, 2),
        }
    return ways, notes


def saturate(setup: Setup, factor: float, steps: int) -> dict[str, object]:
    factors = Factors((factor,) * len(setup.model.taps.attentions()))  # type: ignore[operator, union-attr]
    model = setup.rescaled(factors)
    robust, zero, _ = setup.robust(NamedAttack("pgd", PGD(steps=steps)), model)
    clean = robustness(model, setup.x, setup.y, setup.threat, [], engine=setup.engine).clean
    return {
        "factor": factor,
        "clean": round(clean.accuracy, 4),
        f"pgd_{steps}": accuracy_record(*counted(robust)),
        "zero_gradients": round(zero, 6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--threat", default="linf:8/255")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", help="attacks, with commas")
    parser.add_argument("--held", default="train", help="the split to find factors on; of test, images beyond -n")
    parser.add_argument("--saturation", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, x, y = load(args.model, args.data, args.n, device)
    threat = threats.parse_threat(args.threat)
    about: dict[str, object] = {
        "benchmark": "saturation" if args.saturation else "attention-scaling",
        "model": Path(args.model).stem,
        "data": Path(args.data).name,
        "threat": args.threat,
        "n": len(x),
        **hardware(device),
        "versions": versions("timm"),
    }
    setup = Setup(model, x, y, threat)
    if args.saturation:
        for factor in SATURATION:
            write_record({**about, **saturate(setup, factor, 20)}, args.out)
        return
    chosen = [one for one in attacks(args.steps) if args.only is None or one.name in args.only.split(",")]
    _, held_x, held_y = load(args.model, args.data, 256, device, args.held, first=args.n if args.held == "test" else 0)
    ways, notes = find_ways(model, held_x, held_y, threat)
    write_record({**about, "attack": None, "factors": notes}, args.out)
    for entry in chosen:
        write_record({**about, **compare(setup, entry, ways)}, args.out)


if __name__ == "__main__":
    main()
