"""Robust XCiTs with light augmentation, and what they are compared with; long because one paper is one file.

Source:  Debenedetti 2022, master's thesis (published as "A Light Recipe to Train Robust Vision Transformers"), and the
         authors' code, github.com/dedeswim/vits-robustness-torch. Where the two differ there are two recipes: the plain
         name is the authors' configuration, which made the released weights, `-thesis` is the text of the thesis.
         `-standard` is trained without an adversary.
Differs: - The checkpoint is chosen on a hold-out. The authors chose by accuracy on the test images:
           `--set selection.split=test` repeats that, on all training images, and the manifest says so.
         - The random start is uniform in the ball; theirs adds 1e-5 to every pixel.
         - During the attack the model is in evaluation mode, as in their code on GPUs; on their TPUs it was not.
         - Their loss also sends the clean batch through the model, which moves BatchNorm's statistics; ours does not.
         - The thesis does not settle whether its larger models were trained with batches of 8192 or 16384; here the
           batch is 512, and the learning rate follows `--set plan.batch_size=...`.
Cost:    estimates are passes x 2 x multiply-accumulates x images, on one H200 at an assumed 400 TFLOP/s in bf16
         (`--set plan.precision=bf16`; as published, the recipes compute in float32). They are lower bounds: XCiT's
         convolutions do not reach that rate, and reading ImageNet needs many processes. The thesis took 19.5 hours for
         XCiT-S12, 33 for M12 and 39 for L12 on 64 TPUv4 cores.

ImageNet-100 is 100 classes of ImageNet. The authors drew theirs with JAX's generator and seed 0; that list is not here,
because it cannot be drawn without JAX. `imagenet:DIR@CLASSFILE` takes any list; other classes give other accuracies.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from vitadel.attacks import FGSM, PGD
from vitadel.models import Option
from vitadel.objectives import TRADES, Adversarial, ScheduleUnit, Standard
from vitadel.recipes.recipe import ModelConfig, Normalize, Recipe, Selection, SyntheticConfig
from vitadel.threats import Linf
from vitadel.train import (
    SGD,
    AdamW,
    Chain,
    ColorJitter,
    Erase,
    LRScaling,
    Mixing,
    PadCrop,
    PILAugment,
    ResizedCrop,
    Rotate,
    TrainingConfig,
)

_XCIT = "authors' code: configs/xcit-adv-training.yaml"
_NANO = "authors' code: configs/xcit-nano-adv-training.yaml"
_DEIT = "authors' code: configs/xcit.yaml"
_RESNET = "authors' code: configs/resnet-adv-training.yaml"
_HIGH = "authors' code: configs/xcit-adv-finetuning-hi-res.yaml"
_FINE = "authors' code: configs/xcit-adv-finetuning.yaml"
_SCRATCH = "authors' code: configs/xcit-adv-training-cifar10.yaml"
_STANDARD_HIGH = "authors' code: configs/xcit-finetuning-hi-res.yaml"
_THESIS = "paper: thesis 4.1.1"

_EPS4, _EPS8 = 4 / 255, 8 / 255
_TABLE6 = "thesis, table 6, and the authors' README; AutoAttack on RobustBench's 5000 images"
_README = "the authors' README; AutoAttack"

# timm has the larger XCiTs with 24 blocks and a smaller layer scale only
_MODELS: Mapping[str, tuple[str, dict[str, Option]]] = {
    "s12": ("timm:xcit_small_12_p16_224", {"drop_path_rate": 0.05}),
    "m12": ("timm:xcit_medium_24_p16_224", {"depth": 12, "eta": 1.0, "drop_path_rate": 0.05}),
    "l12": ("timm:xcit_large_24_p16_224", {"depth": 12, "eta": 1.0, "drop_path_rate": 0.05}),
}

_WORK: Mapping[str, str] = {
    "plan.num_workers": "our choice",
    "plan.checkpoint_every_steps": "our choice",
    "selection": "our choice: robust accuracy on a hold-out; the authors' on the test images",
}

_IMAGENET: Mapping[str, str] = {
    **_WORK,
    "model.start": "paper: thesis 4.1.9; 12 blocks of dimension 384 (S), 512 (M) or 768 (L)",
    "model.image_size": "paper: thesis 4.1.4",
    "model.normalize": f"{_XCIT}: no_normalize",
    "model.options": "authors' code: src/models/models.py; depth 12 and layer scale 1.0",
    "model.options.drop_path_rate": _XCIT,
    "data": "paper: thesis 4.1.1",
    "preprocess": "our choice: RobustBench's size and crop",
    "objective": "paper: thesis 4.1.1; adversarial training",
    "objective.attack": "paper: thesis 4.1.1; from a random start, uniform in the ball",
    "objective.attack.steps": "paper: thesis 4.1.1; one step",
    "objective.attack.step_size": "authors' code: src/setup_task.py; 1.5 eps / steps",
    "objective.attack.keep_best": "authors' code: src/attacks.py; the last iterate",
    "objective.smoothing": _XCIT,
    "objective.eps_warmup": "paper: thesis 4.1.8; 10 epochs, here of all 110",
    "objective.warmup_unit": "authors' code: src/attacks.py; e / 10 of eps in epoch e, so epoch 0 is clean",
    "plan.epochs": "paper: thesis 4.1.1; 110 epochs are 100 and 10 at the last rate",
    "plan.cooldown_epochs": "paper: thesis 4.1.1",
    "plan.batch_size": "paper: thesis 4.1.1; 8 x 64",
    "plan.optimizer": "authors' code: timm's AdamW; its rule decays the temperatures of XCiT's attention too",
    "plan.optimizer.lr": "paper: thesis 4.1.1",
    "plan.optimizer.weight_decay": "paper: thesis 4.1.7",
    "plan.lr_scaling": "paper: thesis 4.1.1; 0.0005 x batch / 512",
    "plan.warmup_epochs": _XCIT,
    "plan.warmup_lr": _XCIT,
    "plan.min_lr": _XCIT,
    "plan.lr_unit": "authors' code: timm's schedule moves once an epoch",
    "plan.cosine_from_start": "authors' code: timm's warm-up hides the first part of the cosine",
    "plan.clip_grad": _XCIT,
    "plan.ema": _XCIT,
    "plan.precision": _XCIT,
    "plan.pil_augment": f"{_XCIT}; flip, crops of 8% to 100%, color jitter 0.4, bicubic; thesis 4.1.6 has no values",
    "seed": _XCIT,
}


def _without(sources: Mapping[str, str], *paths: str) -> dict[str, str]:
    """The sources of the other parts."""
    return {path: source for path, source in sources.items() if not path.startswith(paths)}


def _renamed(sources: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    return {path: source.replace(old, new) for path, source in sources.items()}


def _published(clean: float, robust: float, source: str) -> dict[str, str]:
    return {"published": f"{clean:.2f}% clean, {robust:.2f}% robust ({source})"}


def _attack(eps: float, steps: int) -> PGD:
    return PGD(steps=steps, step_size=1.5 * eps / steps, keep_best=False)


def _imagenet(size: str, eps: float, steps: int, *, name: str, published: tuple[float, float]) -> Recipe:
    start, options = _MODELS[size]
    two = (
        "paper: thesis 4.2; one step leaks labels at 8/255"
        if eps == _EPS8
        else "authors' code: README; --attack-steps 2"
    )
    threat = Linf(eps)
    return Recipe(
        name=name,
        about=f"XCiT-{size.upper()} on ImageNet at {round(255 * eps)}/255, {steps}-step adversarial training",
        model=ModelConfig(start, image_size=224, normalize=Normalize.NONE, options=options),
        data="imagenet:data/imagenet",
        preprocess="crop:224:256:bicubic",
        objective=Adversarial(
            _attack(eps, steps), threat, smoothing=0.1, eps_warmup=10 / 110, warmup_unit=ScheduleUnit.EPOCH
        ),
        plan=TrainingConfig(
            epochs=100,
            batch_size=512,
            optimizer=AdamW(lr=5e-4, weight_decay=0.5),
            lr_scaling=LRScaling.LINEAR,
            warmup_epochs=10,
            warmup_lr=1e-6,
            min_lr=1e-5,
            cooldown_epochs=10,
            lr_unit=ScheduleUnit.EPOCH,
            cosine_from_start=True,
            pil_augment=PILAugment(),
            num_workers=8,
            checkpoint_every_steps=2000,
        ),
        selection=Selection(PGD(steps=10), threat),
        seed=42,
        sources={
            **_IMAGENET,
            "objective.threat": "paper: thesis 4.2" if eps == _EPS8 else "paper: thesis 4.1.9, and RobustBench",
            **({"objective.attack.steps": two} if steps == 2 else {}),
        },
        expect=_published(*published, _TABLE6 if eps == _EPS4 and steps == 1 else _README),
    )


def xcit_s12_imagenet() -> Recipe:
    """XCiT-S12 at 4/255, as in the authors' configuration. Estimate: 5 H200 hours."""
    return _imagenet("s12", _EPS4, 1, name="xcit-s12-imagenet", published=(72.34, 41.78))


