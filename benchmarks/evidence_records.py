"""What the evidence is made of: measurements with their commands, the scores of every image, and the records.

A measurement has arms, such as two optimizers; each arm is a list of commands of `vitadel`, run once for every seed,
and a record has the correct predictions of every image, so that arms can be compared image by image.

Shape letters: N images, V variants.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitadel.runs import ManifestRecord, ResultFolder, Run

RESULTS = Path(__file__).parent / "results"
SEEDS = (0, 1, 2)

# ---------------------------------------------------------------- scores


@dataclass(frozen=True, slots=True)
class Scores:
    """Correct predictions of every image, out of `of` each.

    Args:
        correct: [N], in the order of the images.
        of: How many predictions of an image there are, such as one for each corruption.
    """

    correct: NDArray[np.int64]
    of: int = 1

    @property
    def shares(self) -> NDArray[np.float64]:
        """[N]: the share of correct predictions of every image."""
        shares: NDArray[np.float64] = self.correct / self.of
        return shares

    def to_json(self) -> dict[str, object]:
        """The mean for people, and every image in hexadecimal: a bit, or a byte if there are several predictions."""
        assert self.of < 256, "counts are written as bytes"
        counts = self.correct.astype(np.uint8)
        packed = np.packbits(counts) if self.of == 1 else counts
        return {"accuracy": round(float(self.shares.mean()), 4), "of": self.of, "correct": packed.tobytes().hex()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], n: int) -> "Scores":
        counts = np.frombuffer(bytes.fromhex(content["correct"]), np.uint8)
        counts = np.unpackbits(counts, count=n) if content["of"] == 1 else counts
        return cls(counts.astype(np.int64), content["of"])


def _of_one(column: Sequence[Any] | NDArray[Any]) -> Scores:
    return Scores(np.asarray(column, np.int64))


# a run folder's scores by name, and what its images are
Read = Callable[[Path], tuple[dict[str, Scores], ManifestRecord, str]]


def _rows(folder: Path) -> tuple[dict[str, list[Any]], ManifestRecord, str]:
    """The rows of the only evaluation below a folder, its manifest, and a hash of images and labels."""
    (found,) = sorted(folder.glob("**/rows.parquet"))
    rows = ResultFolder(found.parent).rows()
    identity = json.dumps([rows["id"], rows["label"]])
    return rows, Run.open(found.parents[2]).manifest, hashlib.sha256(identity.encode()).hexdigest()[:16]


def _clean(rows: Mapping[str, Sequence[Any]]) -> Scores:
    pairs = zip(rows["clean_prediction"], rows["label"], strict=True)
    return _of_one([prediction == label for prediction, label in pairs])


def read_suite(folder: Path) -> tuple[dict[str, Scores], ManifestRecord, str]:
    """A suite that perturbs images: correct without and with the perturbation, and whatever else its rows say."""
    rows, manifest, images = _rows(folder)
    cells = len(rows["predictions"][0]) if "predictions" in rows else 1
    counts = np.rint(np.asarray(rows["correct"], np.float64) * cells).astype(np.int64)
    scores = {"clean": _clean(rows), "perturbed": Scores(counts, cells)}
    if "fgsm_correct" in rows:
        scores["fgsm"] = _of_one(rows["fgsm_correct"])
    return scores, manifest, images


def read_transfer(folder: Path) -> tuple[dict[str, Scores], ManifestRecord, str]:
    """Both models on the images crafted on each: `resnet on vit` is the ResNet on what was crafted on the ViT."""
    rows, manifest, images = _rows(folder)
    names, labels = ("resnet", "vit"), np.asarray(rows["label"])
    clean, crafted = np.asarray(rows["clean_predictions"]), np.asarray(rows["predictions"])
    scores = {f"{name} clean": _of_one(clean[:, at] == labels) for at, name in enumerate(names)}
    for source, crafted_on in enumerate(names):
        for target, name in enumerate(names):
            scores[f"{name} on {crafted_on}"] = _of_one(crafted[:, source, target] == labels)
    return scores, manifest, images


def read_attack(folder: Path) -> tuple[dict[str, Scores], ManifestRecord, str]:
    """An evaluation with attacks: clean and robust."""
    (test,) = {path.parents[2] for path in folder.glob("**/rows.parquet")}
    rows, manifest, images = _rows(test)
    return {"clean": _of_one(rows["clean_correct"]), "robust": _of_one(rows["robust"])}, manifest, images


def read_heads(folder: Path) -> tuple[dict[str, Scores], ManifestRecord, str]:
    """As `read_attack`, for every head that was evaluated."""
    scores: dict[str, Scores] = {}
    for head in (name for name in ("joint", "acc", "rob") if (folder / name).exists()):
        own, manifest, images = read_attack(folder / head)
        scores |= {f"{head} {name}": one for name, one in own.items()}
    return scores, manifest, images


def _variants(folder: Path, table: str) -> tuple[NDArray[np.int64], ManifestRecord, str]:
    """[N, V]: what a study with changed layers wrote; the study sorts its variants."""
    run = Run.open(folder)
    columns = ResultFolder(folder / "study").read(table)
    images = str(run.manifest.find("data", "splits", "test", "sha256"))[:16]
    return np.asarray(columns["correct"], np.int64), run.manifest, images


def read_lesions(folder: Path, layers: int = 12) -> tuple[dict[str, Scores], ManifestRecord, str]:
    """Intact, and without each block, attention or MLP but the first; `any` is their sum."""
    kinds = {"block": 1, "attention": 2, "MLP": 3}
    changed = {
        (kind, at): tuple(change if place == at else 0 for place in range(layers))
        for kind, change in kinds.items()
        for at in range(layers)
    }
    correct, manifest, images = _variants(folder, "lesions")
    column = {one: place for place, one in enumerate(sorted({(0,) * layers, *changed.values()}))}
    scores = {"intact": _of_one(correct[:, 0])}
    for kind in kinds:
        each = {at: correct[:, column[changed[kind, at]]] for at in range(1, layers)}
        worst = min(each, key=lambda at, each=each: int(each[at].sum()))  # type: ignore[misc]
        scores[f"without one {kind}"] = Scores(np.sum(list(each.values()), axis=0), layers - 1)
        scores[f"without the worst {kind}"] = _of_one(each[worst])
    return scores, manifest, images


def read_random_lesions(folder: Path, layers: int = 12) -> tuple[dict[str, Scores], ManifestRecord, str]:
    """Without 2 or 4 random attentions or MLPs, the same draws for both."""
    correct, manifest, images = _variants(folder, "lesions")
    result = json.loads((folder / "study" / "result.json").read_text())
    numbers, change = {f"blocks.{at}": at for at in range(layers)}, {"attention": 2, "mlp": 3}

    def variant(kind: str, removed: Sequence[str]) -> tuple[int, ...]:
        places = {numbers[name] for name in removed}
        return tuple(change[kind] if at in places else 0 for at in range(layers))

    drawn = {
        (one["kind"], one["removed"]): [variant(one["kind"], draw) for draw in one["layers"]]
        for one in result["random"]
    }
    single = {variant(one["kind"], [one["layer"]]) for one in result["single"]}
    known = {(0,) * layers, *single, *(draw for draws in drawn.values() for draw in draws)}
    column = {one: place for place, one in enumerate(sorted(known))}
    scores = {
        f"without {removed} {kind}, draw {number}": _of_one(correct[:, column[draw]])
        for (kind, removed), draws in drawn.items()
        for number, draw in enumerate(draws)
    }
    return {"intact": _of_one(correct[:, 0]), **scores}, manifest, images


def read_attention(folder: Path, layers: int = 12) -> tuple[dict[str, Scores], ManifestRecord, str]:
    """Attention limited to near patches or to as many random ones, and to the class token in three blocks."""
    first_mask = 4
    names = [f"{group} {distance}" for group in ("near", "random") for distance in (1, 2, 3)]
    changed = {name: (first_mask + place,) * layers for place, name in enumerate(names)}
    alone, blocks = first_mask + len(names), 3
    changed["class token, first 3"] = (alone,) * blocks + (0,) * (layers - blocks)
    changed["class token, last 3"] = (0,) * (layers - blocks) + (alone,) * blocks
    correct, manifest, images = _variants(folder, "restrictions")
    column = {one: place for place, one in enumerate(sorted({(0,) * layers, *changed.values()}))}
    scores = {name: _of_one(correct[:, column[one]]) for name, one in changed.items()}
    return {"intact": _of_one(correct[:, 0]), **scores}, manifest, images


# ----------------------------------------------------------- measurements


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured once for every arm and seed.

    Args:
        about: In a sentence.
        arms: Commands of `vitadel`, one after another, by the name of the arm. What is in braces is filled in.
        read: What reads the scores from the folder of an arm and seed.
        values: What is filled in, by scale.
        data: The kind of data, `imagenet`, `cue-conflict` or `cifar`.
        seeds: The seeds.
        minutes: An estimate for all on one H200, and at what --at-once.
    """

    about: str
    arms: Mapping[str, tuple[str, ...]]
    read: Read
    values: Mapping[str, Mapping[str, str]]
    data: str
    seeds: tuple[int, ...] = (0,)
    minutes: str = "1"

    @property
    def has_reduced_scale(self) -> bool:
        """Whether the reduced scale is not the full one."""
        return self.values.get("reduced", self.values["full"]) != self.values["full"]


