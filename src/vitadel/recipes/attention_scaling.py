"""Adaptive attention scaling: AAS-AT around PGD-AT, TRADES, MART, AWP and ARD with PRM, and the model that AAS attacks.

Source:  Jain & Dutta (CVPR 2024), "Towards Understanding and Improving Adversarial Robustness of Vision Transformers",
         sections 5 and 6, tables 3 to 5. Neither their code nor their supplement is available: what they leave open is
         filled from Mo et al. 2022 (github.com/mo666666/When-Adversarial-Training-Meets-Vision-Transformers), which
         they build on, and from Wu et al. 2020 (github.com/csdongxian/AWP); that is our choice, and marked as such.
Differs: - What an epoch of scaling does is a reading; `vitadel.objectives.attention_scaling` has it line by line.
         - The features are compared at unit length. Divided by the product of both norms, as in the paper's equation,
           the gradient is some 1e-4 and the factors stay where they were drawn.
         - A tenth of the training images, at most 1000, is held out, and the last weights are kept all the same.
         - The paper trains XCiT-S12 for 300 epochs, but its accuracies without AAS-AT are those of the released
           weights, which were fine-tuned with AdamW for 20: they are those of xcit-s12-cifar10. It gives XCiT-S12
           neither a learning rate nor a schedule: its 0.1 and its cosine are for all others.
         - XCiT-S12 on ImageNet-100 is not in the paper.
         - Its rows "Mo et al. [26]" do not say what of that work is trained: PGD-AT with ARD and PRM, as here, is what
           their code does by default with both options; its MixUp and CutMix are not among this paper's augmentations.
Cost:    estimates are passes x 2 x multiply-accumulates x images, on one H200 at an assumed 400 TFLOP/s in bf16. An
         epoch of scaling costs 23 passes, as PGD with ten steps does: AAS-AT costs no more than what it wraps. Models
         whose attention is scaled are not compiled.

The published accuracies of AAS-AT are taken to be of the model with its factors, which is the one these recipes save.
For a start in minutes see cifar10-aas-short and digits-aas.
"""

from collections.abc import Mapping
from dataclasses import replace

from vitadel.attacks import PGD
from vitadel.objectives import ARDPRM, AWP, MART, TRADES, Adversarial, AttentionScaling, Objective
from vitadel.recipes.recipe import ModelConfig, Normalize, Recipe, Selection, SyntheticConfig
from vitadel.threats import Linf
from vitadel.train import SGD, Decay, PadCrop, Precision, TrainingConfig

_LINF = Linf(8 / 255)
_WHERE = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet100": "ImageNet-100"}
_METHODS = {
    "at": "PGD-AT",
    "at-awp": "PGD-AT and AWP",
    "trades": "TRADES",
    "trades-awp": "TRADES and AWP",
    "mart": "MART",
    "ard-prm": "PGD-AT with ARD and PRM",
}

_MO = "our choice: as in Mo et al.'s parser_cifar.py"
_SOURCES: Mapping[str, str] = {
    "model.start": "paper: section 6.2; weights from ImageNet-1k; the file is yours",
    "model.image_size": "our choice: CIFAR's own 32 and ImageNet's usual 224; the paper gives no size",
    "model.normalize": "our choice: mean and deviation of the data, inside the model",
    "data": "paper: section 6",
    "preprocess": "our choice: CIFAR as it is, ImageNet as RobustBench crops it",
    "plan.epochs": "paper: section 6.2",
    "plan.batch_size": _MO,
    "plan.optimizer": "paper: section 6.2; SGD with a momentum of 0.9",
    "plan.optimizer.lr": "paper: section 6.2; at most 0.1, along a cosine",
    "plan.optimizer.weight_decay": _MO,
    "plan.optimizer.nesterov": "our choice: plain momentum, torch's default",
    "plan.optimizer.decay": "our choice: all weights, torch's default",
    "plan.clip_grad": f"{_MO}; the paper clips and does not say at what",
    "plan.precision": "our choice: factors are searched for in float32 whatever this says",
    "plan.augment": "paper: section 6.2; crop after padding, and flip",
    "plan.validate_every_epochs": "our choice: once, at the end; which weights the paper keeps is not known",
    "plan.checkpoint_every_steps": "our choice",
    "plan.log_every_steps": "our choice",
    "selection": "our choice: only tells how robust the last weights are",
}
_OF_THREATS: Mapping[str, str] = {
    "attack": "paper: section 6; ten steps",
    "attack.step_size": _MO,
    "attack.keep_best": f"{_MO}; the last iterate",
    "threat": "paper: section 6",
}
_OF_SCALING: Mapping[str, str] = {
    "objective": "paper: section 5; AAS-AT",
    "objective.period": "our choice: within the 5 to 40 epochs that give the same result in figure 5",
    "objective.scope": "our choice: the factors stay with the model, as line 17 of the algorithm is described",
    "objective.scaling": "our choice: algorithm 1 with unit distances, see vitadel.attacks.Scaling",
    "objective.scaling.steps": "paper: algorithm 1",
    "objective.scaling.low": "paper: algorithm 1",
    "objective.scaling.high": "paper: algorithm 1",
}


