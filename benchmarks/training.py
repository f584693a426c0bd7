"""Adversarial training: images per second of Vitadel against a plain loop, in one run.

    python benchmarks/training.py vit-s4 --objective pgd --batch 1024 [--out benchmarks/results/FILE.jsonl]
    python benchmarks/training.py xcit-s12-16 --objective trades --batch 128
    python benchmarks/training.py vit-ti4,vit-s4,vit-b4 --batch 128,256,512,1024 --skip-plain    time and memory
    python benchmarks/training.py vit-s4 --skip-plain --without kernels                          what a part brings

The plain loop is written the way public code does it: float32 with TF32 allowed, `.backward()` through the weights at
every attack step, and in TRADES the clean images classified again at every step. Ours is `fit` as `vitadel train` calls
it: bf16, compiled, its log read back. Both see the same random images, and both are timed after a warm-up; what
compilation takes is reported separately. Utilization is that of the model's own arithmetic, recomputation not counted.
"""

import argparse
import gc
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from record import clock, hardware, versions, write_record
from torch import Tensor, nn

from vitadel import models
from vitadel.attacks import PGD
from vitadel.data import InMemory, Split
from vitadel.models.families.base import Family
from vitadel.models.families.vit import ViT
from vitadel.models.families.xcit import XCiT
from vitadel.objectives import TRADES, Adversarial, Objective
from vitadel.runs import Run
from vitadel.threats import Linf
from vitadel.train import AdamW, Compile, Precision, Trainer, TrainingConfig, forward_flops, peak_flops

EPS, STEP, STEPS, BETA = 8 / 255, 2 / 255, 10, 6.0
MODELS = {
    "vit-ti4": ("timm:vit_tiny_patch16_224", 32, 4, 10),
    "vit-s4": ("timm:vit_small_patch16_224", 32, 4, 10),
    "vit-b4": ("timm:vit_base_patch16_224", 32, 4, 10),
    "xcit-t12-4": ("timm:xcit_tiny_12_p16_224", 32, 4, 10),
    "xcit-s12-4": ("timm:xcit_small_12_p16_224", 32, 4, 10),
    "xcit-s12-16": ("timm:xcit_small_12_p16_224", 224, 16, 1000),
    "test": ("timm:test_vit", 32, 4, 10),
}


def built(name: str) -> models.Model:
    start, size, patch, classes = MODELS[name]
    return models.load(start, image_size=size, patch_size=patch, num_classes=classes)


def images(name: str, count: int) -> Split:
    _, size, _, classes = MODELS[name]
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, classes, (count,), generator=generator)
    return Split("train", tuple(map(str, range(count))), labels, InMemory(pixels))


