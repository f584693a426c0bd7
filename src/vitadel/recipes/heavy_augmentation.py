"""Robust ViTs on ImageNet with heavy augmentation: two recipes that contradict the light one of Debenedetti 2022.

Source:  Singh et al. 2023, "Revisiting Adversarial Training for ImageNet", github.com/nmndeep/revisiting-at; and ARES,
         github.com/thu-ml/ares, robust_training. The likely reading of both, in addition to Debenedetti: heavy
         augmentation loses from scratch without averaged weights, and pays with them and, in the first, with a clean
         start.
Differs: - Singh et al. attack with two steps of APGD from the image itself, which our APGD cannot do: it starts at a
           random point and leaves images alone that are adversarial already. Here it is two steps of PGD of 5/4 of the
           radius, keeping the better point. Where the first step raised the loss and no pixel left [0, 1], that is
           their attack: its steps of twice the radius and its momentum of 3/4 move a pixel from +eps to -eps/4. Where
           it did not, theirs returns to the image.
         - Both attack mixed labels as they are; ours attacks the label with the larger share.
         - Singh et al. also decay positions and class token, and compute in float16.
         - In its first epoch ARES trains on random noise, for its steps grow from 0; here that epoch is clean.
         - Erased boxes hold uniform noise; timm's normal noise is meant for normalized images.
Cost:    estimates are passes x 2 x multiply-accumulates x images, on one H200 at an assumed 400 TFLOP/s in bf16.
"""

from collections.abc import Mapping

from vitadel.attacks import PGD
from vitadel.objectives import Adversarial, ScheduleUnit
from vitadel.recipes.recipe import ModelConfig, Normalize, Recipe, Selection
from vitadel.threats import Linf
from vitadel.train import AdamW, LRScaling, Mixing, PILAugment, Precision, TrainingConfig

_EPS = 4 / 255

_DEIT = PILAugment(color_jitter=0.0, rand_augment="rand-m9-mstd0.5-inc1", erase=0.25)
_MIXING = Mixing(mixup=0.8, cutmix=1.0)

_COMMON: Mapping[str, str] = {
    "data": "paper: ImageNet",
    "preprocess": "our choice: RobustBench's size and crop",
    "plan.num_workers": "our choice",
    "plan.checkpoint_every_steps": "our choice",
    "selection": "our choice: robust accuracy on a hold-out",
}


def vit_s_imagenet_singh() -> Recipe:
    """ViT-S/16 from a clean start at 4/255, after Singh et al. Estimate: 20 H200 hours.

    `model.start` is the weights of a ViT-S trained without an adversary, in a file or a run folder of yours. Their best
    models have a convolutional stem, which timm's ViT does not: ViT-S 72.5% and 48.1%, ViT-B 76.3% and 54.7% with it.
    """
    source = "authors' code: revisiting-at, {}".format
    return Recipe(
        name="vit-s-imagenet-singh",
        about="ViT-S/16 on ImageNet at 4/255 from a clean start, heavy augmentation, 2 steps",
        model=ModelConfig("timm:vit_small_patch16_224@clean-vit-s.safetensors", 224, normalize=Normalize.NONE),
        data="imagenet:data/imagenet",
        preprocess="crop:224:256:bicubic",
        objective=Adversarial(PGD(steps=2, step_size=5 / 4 * _EPS, random_start=False), Linf(_EPS), smoothing=0.1),
        plan=TrainingConfig(
            epochs=300,
            batch_size=640,
            optimizer=AdamW(lr=1e-3, weight_decay=0.05, betas=(0.9, 0.95)),
            warmup_epochs=20,
            warmup_lr=1e-7,
            ema=0.9999,
            precision=Precision.BF16,
            mixing=_MIXING,
            pil_augment=_DEIT,
            num_workers=8,
            checkpoint_every_steps=2000,
        ),
        selection=Selection(PGD(steps=10), Linf(_EPS)),
        sources={
            **_COMMON,
            "model.start": "paper: a clean start; the file is yours",
            "model.image_size": source("run_train.sh"),
            "model.normalize": source("run_train.sh; add_normalization 0"),
            "objective": source("main.py; adversarial training"),
            "objective.attack": source("autopgd_train_clean.py; two steps from the image, the worst point kept"),
            "objective.attack.step_size": "our choice: equals the authors' APGD where its first step succeeds",
            "objective.threat": source("main.py"),
            "objective.smoothing": source("run_train.sh"),
            "plan": source("main.py"),
            "plan.epochs": source("README; the models of 300 epochs"),
            "plan.batch_size": "our choice: 8 devices with the 80 images of run_train.sh",
            "plan.optimizer.lr": source("run_train.sh"),
            "plan.precision": "our choice: theirs is float16",
            "plan.mixing": source("parserr.py"),
            "plan.pil_augment": source("parserr.py"),
            "plan.pil_augment.color_jitter": source(
                "parserr.py; asks for 0.4, which timm drops where RandAugment is on"
            ),
        },
        expect={"published": "69.2% clean, 44.0% robust (Singh et al. 2023; AutoAttack at 4/255)"},
    )


def vit_b_imagenet_ares() -> Recipe:
    """ViT-B/16 from scratch at 4/255, after ARES. Estimate: 84 H200 hours."""
    config = "authors' code: ares, train_configs/vit_base_patch16_224.yaml"
    code = "authors' code: ares, adversarial_training.py"
    return Recipe(
        name="vit-b-imagenet-ares",
        about="ViT-B/16 on ImageNet at 4/255 from scratch, heavy augmentation, PGD-3",
        model=ModelConfig("timm:vit_base_patch16_224", 224, normalize=Normalize.DATA),
        data="imagenet:data/imagenet",
        preprocess="crop:224:256:bicubic",
        objective=Adversarial(
            PGD(steps=3, step_size=8 / 255 / 3, keep_best=False),
            Linf(_EPS),
            smoothing=0.1,
            step_warmup=5 / 300,
            warmup_unit=ScheduleUnit.EPOCH,
        ),
        plan=TrainingConfig(
            epochs=300,
            batch_size=512,
            optimizer=AdamW(lr=5e-4, weight_decay=0.05),
            lr_scaling=LRScaling.LINEAR,
            warmup_epochs=5,
            warmup_lr=1e-6,
            min_lr=1e-5,
            cosine_from_start=True,
            ema=0.9998,
            mixing=_MIXING,
            pil_augment=_DEIT,
            num_workers=8,
            checkpoint_every_steps=2000,
        ),
        selection=Selection(PGD(steps=10), Linf(_EPS)),
        sources={
            **_COMMON,
            "model": config,
            "data": config,
            "objective": f"{code}; adversarial training",
            "objective.attack": f"{code}; three steps of 8/255/3 from a random start",
            "objective.threat": code,
            "objective.attack.keep_best": f"{code}; the last iterate",
            "objective.smoothing": config,
            "objective.step_warmup": f"{code}; min(epoch, 5) / 5 of the step",
            "objective.warmup_unit": f"{code}; once an epoch",
            "plan": config,
            "plan.batch_size": "authors' code: ares, run_train.sh; 8 x 64",
            "plan.lr_scaling": f"{config}; lrb is for 512 images",
            "plan.cosine_from_start": "authors' code: timm's warm-up hides the first part of the cosine",
            "plan.pil_augment.color_jitter": f"{config}; asks for 0.4, which timm drops where RandAugment is on",
        },
    )