def _below(path: str, sources: Mapping[str, str]) -> dict[str, str]:
    return {f"{path}.{name}" if name else path: source for name, source in sources.items()}


def _method(name: str) -> tuple[Objective, dict[str, str]]:
    """An objective, and the sources of its values by relative paths."""
    attack = PGD(steps=10, step_size=2 / 255, keep_best=False)
    beta = f"{_MO}; 6"
    if name.endswith("-awp"):
        inner, sources = _method(name.removesuffix("-awp"))
        own = {
            "": {"at-awp": "paper: section 6; AWP", "trades-awp": "paper: table 5; TRADES with AWP"}[name],
            "gamma": "our choice: as in Wu et al.'s code, 0.01 for PGD-AT and 0.005 for TRADES",
            "start": "our choice: as in Wu et al.'s code, from the beginning for PGD-AT, from epoch 10 for TRADES",
        }
        awp = AWP(inner, gamma=0.01) if name == "at-awp" else AWP(inner, gamma=0.005, start=10)
        return awp, {**own, **_below("inner", sources)}
    if name == "ard-prm":
        inner, sources = _method("at")
        assert isinstance(inner, Adversarial)
        own = {
            "": "paper: table 5; Mo et al. 2022, by which we take ARD and PRM around PGD-AT",
            "warmup_epochs": f"{_MO}; n_w",
            "inner": "our choice: PGD-AT, the default of Mo et al.'s parser_cifar.py",
        }
        return ARDPRM(inner, warmup_epochs=10), {**_below("inner", sources), **own}
    objectives: dict[str, Objective] = {
        "at": Adversarial(attack, _LINF),
        "trades": TRADES(attack, _LINF, beta=6.0),
        "mart": MART(attack, _LINF, beta=6.0),
    }
    kind = {"": f"paper: table 5; {_METHODS[name]}"}
    return objectives[name], {**kind, **_OF_THREATS, **({} if name == "at" else {"beta": beta})}


def _plan(name: str, data: str, epochs: int) -> TrainingConfig:
    # with AWP, the decay of its authors
    decay = 5e-4 if name.endswith("-awp") else 1e-4
    return TrainingConfig(
        epochs=epochs,
        batch_size=64,
        optimizer=SGD(lr=0.1, weight_decay=decay, nesterov=False, decay=Decay.ALL),
        clip_grad=1.0,
        precision=Precision.BF16,
        # an eighth of the side
        augment=PadCrop(pad=28 if data == "imagenet100" else 4),
        validate_every_epochs=epochs,
        checkpoint_every_steps=2000,
        log_every_steps=100,
    )