def xcit_m12_imagenet() -> Recipe:
    """XCiT-M12 at 4/255, as in the authors' configuration. Estimate: 8 H200 hours."""
    return _imagenet("m12", _EPS4, 1, name="xcit-m12-imagenet", published=(74.04, 45.24))


def xcit_l12_imagenet() -> Recipe:
    """XCiT-L12 at 4/255 with the two steps that the README gives it. Estimate: 26 H200 hours."""
    return _imagenet("l12", _EPS4, 2, name="xcit-l12-imagenet", published=(73.76, 47.60))


def xcit_s12_imagenet_eps8() -> Recipe:
    """XCiT-S12 at 8/255 with two steps: the start of the fine-tuned models. Estimate: 7 H200 hours."""
    return _imagenet("s12", _EPS8, 2, name="xcit-s12-imagenet-eps8", published=(63.46, 25.00))


def xcit_m12_imagenet_eps8() -> Recipe:
    """XCiT-M12 at 8/255 with two steps. Estimate: 12 H200 hours."""
    return _imagenet("m12", _EPS8, 2, name="xcit-m12-imagenet-eps8", published=(67.80, 26.58))


def xcit_l12_imagenet_eps8() -> Recipe:
    """XCiT-L12 at 8/255 with two steps. Estimate: 26 H200 hours."""
    return _imagenet("l12", _EPS8, 2, name="xcit-l12-imagenet-eps8", published=(69.24, 28.74))


