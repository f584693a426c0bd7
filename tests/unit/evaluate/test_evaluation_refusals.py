"""Models that fail half-way are refused in one sentence, and earlier results are kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from evaluations import evaluate, evaluate_one  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel import data, models, robustness
from vitadel.attacks import APGD, FAB, FGSM, PGD, AutoAttack, Engine, Square
from vitadel.core.distributed import Ranks, best_device
from vitadel.core.errors import UsageError
from vitadel.data import DataSet, Squash
from vitadel.evaluate import (
    SUITES,
    AttackRunner,
    AttackSuite,
    Context,
    NamedAttack,
    check_class_count,
    check_writable_names,
)
from vitadel.evaluate.attack_runner import fill_attack_table, record_clean_predictions
from vitadel.evaluate.images import skipped_flags
from vitadel.evaluate.suites import GrayLevel
from vitadel.goals import least_likely
from vitadel.losses import dlr, kl_divergence, margin
from vitadel.runs import Run
from vitadel.threats import Linf

IMAGES = 40
ENTRIES = {
    "fgsm": NamedAttack("bad", FGSM()),
    "pgd": NamedAttack("bad", PGD(steps=3)),
    "last": NamedAttack("bad", PGD(steps=3, keep_best=False)),
    "apgd": NamedAttack("bad", APGD(steps=3), dlr),
    "apgd-t": NamedAttack("bad", APGD(steps=3, targets=4)),
    "fab": NamedAttack("bad", FAB(steps=3)),
    "fab-t": NamedAttack("bad", FAB(steps=3, targets=4)),
    "square": NamedAttack("bad", Square(queries=5), margin),
}


class FailsUnderAttack(nn.Module):
    """A linear model that returns `wrong` as soon as it gets an image it has not seen clean."""

    def __init__(self, wrong: Callable[[Tensor], Tensor], clean: Tensor) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(10, 192, generator=generator) / 14)
        self.wrong, self.armed = wrong, False
        self.means = clean.flatten(1).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        z_BK = x.flatten(1) @ self.weight.T
        if not self.armed:
            return z_BK
        known_B = ((x.detach().flatten(1).mean(1)[:, None] - self.means).abs() < 1e-7).any(1)
        return z_BK if bool(known_B.all()) else self.wrong(z_BK)


@pytest.fixture(scope="module")
def dataset() -> DataSet:
    loaded = data.load(f"digits[:{IMAGES}]", preprocess=Squash(8))
    x = loaded.test.images(torch.arange(IMAGES))
    labels = FailsUnderAttack(lambda z: z, x)(x).argmax(1)
    return replace(loaded, test=replace(loaded.test, labels=labels))


def claim(folder: Path) -> Run:
    return Run.claim(folder, "evaluate", {"seed": 0}, device="cpu")


WRONG: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "nan": (lambda z: z * torch.nan, "NaN or infinite"),
    "one nan": (lambda z: torch.cat([z[:, :-1], z[:, -1:] * torch.nan], 1), "NaN or infinite"),
    "infinity": (lambda z: z / 0.0, "NaN or infinite"),
    "one image less": (lambda z: z[1:], r"should return logits of shape \[\d+, classes\], got"),
    "one row": (lambda z: z.sum(0, keepdim=True)[:, :10].expand(1 + len(z), 10), r"should return logits of shape"),
    "flat": (lambda z: z.amax(1), r"should return logits of shape \[\d+, classes\], got \[\d+\]"),
    "fewer classes": (lambda z: z[:, :1], r"label \d is out of range: the model returns 1 classes"),
}


@pytest.mark.parametrize(
    ("fault", "attack"),
    [
        *((fault, "pgd") for fault in WRONG),
        *((fault, attack) for attack in ENTRIES if attack != "pgd" for fault in ("one nan", "one image less")),
    ],
)
def test_a_fault_under_attack_is_named_and_results_are_kept(
    dataset: DataSet, tmp_path: Path, fault: str, attack: str
) -> None:
    wrong, message = WRONG[fault]
    model = FailsUnderAttack(wrong, dataset.test.images(torch.arange(IMAGES)))
    suite = AttackSuite("s", "", (NamedAttack("first", PGD(steps=2), margin), ENTRIES[attack]))

    def arm(what: str, done: int, total: int, numbers: object) -> None:
        # the first attack is done: from now on the model fails
        model.armed = what.endswith("first") and done == IMAGES

    run = claim(tmp_path / "run")
    with pytest.raises(UsageError, match=message) as raised:
        evaluate(model, dataset, suite, run, threat=Linf(0.01), batch=16, notify=arm)
    assert "\n" not in str(raised.value)
    rows = run.results("s-linf-0.01")
    assert not rows.finished
    first = rows.read("first")
    assert rows.read("clean")["index"] == first["index"] == list(range(IMAGES))
    assert 0 < sum(map(bool, first["success"])) < IMAGES
    # repaired, the same call resumes
    model.armed = False
    (summary,) = evaluate(model, dataset, suite, run, threat=Linf(0.01), batch=16)
    seconds = [costs[0] for costs in rows.rows()["seconds"]]
    assert seconds == first["seconds"]
    assert summary["n"] == IMAGES


@pytest.mark.parametrize("attack", ["pgd", "square", "fgsm"])
def test_results_of_the_same_attack_before_the_fault_are_kept(dataset: DataSet, tmp_path: Path, attack: str) -> None:
    model = FailsUnderAttack(lambda z: z * torch.nan, dataset.test.images(torch.arange(IMAGES)))
    counted = 0

    def arm(what: str, done: int, total: int, numbers: object) -> None:
        nonlocal counted
        if what.endswith("bad"):
            counted, model.armed = done, done >= 9

    run = claim(tmp_path / "run")
    with pytest.raises(UsageError, match="NaN or infinite"):
        evaluate(model, dataset, AttackSuite("s", "", (ENTRIES[attack],)), run, threat=Linf(1e-4), batch=5, notify=arm)
    assert 10 <= counted < IMAGES
    assert len(run.results("s-linf-0.0001").read("bad")["index"]) == counted


def test_labels_beyond_the_classes_are_refused(dataset: DataSet, tmp_path: Path) -> None:
    x = dataset.test.images(torch.arange(IMAGES))
    for shift, message in (
        (6, r"for 40 images, the data has labels from \d to 1\d"),
        (-9, "labels from -"),
    ):
        labels = dataset.test.labels + shift
        other = replace(dataset, test=replace(dataset.test, labels=labels))
        with pytest.raises(UsageError, match=message):
            evaluate(
                FailsUnderAttack(lambda z: z, x),
                other,
                AttackSuite("s", "", (ENTRIES["pgd"],)),
                claim(tmp_path / str(shift)),
                threat=Linf(0.1),
            )


def test_nan_on_clean_images_is_counted_per_batch(dataset: DataSet, tmp_path: Path) -> None:
    class NanForSomeBatch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = x.flatten(1)[:, :10].clone()
            if len(x) == 8:  # the last batch of 40 in parts of 16
                z[2:5] = torch.nan
            return z

    run = claim(tmp_path / "run")
    with pytest.raises(UsageError, match="NaN or infinite logits for 3 of 8 images"):
        evaluate(NanForSomeBatch(), dataset, AttackSuite("s", "", (ENTRIES["pgd"],)), run, threat=Linf(0.1), batch=16)
    assert run.results("s-linf-0.1").read("clean")["index"] == list(range(32))


def test_a_model_left_in_training_mode_is_evaluated_in_evaluation_mode(dataset: DataSet, tmp_path: Path) -> None:
    x = dataset.test.images(torch.arange(IMAGES))

    def made() -> nn.Sequential:
        torch.manual_seed(2)
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 10), nn.BatchNorm1d(10))

    training, evaluating = made().train(), made().eval()
    with torch.no_grad():
        labels = evaluating(x).argmax(1)
    own = replace(dataset, test=replace(dataset.test, labels=labels))
    tables = []
    suite = AttackSuite("s", "", (NamedAttack("fgsm", FGSM()), NamedAttack("pgd", PGD(steps=3), margin)))
    for name, model in (("t", training), ("e", evaluating)):
        run = claim(tmp_path / name)
        (summary,) = evaluate(model, own, suite, run, threat=Linf(0.01))
        assert summary["clean"]["correct"] == IMAGES
        assert summary["flags"] == []
        tables.append(run.results("s-linf-0.01").rows())
    for column in ("clean_prediction", "prediction", "broken_by", "distance"):
        assert tables[0][column] == tables[1][column]
    assert all(module.training for module in training.modules())
    assert not any(module.training for module in evaluating.modules())
    statistics = training[3]
    assert isinstance(statistics, nn.BatchNorm1d)
    assert statistics.num_batches_tracked == torch.tensor(0)


def test_attacks_that_would_share_a_table_are_refused(dataset: DataSet, tmp_path: Path) -> None:
    """A table records what was tried, so the second of two attacks of one name would never run."""
    x = dataset.test.images(torch.arange(IMAGES))
    same = (NamedAttack("pgd", PGD(steps=1)), NamedAttack("pgd", PGD(steps=50), margin))
    inside = (NamedAttack("apgd-ce", APGD(steps=1)), NamedAttack("aa", AutoAttack()))
    for entries, name in ((same, "pgd"), (inside, "apgd-ce"), ((NamedAttack("clean", FGSM()),), "clean")):
        with pytest.raises(UsageError, match=f"needs its own name, got '{name}'"):
            evaluate(
                FailsUnderAttack(lambda z: z, x),
                dataset,
                AttackSuite("s", "", entries),
                claim(tmp_path / name),
                threat=Linf(0.1),
            )


def test_more_processes_than_images_are_allowed(dataset: DataSet) -> None:
    model = FailsUnderAttack(lambda z: z, dataset.test.images(torch.arange(IMAGES)))
    entries = (ENTRIES["pgd"], ENTRIES["fgsm"])
    idle = Context(model, dataset.test, threat=Linf(0.1), ranks=Ranks(50, 60))
    assert record_clean_predictions(idle, entries) == []
    assert [fill_attack_table(AttackRunner(idle, Engine()), attack, []) for attack in entries] == [[], []]
    shares = [Ranks(rank, 7).local_part(list(range(IMAGES))) for rank in range(7)]
    assert sorted(row for share in shares for row in share) == list(range(IMAGES))
    assert {len(share) for share in shares} == {IMAGES // 7, IMAGES // 7 + 1}


def test_results_of_the_first_process_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    waited: list[int] = []

    def broadcast(objects: list[object]) -> None:
        sent.append(objects[0])
        objects[0] = "made by the first"

    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: waited.append(1))
    assert Ranks().broadcast_from_first(lambda: "alone") == "alone"
    Ranks().barrier()
    assert (sent, waited) == ([], [])
    for rank in range(2):
        assert Ranks(rank, 2).broadcast_from_first(lambda: "made here") == "made by the first"
        Ranks(rank, 2).barrier()
    assert (sent, waited) == (["made here", None], [1, 1])


def test_models_with_more_classes_than_the_data_are_refused(tmp_path: Path) -> None:
    digits = data.load("digits[:4]", preprocess=Squash(16))
    run = Run.claim(tmp_path / "run", "evaluate", {"seed": 0}, device="cpu")
    model = models.load("timm:test_vit", num_classes=20, image_size=16, patch_size=4)
    message = r"has 20 output classes and digits\[:4\] has 10.* with 10 classes, or"
    with pytest.raises(UsageError, match=message):
        evaluate(model, digits, SUITES["clean"], run)
    with pytest.raises(UsageError, match=message):
        evaluate_one(model, digits, GrayLevel(), run)


def test_the_kept_head_has_its_own_classes() -> None:
    digits = data.load("digits[:4]", preprocess=Squash(16))
    base = models.load("timm:test_vit", num_classes=20, image_size=16, patch_size=4)
    tuned = models.tora(base, num_classes=10)
    check_class_count(tuned, digits)
    with pytest.raises(UsageError, match="has 20 output classes"):
        check_class_count(models.with_head(tuned, "kept"), digits)


def test_the_kl_divergence_takes_no_target() -> None:
    with pytest.raises(UsageError, match="leads away from the clean prediction and has no target. Leave one out"):
        NamedAttack("kl", PGD(steps=1), kl_divergence, least_likely)
    assert NamedAttack("kl", PGD(steps=1), kl_divergence).target is None
    assert NamedAttack("ce", PGD(steps=1), target=least_likely).target is least_likely
    assert NamedAttack("ce", PGD(steps=1)).target is None


@pytest.mark.parametrize(("count", "end"), [(1, "a0"), (5, "a0; a1; a2; a3; a4"), (6, "a0; a1; a2; a3; a4; ...")])
def test_five_skipped_images_are_named_and_more_are_counted(count: int, end: str) -> None:
    images = SimpleNamespace(skipped=[f"a{number}" for number in range(count)])
    (flag,) = skipped_flags(images)
    assert flag.code == "images-skipped"
    assert flag.sentence == f"{count} images were skipped on request: {end}"
    assert flag.evidence == {"images": count}
    assert skipped_flags(SimpleNamespace(skipped=())) == skipped_flags(object()) == []


def test_processes_are_spread_over_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert best_device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert best_device() == torch.device("cuda", 0)
    for rank, device in (("3", 3), ("4", 0), ("6", 2)):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert best_device() == torch.device("cuda", device)


def test_models_and_images_without_values_are_refused() -> None:
    with torch.device("meta"):
        whole = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    partly = nn.Sequential(nn.Flatten(), nn.Linear(192, 192), nn.Linear(192, 10).to("meta"))
    x, y = torch.rand(4, 3, 8, 8), torch.arange(4)
    for model in (whole, partly):
        with pytest.raises(UsageError, match="the weights of the model are on the meta device and have no values"):
            robustness(model, x, y)
    real = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    for images, labels, what in ((x.to("meta"), y, "images"), (x, y.to("meta"), "labels")):
        with pytest.raises(UsageError, match=f"the {what} are on the meta device and have no values"):
            robustness(real, images, labels)


def test_names_that_are_not_utf8_are_refused_before_any_attack(dataset: DataSet, tmp_path: Path) -> None:
    """A file name of other bytes reaches Python with a half of a surrogate pair for each of them."""
    ids = ("caf\udce9/1.png", *dataset.test.ids[1:])
    images = replace(dataset, test=replace(dataset.test, ids=ids))
    classes = replace(dataset, classes=("caf\udce9", *dataset.classes[1:]))
    check_writable_names(dataset, "test")
    run = Run.claim(tmp_path / "run", "evaluate", {}, device="cpu")
    model = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2)
    for odd, message in ((images, r"the image 'caf\\udce9/1\.png'"), (classes, r"the class 'caf\\udce9'")):
        for carry_out in (
            lambda data: evaluate(model, data, SUITES["clean"], run),
            lambda data: evaluate_one(model, data, GrayLevel(), run),
            lambda data: check_writable_names(data, "test"),
        ):
            with pytest.raises(UsageError, match=rf"{message}.* has a name that is not UTF-8, .* Rename"):
                carry_out(odd)
    assert not list(run.folder.glob("eval/*"))