def _base(name: str, data: str) -> Recipe:
    """ViT-B/16 without scaling."""
    objective, sources = _method(name)
    cifar = data != "imagenet100"
    patches = {"model.patch_size": _MO} if cifar else {}
    decay = {"plan.optimizer.weight_decay": "our choice: as in Wu et al.'s code"} if name.endswith("-awp") else {}
    pad = {} if cifar else {"plan.augment.pad": "our choice: an eighth of the side, as 4 of 32"}
    generated = {
        "synthetic": "paper: section 6; generated by diffusion (DDPM); the share is our choice",
        "synthetic.share": "our choice: what Wang et al. 2023 use for a million images",
        "synthetic.folder": "our choice: made by `vitadel data convert`",
    }
    return Recipe(
        name=f"vit-b-{data}-{name}",
        about=f"ViT-B/16 on {_WHERE[data]} at 8/255, {_METHODS[name]}",
        model=ModelConfig(
            "timm:vit_base_patch16_224@vit-b16-imagenet.safetensors",
            image_size=32 if cifar else 224,
            patch_size=4 if cifar else None,
            normalize=Normalize.DATA,
        ),
        data=f"{data}:data" if cifar else "imagenet:data/imagenet@imagenet100.txt",
        preprocess="squash:32" if cifar else "crop:224:256:bicubic",
        objective=objective,
        plan=_plan(name, data, 110),
        selection=Selection(PGD(steps=10), _LINF),
        synthetic=SyntheticConfig(f"data/{data}-ddpm", share=0.7) if cifar else None,
        sources={**_SOURCES, **patches, **decay, **pad, **(generated if cifar else {}), **_below("objective", sources)},
    )


def _xcit(data: str) -> Recipe:
    """XCiT-S12 without scaling: TRADES, as in the work it is taken from, but with this paper's optimizer."""
    base = _base("trades", data)
    return replace(
        base,
        name=f"xcit-s12-{data}-sgd",
        about=f"XCiT-S12 on {_WHERE[data]} at 8/255, TRADES with SGD for 300 epochs",
        model=replace(base.model, start="runs/xcit-s12-imagenet-eps8"),
        plan=_plan("trades", data, 300),
        sources={
            **base.sources,
            "model.start": "our choice: the paper says ImageNet-1k; its reference for XCiT starts from this robust one",
            **({"model.patch_size": "our choice: as in the thesis"} if base.model.patch_size else {}),
            "objective": "our choice: TRADES, as in the thesis; the paper names the model alone",
            "plan.epochs": "paper: section 6.2; 300 for XCiT-S12",
            "plan.optimizer.lr": "our choice: 0.1 as for ViT-B; section 6.2 has it for all but XCiT-S12",
            "plan.decay_epochs": "our choice: the cosine of ViT-B; section 6.2 has it for all but XCiT-S12",
        },
    )


def _aas(base: Recipe) -> Recipe:
    """The recipe with AAS-AT around its objective."""
    moved = {
        path.replace("objective", "objective.inner", 1) if path.startswith("objective") else path: source
        for path, source in base.sources.items()
    }
    return replace(
        base,
        name=f"{base.name.removesuffix('-sgd')}-aas",
        about=f"{base.about}, AAS-AT",
        objective=AttentionScaling(base.objective, period=10),
        sources={**moved, **_OF_SCALING},
    )


def _published(recipe: Recipe, clean: float, pgd: float, with_aas: float, autoattack: float) -> Recipe:
    source = f"paper, table 5; AutoAttack; PGD-100 {pgd:.2f}%, with AAS {with_aas:.2f}%"
    return replace(recipe, expect={"published": f"{clean:.2f}% clean, {autoattack:.2f}% robust ({source})"})


def _published_imagenet(recipe: Recipe, clean: float, autoattack: float) -> Recipe:
    source = "paper, table 4, on the authors' 100 classes; AutoAttack"
    return replace(recipe, expect={"published": f"{clean:.2f}% clean, {autoattack:.2f}% robust ({source})"})


def _attacked(data: str, clean: float, with_aas: float, pgd: tuple[float, float], gama: tuple[float, float]) -> Recipe:
    """The model that the paper attacks; of two accuracies the second is under the attack with AAS."""
    published = (
        f"{clean:.2f}% clean, {pgd[0]:.2f}% robust (paper, table 3; PGD-100, with AAS {pgd[1]:.2f}%; "
        f"GAMA {gama[0]:.2f}%, with AAS {gama[1]:.2f}%; clean with AAS {with_aas:.2f}%)"
    )
    return replace(_base("at-awp", data), expect={"published": published})


# ---------------------------------------------------------------- CIFAR-10