# thesis 4.1.1 says all this of "all the training runs on ImageNet"
_TEXT: Mapping[str, str] = {
    "plan.batch_size": f"{_THESIS}; 8 x 64",
    "plan.lr_scaling": f"{_THESIS}; 0.0005 x batch / 512",
    "plan.warmup_epochs": f"{_THESIS}; 5 epochs",
    "plan.warmup_lr": f"{_THESIS}; from 5e-6",
    "plan.min_lr": f"{_THESIS}; to 5e-5",
    "selection": "our choice: a hold-out instead of the thesis's test images",
    "selection.attack": f"{_THESIS}; accuracy under FGSM",
}


# the text has each batch once plain and twice augmented, see the source of plan.repeats
_EXCEPT = ", apart from repeated augmentation"


def _with_text_of_thesis(recipe: Recipe) -> Recipe:
    """Batch, the ends of the learning rate, and the checkpoint chosen by FGSM, as section 4.1.1 has them."""
    plan = replace(
        recipe.plan, batch_size=512, lr_scaling=LRScaling.LINEAR, warmup_epochs=5, warmup_lr=5e-6, min_lr=5e-5
    )
    return replace(
        recipe,
        name=f"{recipe.name}-thesis",
        about=f"{re.split('[,:]', recipe.about)[0]}, as the thesis's text has it{_EXCEPT * (recipe.plan.repeats > 1)}",
        plan=plan,
        selection=Selection(FGSM(), Linf(_EPS4)),
        sources={**recipe.sources, **_TEXT},
    )


def _as_in_the_thesis(recipe: Recipe, published: tuple[float, float]) -> Recipe:
    """On ImageNet: one step for all sizes, too."""
    assert isinstance(recipe.objective, Adversarial)
    return replace(
        _with_text_of_thesis(recipe),
        objective=replace(recipe.objective, attack=_attack(_EPS4, 1)),
        sources={**_IMAGENET, **_TEXT, "objective.threat": "paper: thesis 4.1.9"},
        expect=_published(*published, "thesis, table 6; AutoAttack on RobustBench's 5000 images"),
    )


def xcit_s12_imagenet_thesis() -> Recipe:
    """XCiT-S12 at 4/255, as in the thesis's text. Estimate: 5 H200 hours."""
    return _as_in_the_thesis(xcit_s12_imagenet(), (72.34, 41.78))


def xcit_m12_imagenet_thesis() -> Recipe:
    """XCiT-M12 at 4/255, as in the thesis's text. Estimate: 8 H200 hours."""
    return _as_in_the_thesis(xcit_m12_imagenet(), (74.04, 45.24))


def xcit_l12_imagenet_thesis() -> Recipe:
    """XCiT-L12 at 4/255 with the thesis's one step, less robust than two. Estimate: 19 H200 hours."""
    return _as_in_the_thesis(xcit_l12_imagenet(), (74.60, 43.78))


def xcit_n12_imagenet100() -> Recipe:
    """XCiT-N12 on ImageNet-100: where the thesis's ablations begin. Estimate: minutes of an H200, if images come fast.

    The weight decay is the one before the ablation, whose best is 0.5.
    """
    base = xcit_s12_imagenet()
    assert isinstance(base.objective, Adversarial)
    return replace(
        base,
        name="xcit-n12-imagenet100",
        about="XCiT-N12 on 100 classes of ImageNet at 4/255: the base of the ablations",
        model=ModelConfig("timm:xcit_nano_12_p16_224", image_size=224, normalize=Normalize.NONE),
        data="imagenet:data/imagenet@imagenet100.txt",
        objective=replace(base.objective, eps_warmup=20 / 110),
        plan=replace(
            base.plan, batch_size=1024, lr_scaling=LRScaling.FIXED, optimizer=AdamW(lr=5e-4, weight_decay=0.05)
        ),
        sources={
            **_without(_renamed(_IMAGENET, _XCIT, _NANO), "model.options"),
            "model.start": "paper: thesis 4.1.4",
            "data": "paper: thesis 4.1.1; the class file is yours",
            "objective.threat": "authors' code: configs/xcit-nano-adv-training.yaml",
            "objective.eps_warmup": "paper: thesis 4.1.5; 20 epochs, here of all 110",
            "plan.batch_size": f"{_NANO}; 8 x 128, where thesis 4.1.1 says 512",
            "plan.lr_scaling": f"{_NANO}; 5e-4 whatever the batch",
            "plan.optimizer.weight_decay": _NANO,
        },
        expect=_published(67.16, 39.30, "thesis, table 4, on the authors' 100 classes; APGD-CE"),
    )


def xcit_n12_imagenet100_thesis() -> Recipe:
    """XCiT-N12 on ImageNet-100, as in the thesis's text: half the batch, other ends of the learning rate. Minutes.

    Estimate: minutes of an H200, if images come fast.
    """
    return _with_text_of_thesis(xcit_n12_imagenet100())


