"""PGD-100 on one batch of images: Vitadel against torchattacks and foolbox, at equal steps and step size.

    python benchmarks/pgd.py MODEL --data folder:DIR -n 512 [--out benchmarks/results/FILE.jsonl]

All three start at random points of the ball, so results agree up to chance; the number of images on which they differ
is reported. The others run in float32, all steps on all images, as they always do.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import foolbox
import torch
import torchattacks
from record import clock, hardware, load, versions, write_record
from torch import Tensor, nn

from vitadel import robustness
from vitadel.attacks import PGD, Engine
from vitadel.evaluate import NamedAttack
from vitadel.threats import Linf

EPS, STEP, STEPS = 8 / 255, 2 / 255, 100


def ours(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    suite = (NamedAttack("pgd-100", PGD(steps=STEPS, step_size=STEP)),)
    result = robustness(model, x, y, Linf(EPS), suite, engine=Engine())
    return torch.tensor([to == "" for to in result.broken_by])


def with_torchattacks(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    attack = torchattacks.PGD(model, eps=EPS, alpha=STEP, steps=STEPS)
    x_adv = attack(x, y)
    with torch.no_grad():
        return ((model(x).argmax(1) == y) & (model(x_adv).argmax(1) == y)).cpu()


def with_foolbox(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    attack = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS)
    *_, success = attack(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilons=EPS)
    return (~success).cpu()


def timed(
    run: Callable[[nn.Module, Tensor, Tensor], Tensor], model: nn.Module, x: Tensor, y: Tensor
) -> tuple[float, Tensor]:
    run(model, x[:8], y[:8])  # warm
    device = next(model.parameters()).device
    started = clock(device)
    robust = run(model, x, y)
    return clock(device) - started, robust


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("-n", type=int, default=512)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, x, y = load(args.model, args.data, args.n, device)
    x, y = x.to(device), y.to(device)
    times, masks = {}, {}
    for name, run in (("ours", ours), ("torchattacks", with_torchattacks), ("foolbox", with_foolbox)):
        seconds, robust = timed(run, model, x, y)
        times[name], masks[name] = round(seconds, 3), robust
    result: dict[str, object] = {
        "benchmark": "pgd-100",
        "model": Path(args.model).stem,
        "threat": "linf:8/255",
        "n": len(x),
        **hardware(device),
        "versions": versions("timm", "torchattacks", "foolbox"),
        "seconds": times,
        "robust": {name: float(robust.float().mean()) for name, robust in masks.items()},
        "differ": {name: int((robust != masks["ours"]).sum()) for name, robust in masks.items()},
        "ratio": {name: round(seconds / times["ours"], 2) for name, seconds in times.items() if name != "ours"},
    }
    write_record(result, args.out)


if __name__ == "__main__":
    main()