_VIT = "timm:vit_tiny_patch16_224@{weights}/vit_tiny_patch16_224.safetensors"
_RESNET = "timm:resnet18@{weights}/resnet18.safetensors"


def _suite(suite: str, **models: str) -> dict[str, tuple[str, ...]]:
    """A suite on the same images for each model."""
    return {
        name: (f"evaluate {model} --data {{data}}{{images}} --suite {suite} --run {{run}} --json",)
        for name, model in models.items()
    }


def _sizes(full: str, reduced: str, **settings: tuple[str, str]) -> dict[str, dict[str, str]]:
    """Images, and settings where the reduced scale has others."""
    return {
        scale: {"images": images, **{name: pair[place] for name, pair in settings.items()}}
        for place, (scale, images) in enumerate({"full": full, "reduced": reduced}.items())
    }


def _sweep(table: str, axis: str, *settings: str) -> tuple[str, ...]:
    chosen = "".join(f" --set {setting}" for setting in settings)
    return (
        f"sweep {table} --small --data {{data}} --test-data {{test}} --axis {axis} --set seed={{seed}}"
        f"{chosen} {{epochs}} --run {{run}} --json",
    )


def _train(recipe: str, *settings: str) -> str:
    chosen = "".join(f" --set {setting}" for setting in settings)
    return f"train {recipe} --data {{data}} --set seed={{seed}}{chosen} {{epochs}} --run {{run}}/train --json"