def _out_of_the_box(name: str, what: str, start: str, options: dict[str, Option]) -> Recipe:
    """The architecture ablation: DeiT's training recipe with adversarial training as the only change."""
    base = xcit_n12_imagenet100()
    assert isinstance(base.objective, Adversarial)
    return replace(
        base,
        name=name,
        about=f"{what} at 4/255, DeiT's training out of the box",
        model=ModelConfig(start, image_size=224, normalize=Normalize.NONE, options={**options, "drop_path_rate": 0.05}),
        objective=replace(base.objective, eps_warmup=0.0, warmup_unit=ScheduleUnit.STEP),
        plan=replace(
            base.plan,
            batch_size=512,
            lr_scaling=LRScaling.LINEAR,
            warmup_epochs=5,
            pil_augment=PILAugment(color_jitter=0.0, rand_augment="rand-m9-mstd0.5-inc1", erase=0.25),
            mixing=Mixing(mixup=0.8, cutmix=1.0),
            repeats=3,
        ),
        sources={
            **_without(base.sources, "objective.eps_warmup", "objective.warmup_unit"),
            "model.options": "paper: thesis 4.1.4; 12 blocks of dimension 384",
            "model.options.drop_path_rate": _DEIT,
            "plan.batch_size": "paper: thesis 4.1.1; 8 x 64",
            "plan.lr_scaling": "paper: thesis 4.1.1; 0.0005 x batch / 512",
            "plan.optimizer.weight_decay": _DEIT,
            "plan.warmup_epochs": _DEIT,
            "plan.pil_augment": _DEIT,
            "plan.pil_augment.color_jitter": f"{_DEIT}; asks for 0.4, which timm drops where RandAugment is on",
            "plan.mixing": _DEIT,
            "plan.repeats": "our choice: as DeiT's sampler, each image three times, always augmented, and a third of "
            "the images per epoch; thesis 4.1.1 and the authors' iterable_augmix_dataset.py have a batch once plain "
            "and twice augmented, at three times the cost",
        },
    )


def deit_s_imagenet100() -> Recipe:
    """DeiT-S on ImageNet-100, out of the box. Estimate: half an H200 hour."""
    recipe = _out_of_the_box("deit-s-imagenet100", "DeiT-S on ImageNet-100", "timm:deit_small_patch16_224", {})
    return replace(recipe, expect=_published(62.52, 33.32, "thesis, table 1, on the authors' 100 classes; APGD-CE"))


def cait_s12_imagenet100() -> Recipe:
    """CaiT-S12 on ImageNet-100, out of the box. Estimate: half an H200 hour."""
    options: dict[str, Option] = {"depth": 12, "init_values": 1.0}
    recipe = _out_of_the_box("cait-s12-imagenet100", "CaiT-S12 on ImageNet-100", "timm:cait_s24_224", options)
    layer_scale = "authors' code: src/models/models.py; thesis 2.3.3 has 0.1 up to depth 18"
    return replace(
        recipe,
        sources={**recipe.sources, "model.options.init_values": layer_scale},
        expect=_published(70.20, 35.84, "thesis, table 1, on the authors' 100 classes; APGD-CE"),
    )


def xcit_s12_imagenet100() -> Recipe:
    """XCiT-S12 on ImageNet-100, out of the box. Estimate: half an H200 hour."""
    recipe = _out_of_the_box("xcit-s12-imagenet100", "XCiT-S12 on ImageNet-100", "timm:xcit_small_12_p16_224", {})
    return replace(recipe, expect=_published(85.06, 54.80, "thesis, table 1, on the authors' 100 classes; APGD-CE"))


def deit_s_imagenet100_thesis() -> Recipe:
    """DeiT-S on ImageNet-100 with the learning rate of the thesis's text. Estimate: half an H200 hour.

    Its repeated augmentation is DeiT's, not that of the text.
    """
    return _with_text_of_thesis(deit_s_imagenet100())


def cait_s12_imagenet100_thesis() -> Recipe:
    """CaiT-S12 with the layer scale and the learning rate of the thesis's text. Estimate: half an H200 hour.

    Its repeated augmentation is DeiT's, not that of the text.
    """
    recipe = _with_text_of_thesis(cait_s12_imagenet100())
    return replace(
        recipe,
        model=replace(recipe.model, options={**recipe.model.options, "init_values": 0.1}),
        sources={**recipe.sources, "model.options.init_values": "paper: thesis 2.3.3; 0.1 up to depth 18"},
    )


def xcit_s12_imagenet100_thesis() -> Recipe:
    """XCiT-S12 on ImageNet-100 with the learning rate of the thesis's text. Estimate: half an H200 hour.

    Its repeated augmentation is DeiT's, not that of the text.
    """
    return _with_text_of_thesis(xcit_s12_imagenet100())


def deit_s_imagenet() -> Recipe:
    """DeiT-S on ImageNet: the row that the thesis improves on step by step. Estimate: 5 H200 hours.

    Without repeated augmentation, which thesis 4.1.1 keeps to the architecture ablation.
    """
    recipe = deit_s_imagenet100()
    return replace(
        recipe,
        name="deit-s-imagenet",
        about="DeiT-S on ImageNet at 4/255, DeiT's training out of the box",
        data="imagenet:data/imagenet",
        plan=replace(recipe.plan, repeats=1),
        sources={**_without(recipe.sources, "plan.repeats"), "data": "paper: thesis 4.1.8"},
        expect=_published(66.30, 32.70, "thesis, table 5; AutoAttack"),
    )