def vit_b_cifar10_at() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-10, PGD-AT. Estimate: 1 H200 hour."""
    return _published(_base("at", "cifar10"), 86.14, 59.12, 54.24, 53.14)


def vit_b_cifar10_at_aas() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-10, PGD-AT, with AAS-AT. Estimate: 1 H200 hour."""
    return _published(_aas(vit_b_cifar10_at()), 85.32, 58.12, 57.78, 56.61)


def vit_b_cifar10_at_awp() -> Recipe:
    """PGD-AT with AWP on CIFAR-10: what tables 1 to 3 and figures 1, 3 and 4 attack. Estimate: 1.1 H200 hours."""
    return _attacked("cifar10", 87.43, 87.31, (61.10, 58.01), (59.78, 57.61))


def vit_b_cifar10_trades() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-10, TRADES. Estimate: 1.2 H200 hours."""
    return _published(_base("trades", "cifar10"), 86.31, 60.12, 55.49, 54.03)


def vit_b_cifar10_trades_aas() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-10, TRADES, with AAS-AT. Estimate: 1.2 H200 hours."""
    return _published(_aas(vit_b_cifar10_trades()), 87.46, 59.01, 58.03, 57.34)


def vit_b_cifar10_trades_awp() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-10, TRADES with AWP. Estimate: 1.4 H200 hours."""
    return _published(_base("trades-awp", "cifar10"), 86.21, 60.48, 56.84, 56.03)


def vit_b_cifar10_trades_awp_aas() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-10, TRADES with AWP, with AAS-AT. Estimate: 1.4 H200 hours."""
    return _published(_aas(vit_b_cifar10_trades_awp()), 87.10, 59.78, 58.41, 57.73)


def vit_b_cifar10_mart() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-10, MART. Estimate: 1.1 H200 hours."""
    return _published(_base("mart", "cifar10"), 86.19, 59.13, 54.76, 54.12)


def vit_b_cifar10_mart_aas() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-10, MART, with AAS-AT. Estimate: 1.1 H200 hours."""
    return _published(_aas(vit_b_cifar10_mart()), 85.31, 57.87, 56.43, 55.78)


def vit_b_cifar10_ard_prm() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-10, PGD-AT with ARD and PRM (Mo et al.). Estimate: 1 H200 hour."""
    return _published(_base("ard-prm", "cifar10"), 86.43, 60.03, 56.12, 55.03)


def vit_b_cifar10_ard_prm_aas() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-10, PGD-AT with ARD and PRM, with AAS-AT. Estimate: 1 H200 hour."""
    return _published(_aas(vit_b_cifar10_ard_prm()), 86.71, 58.46, 57.44, 56.79)


# --------------------------------------------------------------- CIFAR-100


def vit_b_cifar100_at() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-100, PGD-AT. Estimate: 1 H200 hour."""
    return _published(_base("at", "cifar100"), 60.04, 30.06, 26.31, 25.78)


def vit_b_cifar100_at_aas() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-100, PGD-AT, with AAS-AT. Estimate: 1 H200 hour."""
    return _published(_aas(vit_b_cifar100_at()), 62.06, 29.03, 28.34, 27.71)


def vit_b_cifar100_at_awp() -> Recipe:
    """PGD-AT with AWP on CIFAR-100: the model that tables 1 to 3 attack. Estimate: 1.1 H200 hours."""
    return _attacked("cifar100", 62.47, 62.03, (30.01, 27.02), (28.97, 26.08))


def vit_b_cifar100_trades() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-100, TRADES. Estimate: 1.2 H200 hours."""
    return _published(_base("trades", "cifar100"), 61.03, 30.43, 26.94, 26.01)


def vit_b_cifar100_trades_aas() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-100, TRADES, with AAS-AT. Estimate: 1.2 H200 hours."""
    return _published(_aas(vit_b_cifar100_trades()), 63.06, 29.41, 28.71, 28.06)


def vit_b_cifar100_trades_awp() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-100, TRADES with AWP. Estimate: 1.4 H200 hours."""
    return _published(_base("trades-awp", "cifar100"), 62.78, 31.86, 27.94, 27.03)


def vit_b_cifar100_trades_awp_aas() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-100, TRADES with AWP, with AAS-AT. Estimate: 1.4 H200 hours."""
    return _published(_aas(vit_b_cifar100_trades_awp()), 63.14, 31.76, 30.43, 29.41)