_AUTOATTACK = "evaluate {run}/train --data {test} --suite autoattack --threat {threat} --run {run}/test --json"


_ONE_EPOCH = "--set plan.epochs=1 --set plan.warmup_epochs=0"


def _trainings(full: str, smoke: str = _ONE_EPOCH, **values: tuple[str, str]) -> dict[str, dict[str, str]]:
    """On CIFAR-10, and what tries the commands on digits; `full`, `smoke` and `values` are settings."""
    return {
        "full": {"test": "{data}[:1000]", "epochs": full, **{name: pair[0] for name, pair in values.items()}},
        "smoke": {
            "test": "{data}",
            "epochs": smoke,
            **{name: pair[1] for name, pair in values.items()},
        },
    }


def _tora(*settings: str) -> dict[str, tuple[str, ...]]:
    """A method at both lambda: joint output, and both heads of TORA."""
    arms = {}
    for weight in ("0.1", "0.9"):
        heads = {"joint": ""} if settings else {"joint": "", "acc": "#acc", "rob": "#rob"}
        training = _train("{recipe}", "model.start={start}", f"objective.weight={weight}", *settings)
        tests = (
            f"evaluate {{run}}/train{which} --data {{test}} --suite quick --threat {{threat}} --run {{run}}/{head} "
            "--json"
            for head, which in heads.items()
        )
        arms[weight] = (training, *tests)
    return arms