def _standard_imagenet(size: str, clean: float) -> Recipe:
    """XCiT's own training, without an adversary and without repeated augmentation."""
    deit = deit_s_imagenet()
    start, options = _MODELS[size]
    return Recipe(
        name=f"xcit-{size}-imagenet-standard",
        about=f"XCiT-{size.upper()} on ImageNet, standard training for 100 epochs",
        model=ModelConfig(start, image_size=224, normalize=Normalize.NONE, options=options),
        data=deit.data,
        preprocess=deit.preprocess,
        objective=Standard(smoothing=0.1),
        plan=replace(deit.plan, batch_size=1024, cooldown_epochs=0),
        selection=Selection(),
        seed=deit.seed,
        sources={
            **_without(deit.sources, "model", "data", "objective", "selection"),
            "model": _IMAGENET["model.options"],
            "model.start": _IMAGENET["model.start"],
            "model.image_size": _IMAGENET["model.image_size"],
            "model.normalize": f"{_DEIT}: no_normalize",
            "model.options.drop_path_rate": _DEIT,
            "data": "paper: thesis 4.1.9",
            "objective": "paper: thesis 4.1.9; standard training",
            "objective.smoothing": _DEIT,
            "plan.epochs": "paper: thesis 4.1.9; 100 epochs",
            "plan.cooldown_epochs": "paper: thesis 4.1.9; 100 epochs in all",
            "plan.batch_size": "our choice: as El-Nouby et al.'s README trains XCiT-S12, 8 x 128; the rate follows",
            "plan.optimizer.lr": f"{_DEIT}; El-Nouby et al.'s main.py",
            "plan.lr_scaling": "authors' code: El-Nouby et al.'s main.py; 0.0005 x batch / 512",
            "plan.warmup_lr": _DEIT,
            "plan.min_lr": _DEIT,
            "selection": "our choice: clean accuracy on a hold-out; the authors' on the test images",
        },
        expect={"published": f"{clean:.2f}% clean (thesis, section 4.1.9)"},
    )


def xcit_s12_imagenet_standard() -> Recipe:
    """XCiT-S12 with standard training, to measure the cost of robustness. Estimate: 3 H200 hours."""
    return _standard_imagenet("s12", 80.36)


def xcit_m12_imagenet_standard() -> Recipe:
    """XCiT-M12 without an adversary. Estimate: 5 H200 hours."""
    return _standard_imagenet("m12", 81.71)


def xcit_l12_imagenet_standard() -> Recipe:
    """XCiT-L12 without an adversary. Estimate: 11 H200 hours."""
    return _standard_imagenet("l12", 82.65)


def _resnet50_gelu(eps: float, steps: int, *, name: str, published: tuple[float, float]) -> Recipe:
    base = _imagenet("s12", eps, steps, name=name, published=published)
    assert isinstance(base.objective, Adversarial)
    return replace(
        base,
        about=f"ResNet-50 with GELU on ImageNet at {round(255 * eps)}/255, adversarial training",
        model=ModelConfig("vitadel:resnet50_gelu", image_size=224, normalize=Normalize.HALF),
        objective=replace(base.objective, eps_warmup=10 / 100),
        plan=TrainingConfig(
            epochs=100,
            batch_size=512,
            optimizer=SGD(lr=0.1, weight_decay=1e-4),
            lr_scaling=LRScaling.LINEAR,
            lr_batch_size=256,
            decay_epochs=30,
            lr_unit=ScheduleUnit.EPOCH,
            pil_augment=PILAugment(color_jitter=0.0),
            num_workers=8,
            checkpoint_every_steps=2000,
        ),
        sources={
            **_WORK,
            **_without(_renamed(base.sources, _XCIT, _RESNET), "model", "plan"),
            "model": _RESNET,
            "model.normalize": _RESNET,
            "objective.attack.steps": "our choice: as XCiT's" if steps == 2 else _RESNET,
            "objective.eps_warmup": f"{_RESNET}; 10 epochs",
            "plan": _RESNET,
            "plan.batch_size": "our choice: theirs is 8 x 64 with a rate of 3.2, which belongs to 8192",
            "plan.optimizer.lr": "our choice: 0.1 for 256 images, which makes the authors' 3.2 for 8192",
            "plan.lr_scaling": "our choice: see plan.optimizer.lr",
            "plan.lr_batch_size": "our choice: see plan.optimizer.lr",
            "plan.pil_augment": f"{_RESNET}; flip and crops of 8% to 100%",
        },
        expect=_published(*published, _README),
    )


def resnet50_gelu_imagenet() -> Recipe:
    """ResNet-50 with GELU at 4/255, the authors' own baseline. Estimate: 4 H200 hours.

    The thesis's table 6 quotes the weights of Bai et al. 2021, who trained otherwise; the README has the authors' own.
    """
    recipe = _resnet50_gelu(_EPS4, 1, name="resnet50-gelu-imagenet", published=(66.54, 35.12))
    bai = "67.38% clean, 35.51% robust (thesis, table 6, from Bai et al. 2021; AutoAttack)"
    return replace(recipe, expect={"published": f"{bai}; 66.54% and 35.12% (the authors' README)"})