def plain_pgd(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model.eval()
    x_adv = (x + torch.empty_like(x).uniform_(-EPS, EPS)).clamp(0, 1)
    for _ in range(STEPS):
        x_adv = x_adv.detach().requires_grad_()
        F.cross_entropy(model(x_adv), y).backward()
        assert x_adv.grad is not None
        x_adv = x_adv.detach() + STEP * x_adv.grad.sign()
        x_adv = torch.min(torch.max(x_adv, x - EPS), x + EPS).clamp(0, 1)
    model.train()
    model.zero_grad()
    return F.cross_entropy(model(x_adv.detach()), y)


def plain_trades(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model.eval()
    x_adv = x + 0.001 * torch.randn_like(x)
    for _ in range(STEPS):
        x_adv = x_adv.detach().requires_grad_()
        F.kl_div(F.log_softmax(model(x_adv), 1), F.softmax(model(x), 1), reduction="sum").backward()
        assert x_adv.grad is not None
        x_adv = x_adv.detach() + STEP * x_adv.grad.sign()
        x_adv = torch.min(torch.max(x_adv, x - EPS), x + EPS).clamp(0, 1)
    model.train()
    model.zero_grad()
    clean = model(x)
    divergence = F.kl_div(F.log_softmax(model(x_adv.detach()), 1), F.softmax(clean, 1), reduction="batchmean")
    return F.cross_entropy(clean, y) + BETA * divergence


def run_plain(name: str, objective: str, batch: int, updates: int, device: torch.device) -> float:
    """Images per second."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model = built(name).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    split = images(name, batch)
    x, y = split.images(torch.arange(batch)).to(device), split.labels.to(device)
    loss = {"pgd": plain_pgd, "trades": plain_trades}[objective]
    started = 0.0
    for update in range(-2, updates):
        if update == 0:
            started = clock(device)
        optimizer.zero_grad()
        loss(model, x, y).backward()
        optimizer.step()
    seconds = clock(device) - started
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return updates * batch / seconds


def run_ours(
    model: models.Model, split: Split, objective: Objective, plan: TrainingConfig
) -> tuple[list[float], float, float]:
    """Images per second of every log line after the first, seconds until that, and MiB."""
    gc.collect()  # CUDA graphs of an earlier model are kept until then, and would count as this one's
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = Run.claim(Path(folder) / "run", "train", {}, device="")
        Trainer(model, objective, split, plan, run, seed=0).fit()
        _, *rest = run.read_log("step")
    rates = [float(str(one["images_per_second"])) for one in rest]
    until = time.perf_counter() - started - sum(plan.log_every_steps * plan.batch_size / rate for rate in rates)
    return rates, until, max(float(str(one["memory_mib"])) for one in rest)


def leave_out(part: str) -> None:
    """Disable our kernels, or CUDA graphs."""
    if part == "kernels":
        ViT.use_fused_kernels = XCiT.use_fused_kernels = Family.use_fused_kernels  # type: ignore[method-assign]
    else:
        setattr(TrainingConfig, "supports_cuda_graphs", lambda config, device: False)  # noqa: B010


def measure(args: argparse.Namespace, name: str, batch: int, device: torch.device) -> dict[str, object]:
    attack = PGD(steps=STEPS, step_size=STEP, keep_best=False)
    objective: Objective = (
        Adversarial(attack, Linf(EPS)) if args.objective == "pgd" else TRADES(attack, Linf(EPS), beta=BETA)
    )
    plan = TrainingConfig(
        epochs=3 * args.updates // 4,
        batch_size=batch,
        optimizer=AdamW(lr=1e-4),
        precision=Precision[args.precision.upper()],
        compile=Compile[args.compile.upper()],
        attack_model=not args.no_attack_model,
        grad_checkpointing=args.grad_checkpointing,
        log_every_steps=args.updates,
        checkpoint_every_steps=10**6,
    )
    rates, until, mib = run_ours(built(name), images(name, batch * 4), objective, plan)
    ours = max(rates)
    model = built(name)
    needed = forward_flops(model) * objective.passes
    peak = peak_flops(torch.cuda.get_device_name()) if device.type == "cuda" else None
    result: dict[str, object] = {
        "benchmark": "training",
        "model": name,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "objective": f"{args.objective}-{STEPS}",
        "batch": batch,
        **hardware(device),
        "versions": versions("timm"),
        "plan": {
            "precision": args.precision,
            "compile": args.compile,
            "attack_model": plan.attack_model,
            "grad_checkpointing": plan.grad_checkpointing,
            "without": args.without,
        },
        "ours": {
            "images_per_second": round(ours, 1),
            "image_steps_per_second": round(ours * STEPS, 1),
            "milliseconds_per_update": round(1e3 * batch / ours, 2),
            "set_up_seconds": round(until, 1),
            "memory_mib": round(mib),
            "mib_per_image": round(mib / batch, 2),
            "tflops": round(ours * needed / 1e12, 2),
            "flop_utilization": None if peak is None else round(ours * needed / peak, 3),
        },
    }
    if not args.skip_plain:
        plain = run_plain(name, args.objective, batch, args.updates, device)
        result["plain"] = {"images_per_second": round(plain, 1)}
        result["ratio"] = round(ours / plain, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", help=f"some of {', '.join(MODELS)}, with commas between them")
    parser.add_argument("--objective", choices=("pgd", "trades"), default="pgd")
    parser.add_argument("--batch", default="1024", help="one or several, with commas")
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--compile", choices=[one.name.lower() for one in Compile], default="best")
    parser.add_argument("--no-attack-model", action="store_true")
    parser.add_argument("--grad-checkpointing", action="store_true")
    parser.add_argument("--precision", choices=[one.name.lower() for one in Precision], default="bf16")
    parser.add_argument("--without", choices=("kernels", "cuda-graphs"), action="append", default=[])
    parser.add_argument("--skip-plain", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for part in args.without:
        leave_out(part)
    for name in args.models.split(","):
        for batch in map(int, args.batch.split(",")):
            write_record(measure(args, name, batch, device), args.out)


if __name__ == "__main__":
    main()