def vit_b_cifar100_mart() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-100, MART. Estimate: 1.1 H200 hours."""
    return _published(_base("mart", "cifar100"), 62.41, 32.61, 27.12, 26.47)


def vit_b_cifar100_mart_aas() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-100, MART, with AAS-AT. Estimate: 1.1 H200 hours."""
    return _published(_aas(vit_b_cifar100_mart()), 62.84, 28.32, 27.83, 27.01)


def vit_b_cifar100_ard_prm() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-100, PGD-AT with ARD and PRM (Mo et al.). Estimate: 1 H200 hour."""
    return _published(_base("ard-prm", "cifar100"), 61.76, 31.30, 27.84, 27.01)


def vit_b_cifar100_ard_prm_aas() -> Recipe:
    """ViT-B/16 (patches of 4) on CIFAR-100, PGD-AT with ARD and PRM, with AAS-AT. Estimate: 1 H200 hour."""
    return _published(_aas(vit_b_cifar100_ard_prm()), 61.43, 30.86, 29.16, 28.42)


# ------------------------------------------------------------ ImageNet-100


def vit_b_imagenet100_at() -> Recipe:
    """ViT-B/16 on ImageNet-100, PGD-AT. Estimate: 8 H200 hours."""
    return _published_imagenet(_base("at", "imagenet100"), 68.32, 25.78)


def vit_b_imagenet100_at_aas() -> Recipe:
    """ViT-B/16 on ImageNet-100, PGD-AT, with AAS-AT. Estimate: 8 H200 hours."""
    return _published_imagenet(_aas(vit_b_imagenet100_at()), 68.02, 27.32)


def vit_b_imagenet100_at_awp() -> Recipe:
    """PGD-AT with AWP on ImageNet-100: the model that table 3 attacks. Estimate: 9 H200 hours."""
    return _attacked("imagenet100", 68.03, 67.84, (29.75, 26.12), (28.07, 25.64))


def vit_b_imagenet100_trades() -> Recipe:
    """ViT-B/16 on ImageNet-100, TRADES. Estimate: 9 H200 hours."""
    return _published_imagenet(_base("trades", "imagenet100"), 65.48, 26.46)


def vit_b_imagenet100_trades_aas() -> Recipe:
    """ViT-B/16 on ImageNet-100, TRADES, with AAS-AT. Estimate: 9 H200 hours."""
    return _published_imagenet(_aas(vit_b_imagenet100_trades()), 65.26, 28.04)


# ---------------------------------------------------------------- XCiT-S12


def xcit_s12_cifar10_sgd() -> Recipe:
    """XCiT-S12 (patches of 4) on CIFAR-10 with the paper's optimizer. Estimate: 1 H200 hour."""
    return _published(_xcit("cifar10"), 90.06, 61.48, 57.06, 56.14)


def xcit_s12_cifar10_aas() -> Recipe:
    """XCiT-S12 (patches of 4) on CIFAR-10 with the paper's optimizer, with AAS-AT. Estimate: 1 H200 hour."""
    return _published(_aas(xcit_s12_cifar10_sgd()), 90.78, 59.94, 57.84, 57.42)


def xcit_s12_cifar100_sgd() -> Recipe:
    """XCiT-S12 (patches of 4) on CIFAR-100 with the paper's optimizer. Estimate: 1 H200 hour."""
    return _published(_xcit("cifar100"), 67.34, 37.86, 33.41, 32.17)


def xcit_s12_cifar100_aas() -> Recipe:
    """XCiT-S12 (patches of 4) on CIFAR-100 with the paper's optimizer, with AAS-AT. Estimate: 1 H200 hour."""
    return _published(_aas(xcit_s12_cifar100_sgd()), 67.12, 35.35, 33.97, 33.46)


def xcit_s12_imagenet100_sgd() -> Recipe:
    """XCiT-S12 on ImageNet-100 with the paper's optimizer; not in the paper. Estimate: 7 H200 hours."""
    return _xcit("imagenet100")


def xcit_s12_imagenet100_aas() -> Recipe:
    """XCiT-S12 on ImageNet-100 with the paper's optimizer, with AAS-AT; not in the paper. Estimate: 7 H200 hours."""
    return _aas(xcit_s12_imagenet100_sgd())