def resnet50_gelu_imagenet_eps8() -> Recipe:
    """ResNet-50 with GELU at 8/255. Estimate: 5 H200 hours."""
    return _resnet50_gelu(_EPS8, 2, name="resnet50-gelu-imagenet-eps8", published=(58.08, 17.15))


_START = "runs/xcit-s12-imagenet-eps8"
# Salman et al. 2020, github.com/microsoft/robust-models-transfer, trained at 8/255; the file is yours
_SALMAN = "timm:resnet50@resnet50-linf-eps8.pth"
_FROM_ROBUST = {
    "model.start": "paper: thesis 4.2; a run of xcit-s12-imagenet-eps8, or --set model.start=YOURS",
    "model.image_size": "paper: thesis 4.2.1",
    "model.normalize": _HIGH,
}


def _high_resolution(name: str, what: str, data: str, expect: dict[str, str]) -> Recipe:
    base = xcit_s12_imagenet_eps8()
    return replace(
        base,
        name=name,
        about=f"XCiT-S12 from ImageNet to {what} at 8/255, adversarial fine-tuning",
        model=ModelConfig(_START, image_size=224, normalize=Normalize.HALF),
        data=data,
        objective=Adversarial(_attack(_EPS8, 1), Linf(_EPS8), smoothing=0.1),
        plan=replace(
            base.plan,
            epochs=20,
            optimizer=AdamW(lr=5e-5, weight_decay=0.5),
            lr_scaling=LRScaling.FIXED,
            warmup_epochs=5,
            min_lr=5e-6,
            checkpoint_every_steps=500,
        ),
        sources={
            **_without(_renamed(_IMAGENET, _XCIT, _HIGH), "model", "objective.eps_warmup", "objective.warmup_unit"),
            **_FROM_ROBUST,
            "data": "paper: thesis 4.2; the authors' copy counts 102 classes",
            "objective.threat": "paper: thesis 4.2.1, which prints 8/288",
            "objective.attack.steps": "paper: thesis 4.2.1; one step, and no warm-up of eps",
            "plan.epochs": "paper: thesis 4.2.1",
            "plan.cooldown_epochs": _HIGH,
            "plan.lr_scaling": f"{_HIGH}; 5e-5 whatever the batch",
            "plan.optimizer.lr": "paper: thesis 4.2.1",
        },
        expect=expect,
    )


def xcit_s12_caltech101() -> Recipe:
    """Caltech-101 from an XCiT-S12 that is robust on ImageNet. Estimate: minutes of an H200.

    `folder:DIR` needs DIR/train/CLASS and DIR/test/CLASS. Thesis and README disagree about the result; both are kept.
    """
    source = "89.66% clean, 49.66% robust (thesis, table 7); 87.59% and 61.74% (the authors' README)"
    return _high_resolution("xcit-s12-caltech101", "Caltech-101", "folder:data/caltech101", {"published": source})


def xcit_s12_flowers102() -> Recipe:
    """Oxford Flowers from an XCiT-S12 that is robust on ImageNet. Estimate: minutes of an H200.

    `folder:DIR` needs DIR/train/CLASS and DIR/test/CLASS. Thesis and README disagree about the result; both are kept.
    """
    source = "85.01% clean, 29.37% robust (thesis, table 7); 82.86% and 47.91% (the authors' README)"
    return _high_resolution("xcit-s12-flowers102", "Oxford Flowers", "folder:data/flowers102", {"published": source})


def _for_twenty_epochs(recipe: Recipe) -> Recipe:
    """Length and warm-up of the thesis's text, without a cool-down, and the checkpoint chosen by FGSM."""
    return replace(
        recipe,
        name=f"{recipe.name}-thesis",
        about=f"{recipe.about.split(',')[0]}, as the thesis's text has it",
        plan=replace(recipe.plan, warmup_lr=5e-6, cooldown_epochs=0),
        selection=Selection(FGSM(), Linf(_EPS8)),
        sources={
            **recipe.sources,
            "plan.epochs": "paper: thesis 4.2.1; 20 epochs",
            "plan.cooldown_epochs": "paper: thesis 4.2.1; 20 epochs in all",
            "plan.warmup_lr": "paper: thesis 4.2.1; the recipe of the pre-training, which warms up from 5e-6 (4.1.1)",
            "plan.min_lr": f"{_HIGH}; the 5e-5 of thesis 4.1.1 is the peak here",
            "selection": _TEXT["selection"],
            "selection.attack": _TEXT["selection.attack"],
        },
    )


def xcit_s12_caltech101_thesis() -> Recipe:
    """Caltech-101 for the 20 epochs of the thesis's text. Estimate: minutes of an H200."""
    return _for_twenty_epochs(xcit_s12_caltech101())


def xcit_s12_flowers102_thesis() -> Recipe:
    """Oxford Flowers for the 20 epochs of the thesis's text. Estimate: minutes of an H200."""
    return _for_twenty_epochs(xcit_s12_flowers102())