def _named(**methods: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {f"{name} {weight}": commands for name, arms in methods.items() for weight, commands in arms.items()}


_HEAVY = "mixup+cutmix+rand+erase"
# augmentation with PIL costs 16 cores a millisecond an image: this length fits ten minutes
_SHORT = "--set plan.epochs=16 --set plan.warmup_epochs=1.5"
_ON_GPU = "--set plan.attack_model=true"  # AAS-AT cannot be compiled, and both arms are alike

MEASUREMENTS: Mapping[str, Measurement] = {
    "imagenet-lesions": Measurement(
        "ViT-Tiny on ImageNet without each block, attention and MLP",
        {"vit": (f"analyze lesion:draws=0 {_VIT} --data {{data}}{{images}} --run {{run}} --json",)},
        read_lesions,
        _sizes("", "[:300]"),
        "imagenet",
    ),
    "imagenet-lesions-random": Measurement(
        "ViT-Tiny on ImageNet without 2 and 4 random attentions or MLPs",
        {
            "vit": (
                f"analyze lesion:kinds=attention+mlp,blocks=1,draws={{draws}},removed=2+4 {_VIT} "
                "--data {data}{images} --run {run} --json",
            )
        },
        read_random_lesions,
        _sizes("", "[:150]", draws=("25", "10")),
        "imagenet",
    ),
    "imagenet-attention": Measurement(
        "ViT-Tiny on ImageNet with restricted attention",
        {
            "vit": (
                f"analyze restricted-attention:distances=1+2+3,ends=3 {_VIT} --data {{data}}{{images}} --run {{run}} "
                "--json",
            )
        },
        read_attention,
        _sizes("", "[:300]"),
        "imagenet",
    ),
    "imagenet-gray-level": Measurement(
        "ViT-Tiny and ResNet-18 on ImageNet, attacked within one gray level",
        _suite("gray-level", vit=_VIT, resnet=_RESNET),
        read_suite,
        _sizes("", "[:150]"),
        "imagenet",
    ),
    "imagenet-transfer": Measurement(
        "PGD-8 within one gray level, crafted on ViT-Tiny and ResNet-18, evaluated on both",
        {
            "both": (
                f"evaluate {_RESNET} --data {{data}}{{images}} --suite transfer:sources={_VIT} --threat linf:1/255 "
                "--run {run} --json",
            )
        },
        read_transfer,
        _sizes("", "[:120]"),
        "imagenet",
    ),
    "imagenet-shape": Measurement(
        "ViT-Tiny and ResNet-18 on the cue-conflict stimuli",
        _suite("shape-bias", vit=_VIT, resnet=_RESNET),
        read_suite,
        _sizes("", ""),
        "cue-conflict",
    ),
    "imagenet-corruptions": Measurement(
        "ViT-Tiny and ResNet-18 on ImageNet under fifteen corruptions",
        _suite("corruptions:{severities}extra=false", vit=_VIT, resnet=_RESNET),
        read_suite,
        _sizes("", "[:100]", severities=("", "severities=3,")),
        "imagenet",
        minutes="2",
    ),
    "imagenet-spatial": Measurement(
        "ViT-Tiny and ResNet-18 on ImageNet under the worst rotation and translation",
        _suite("spatial{grid}", vit=_VIT, resnet=_RESNET),
        read_suite,
        _sizes("", "[:60]", grid=("", ":rotations=7,translations=5,grid_images=16")),
        "imagenet",
        minutes="4",
    ),
    "light-recipe": Measurement(
        "XCiT-Nano/4, adversarially trained for 16 epochs at 4/255",
        {
            "heavy, no warm-up": _sweep("debenedetti2022-table2", "eps-warmup-epochs=0"),
            "heavy": _sweep("debenedetti2022-table2", "eps-warmup-epochs=20"),
            "light": _sweep("debenedetti2022-table4", "weight-decay=0.05"),
            "light, weight decay 0.5": _sweep("debenedetti2022-table4", "weight-decay=0.5"),
        },
        read_attack,
        _trainings(_SHORT),
        "cifar",
        SEEDS,
        "10, with --at-once 4",
    ),
    "architectures": Measurement(
        "DeiT-Tiny/4, CaiT-XXS-12/4 and XCiT-Tiny-12/4, adversarially trained for 16 epochs at 4/255",
        {
            name: _sweep("debenedetti2022-table1", f"architecture={label}")
            for name, label in {"DeiT": "deit-s", "CaiT": "cait-s12", "XCiT": "xcit-s12"}.items()
        },
        read_attack,
        _trainings(_SHORT),
        "cifar",
        SEEDS,
        "10, with --at-once 4",
    ),
    "attention-scaling-training": Measurement(
        "ViT-Tiny/4, adversarially trained at 8/255 for as many passes with AAS-AT (18 epochs) and without (20)",
        {
            "adversarial": (_train("{plain}", "{plain_epochs}"), _AUTOATTACK),
            "AAS-AT": (_train("{scaled}", "{scaled_epochs}", "{period}"), _AUTOATTACK),
        },
        read_attack,
        _trainings(
            _ON_GPU,
            "--set plan.warmup_epochs=0",
            plain=("cifar10-vit-tiny-short", "digits-adversarial"),
            scaled=("cifar10-aas-short", "digits-aas"),
            plain_epochs=("plan.epochs=20", "plan.epochs=1"),
            scaled_epochs=("plan.epochs=18", "plan.epochs=3"),
            period=("objective.period=5", "objective.period=1"),
            threat=("linf:8/255", "linf:24/255"),
        ),
        "cifar",
        SEEDS,
        "8, with --at-once 3",
    ),
    "optimizers": Measurement(
        "ViT-Tiny/4, TRADES for 10 epochs at 8/255",
        {
            name: _sweep("wu2025-table5-vit", f"optimizer={label}")
            for name, label in {"SGD": "sgd", "Lion": "lion"}.items()
        },
        read_attack,
        _trainings("--set plan.epochs=10"),
        "cifar",
        SEEDS,
        "8, with --at-once 3",
    ),
    "tora": Measurement(
        "adapters beside one frozen ViT, trained for 8 epochs at 4/255",
        _named(
            TORA=_tora(),
            AdapterFusion=_tora("model.tuning.gate=per-token"),
            single=_tora("model.tuning.tuning=single", "objective.independent=0"),
        ),
        read_heads,
        _trainings(
            "--set plan.epochs=8", recipe=("cifar10-tora-short", "digits-tora"), threat=("linf:4/255", "linf:24/255")
        ),
        "cifar",
        SEEDS,
        "15, with --at-once 8",
    ),
}

# ------------------------------------------------------------------ records


@dataclass(frozen=True, slots=True)
class ArmRecord:
    """A line of the records: one arm with one seed."""

    measurement: str
    arm: str
    seed: int
    scale: str
    n: int
    images: str
    scores: Mapping[str, Scores]
    line: Mapping[str, Any]

    def chosen(self, name: str) -> list[Scores]:
        """The scores of this name; all that begin so if it ends in `*`."""
        if not name.endswith("*"):
            return [self.scores[name]]
        return [one for own, one in self.scores.items() if own.startswith(name[:-1])]

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.measurement, self.arm, self.seed, self.scale

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "ArmRecord":
        scores = {name: Scores.from_json(one, line["n"]) for name, one in line["scores"].items()}
        keys = ("measurement", "arm", "seed", "scale", "n", "images")
        return cls(**{name: line[name] for name in keys}, scores=scores, line=line)


def lines_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    """All lines, each with the name of its file."""
    return [{**json.loads(line), "file": file.name} for file in files for line in file.read_text().splitlines()]


@dataclass(frozen=True, slots=True)
class Records:
    """All records: those of `run`, and earlier ones by other commands."""

    arms: Sequence[ArmRecord]
    earlier: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> "Records":
        lines = list(lines)
        own = [ArmRecord.from_json(line) for line in lines if line.get("benchmark") == "evidence"]
        return cls(own, [line for line in lines if line.get("benchmark") != "evidence"])

    @classmethod
    def load(cls) -> "Records":
        return cls.of(lines_of(sorted(RESULTS.glob("*.jsonl"))))

    def arm(self, measurement: str, arm: str) -> list[ArmRecord]:
        """One record for each seed: all of the full scale if there are any; the latest of a seed."""
        found = [one for one in self.arms if (one.measurement, one.arm) == (measurement, arm)]
        for scale in ("full", "reduced"):
            if by_seed := {one.seed: one for one in found if one.scale == scale}:
                return [by_seed[seed] for seed in sorted(by_seed)]
        return []

    def scale(self, measurement: str) -> str:
        """The scale of the records of a measurement that are shown; `full` if there are none."""
        shown = {one.scale for arm in MEASUREMENTS[measurement].arms for one in self.arm(measurement, arm)}
        return "reduced" if shown == {"reduced"} else "full"

    def find(self, keys: Mapping[str, object]) -> Mapping[str, Any] | None:
        """The latest earlier record with these values."""
        found = [line for line in self.earlier if all(line.get(name) == value for name, value in keys.items())]
        return found[-1] if found else None