def _without_adversary(recipe: Recipe, clean: float) -> Recipe:
    """The same fine-tuning of the same robust weights on clean images."""
    return replace(
        recipe,
        name=f"{recipe.name}-standard",
        about=f"{recipe.about.split(' at ')[0]}, standard fine-tuning",
        objective=Standard(smoothing=0.1),
        selection=Selection(),
        sources={
            **_without(_renamed(recipe.sources, _HIGH, _STANDARD_HIGH), "objective", "selection"),
            "objective": "paper: thesis 4.2.1; a run without adversarial training",
            "objective.smoothing": _STANDARD_HIGH,
            "selection": "our choice: clean accuracy on a hold-out; the authors' on the test images",
        },
        expect={"published": f"{clean:.2f}% clean (thesis, table 7)"},
    )


def _resnet50_tuned(recipe: Recipe, published: str) -> Recipe:
    """The same fine-tuning of a robust ResNet-50."""
    return replace(
        recipe,
        name=recipe.name.replace("xcit-s12", "resnet50"),
        about=recipe.about.replace("XCiT-S12", "ResNet-50"),
        model=ModelConfig(_SALMAN, image_size=224),
        sources={
            **recipe.sources,
            "model.start": "paper: thesis 4.2.1; Salman et al.'s ResNet-50, trained at 8/255; the file is yours",
            "model.normalize": "our choice: ImageNet's mean and deviation, as Salman et al. train",
        },
        expect={"published": published},
    )


def resnet50_caltech101() -> Recipe:
    """Caltech-101 from Salman et al.'s robust ResNet-50. Estimate: minutes of an H200."""
    source = "83.22% clean, 33.90% robust (thesis, table 7); 81.38% and 34.49% (the authors' README)"
    return _resnet50_tuned(xcit_s12_caltech101(), source)


def resnet50_flowers102() -> Recipe:
    """Oxford Flowers from Salman et al.'s robust ResNet-50. Estimate: minutes of an H200."""
    source = "70.61% clean, 21.52% robust (thesis, table 7); 74.51% and 32.75% (the authors' README)"
    return _resnet50_tuned(xcit_s12_flowers102(), source)


def xcit_s12_caltech101_standard() -> Recipe:
    """Caltech-101 from the robust XCiT-S12, without an adversary. Estimate: minutes of an H200."""
    return _without_adversary(xcit_s12_caltech101(), 90.42)


def xcit_s12_flowers102_standard() -> Recipe:
    """Oxford Flowers from the robust XCiT-S12, without an adversary. Estimate: minutes of an H200."""
    return _without_adversary(xcit_s12_flowers102(), 89.08)


def resnet50_caltech101_standard() -> Recipe:
    """Caltech-101 from the robust ResNet-50, without an adversary. Estimate: minutes of an H200."""
    return _without_adversary(resnet50_caltech101(), 86.97)


def resnet50_flowers102_standard() -> Recipe:
    """Oxford Flowers from the robust ResNet-50, without an adversary. Estimate: minutes of an H200."""
    return _without_adversary(resnet50_flowers102(), 82.30)


_CIFAR: Mapping[str, str] = {
    **_FROM_ROBUST,
    "model.normalize": f"{_FINE}; mean and deviation of the data",
    "model.patch_size": "paper: thesis 4.2.1; the first two convolutions of the stem get stride 1",
    "data": "paper: thesis 4.2.1",
    "preprocess": "our choice: the images as they are",
    "objective": "paper: thesis 4.2.1; TRADES",
    "objective.attack": "paper: thesis 4.2.1; PGD-10",
    "objective.attack.step_size": "authors' code: src/setup_task.py; 1.5 eps / steps",
    "objective.attack.keep_best": "authors' code: src/attacks.py; the last iterate",
    "objective.threat": "paper: thesis 4.2.1",
    "objective.beta": _FINE,
    "plan.epochs": "paper: thesis 4.2.1",
    "plan.cooldown_epochs": _FINE,
    "plan.batch_size": "authors' code: 8 x 128",
    "plan.optimizer": _FINE,
    "plan.optimizer.lr": "paper: thesis 4.2.1; for a batch of 512",
    "plan.lr_scaling": "authors' code: timm scales Adam's rate with the root of the batch, to 2.83e-4",
    "plan.warmup_epochs": _FINE,
    "plan.warmup_lr": _FINE,
    "plan.min_lr": _FINE,
    "plan.lr_unit": "authors' code: timm's schedule moves once an epoch",
    "plan.cosine_from_start": "authors' code: timm's warm-up hides the first part of the cosine",
    "plan.augment": f"{_FINE}; crop after padding by 4, flip, rotation by 2 degrees, color jitter 0.25",
    "plan.checkpoint_every_steps": "our choice",
    "selection": "our choice: robust accuracy on a hold-out; the authors' on the test images",
    "seed": _FINE,
}


def xcit_s12_cifar10() -> Recipe:
    """CIFAR-10 from an XCiT-S12 that is robust on ImageNet, as the released weights were. Estimate: 4 H200 minutes.

    XCiT-M12 and L12 are fine-tuned the same way: `--set model.start=runs/xcit-m12-imagenet-eps8`.
    """
    return Recipe(
        name="xcit-s12-cifar10",
        about="XCiT-S12 from ImageNet to CIFAR-10 at 8/255, TRADES fine-tuning",
        model=ModelConfig(_START, image_size=32, patch_size=4, normalize=Normalize.DATA),
        data="cifar10:data",
        preprocess="squash:32",
        objective=TRADES(_attack(_EPS8, 10), Linf(_EPS8), beta=6.0),
        plan=TrainingConfig(
            epochs=20,
            batch_size=1024,
            optimizer=AdamW(lr=2e-4, weight_decay=0.5),
            lr_scaling=LRScaling.ROOT,
            warmup_epochs=5,
            warmup_lr=1e-6,
            min_lr=5e-6,
            cooldown_epochs=2,
            lr_unit=ScheduleUnit.EPOCH,
            cosine_from_start=True,
            augment=Chain((PadCrop(pad=4), ColorJitter(0.25, 0.25, 0.25), Rotate(2.0))),
            checkpoint_every_steps=200,
        ),
        selection=Selection(PGD(steps=10), Linf(_EPS8)),
        seed=42,
        sources=_CIFAR,
        expect=_published(90.06, 56.14, "thesis, table 8, and the authors' README; AutoAttack"),
    )


def xcit_s12_cifar100() -> Recipe:
    """CIFAR-100 from an XCiT-S12 that is robust on ImageNet. Estimate: 4 H200 minutes."""
    return replace(
        xcit_s12_cifar10(),
        name="xcit-s12-cifar100",
        about="XCiT-S12 from ImageNet to CIFAR-100 at 8/255, TRADES fine-tuning",
        data="cifar100:data",
        sources={**_CIFAR, "data": "authors' code: README"},
        expect=_published(67.34, 32.19, _README),
    )


def xcit_s12_cifar10_thesis() -> Recipe:
    """CIFAR-10 fine-tuning with the thesis's batch, rate and crops. Estimate: 4 H200 minutes."""
    base = xcit_s12_cifar10()
    return replace(
        base,
        name="xcit-s12-cifar10-thesis",
        about="XCiT-S12 from ImageNet to CIFAR-10 at 8/255, as the thesis's text has it",
        plan=replace(
            base.plan,
            batch_size=512,
            lr_scaling=LRScaling.FIXED,
            cooldown_epochs=0,
            augment=ResizedCrop(scale=(0.8, 1.2), ratio=(0.95, 1.05)),
        ),
        sources={
            **_without(_CIFAR, "plan.lr_scaling"),
            "plan.batch_size": "paper: thesis 4.1.1; 8 x 64",
            "plan.cooldown_epochs": "paper: thesis 4.2.1; 20 epochs in all",
            "plan.augment": "paper: thesis 4.2.1; a box larger than the image never fits, so 0.8 to 1",
        },
    )


def xcit_s12_cifar10_scratch() -> Recipe:
    """XCiT-S12 on CIFAR-10 from random weights. Estimate: 1 H200 hour."""
    base = xcit_s12_cifar10_thesis()
    start, options = _MODELS["s12"]
    crop = ResizedCrop(scale=(0.8, 1.2), ratio=(0.95, 1.05))
    return replace(
        base,
        name="xcit-s12-cifar10-scratch",
        about="XCiT-S12 on CIFAR-10 from scratch at 8/255, TRADES",
        model=replace(base.model, start=start, options=options),
        plan=replace(base.plan, epochs=300, augment=Chain((crop, Erase(0.2)))),
        sources={
            **_renamed(base.sources, _FINE, _SCRATCH),
            "model.start": "paper: thesis 4.2.1",
            "model.options": _SCRATCH,
            "plan.epochs": "paper: thesis 4.2.1; the authors' configuration has 100",
            "plan.cooldown_epochs": "paper: thesis 4.2.1; 300 epochs in all",
            "plan.augment": "paper: thesis 4.2.1; the crops of its fine-tuning",
            "plan.augment.steps.1": f"{_SCRATCH}; erasing is in the configuration alone, the thesis's text has none",
        },
        expect=_published(82.84, 39.49, "thesis, table 8; AutoAttack"),
    )


def xcit_s12_cifar10_scratch_synthetic() -> Recipe:
    """XCiT-S12 on CIFAR-10 from random weights, half of every batch from a generator (Sehwag et al. 2021).

    Estimate: 1 H200 hour.

    An epoch is 50,000 images in all, half of them real; the authors' ends with the shorter of the two sets.
    """
    base = xcit_s12_cifar10_scratch()
    return replace(
        base,
        name="xcit-s12-cifar10-scratch-synthetic",
        about="XCiT-S12 on CIFAR-10 and generated images from scratch at 8/255, TRADES",
        synthetic=SyntheticConfig("data/cifar10-ddpm", share=0.5),
        sources={
            **base.sources,
            "synthetic": "paper: thesis 4.2.1; half of every batch",
            "synthetic.folder": "our choice: made by `vitadel data convert` from the authors' archive",
        },
        expect=_published(80.01, 47.88, "thesis, table 8; AutoAttack"),
    )
