"""Models with known faults, each with the flag it must raise and its evidence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad as gradient_of

from vitadel import robustness
from vitadel.api.results import Robustness
from vitadel.attacks import APGD, FAB, FGSM, PGD, Attack, AutoAttack, Engine, Square
from vitadel.attacks.engine.precision import search_model
from vitadel.core.flags import Flag
from vitadel.evaluate import AttackRunner, AttackSuite, Context, NamedAttack, TensorImages, sanity_flags
from vitadel.losses import cross_entropy, dlr, margin
from vitadel.runs import ResultFolder
from vitadel.runs.schema import AttackRecord
from vitadel.threats import Linf

IMAGES = 24


class Planes(nn.Module):
    """Logits that are linear in the pixels, so that every distance to another class is known."""

    def __init__(self, classes: int = 5, scale: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(scale * torch.randn(classes, 108, generator=generator) / 108**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).sub(0.5) @ self.weight.T


class Altered(nn.Module):
    """Planes with a change of the pixels before and of the logits after."""

    def __init__(
        self,
        before: Callable[[Tensor], Tensor] = lambda x: x,
        after: Callable[[Tensor], Tensor] = lambda z: z,
        classes: int = 5,
    ) -> None:
        super().__init__()
        self.planes = Planes(classes)
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.planes(self.before(x)))


def images(classes: int = 5) -> tuple[Tensor, Tensor]:
    """Images inside the box with some margin, and the labels that the planes give."""
    x = 0.25 + 0.5 * torch.rand(IMAGES, 3, 6, 6, generator=torch.Generator().manual_seed(4))
    x = (x * 255).round() / 255
    with torch.no_grad():
        return x, Planes(classes)(x).argmax(1)


def radii(x: Tensor, label_B: Tensor, classes: int = 5) -> Tensor:
    """[B] the Linf distance to the nearest other class, far from the edge of the box."""
    weight = Planes(classes).weight.detach()
    z_BK = x.flatten(1).sub(0.5) @ weight.T
    gap_BK = z_BK.gather(1, label_B[:, None]) - z_BK
    length_BK = (weight[label_B][:, None] - weight[None]).abs().sum(2)
    return (gap_BK / length_BK.clamp_min(1e-12)).scatter(1, label_B[:, None], torch.inf).amin(1)


def codes(flags: "list[Flag] | tuple[Flag, ...]") -> list[str]:
    return [flag.code for flag in flags]


def by_code(result: Robustness) -> dict[str, list[Flag]]:
    """The flags of an evaluation by their code."""
    flags: dict[str, list[Flag]] = {}
    for flag in result.flags:
        flags.setdefault(flag.code, []).append(flag)
    return flags


def costs(result: Robustness) -> dict[str, AttackRecord]:
    return {attack.name: attack for attack in result.attacks}


def choose(model: nn.Module, engine: Engine) -> AttackRunner:
    """How the attacks of GRADIENTS compute a model."""
    x, y = images()
    return AttackRunner.choose(Context(model, TensorImages(x, y), threat=Linf(0.01), engine=engine), GRADIENTS)


GRADIENTS = (
    NamedAttack("fgsm", FGSM()),
    NamedAttack("pgd", PGD(steps=4)),
    NamedAttack("apgd-t", APGD(steps=5, targets=3)),
    NamedAttack("fab-t", FAB(steps=3, targets=2)),
)
BLIND = NamedAttack("square", Square(queries=40), margin)


# ------------------------------------------------------------------- healthy


def test_a_sound_model_raises_no_flags_and_is_broken_at_its_radius() -> None:
    x, y = images()
    eps = float(radii(x, y).median())
    result = robustness(Planes(), x, y, Linf(eps), (NamedAttack("pgd", PGD(steps=20), margin), *GRADIENTS[2:], BLIND))
    assert list(result.flags) == []
    # a linear model is done after one step along the sign
    near = [float(radius) < eps * 0.999 for radius in radii(x, y)]
    sure = [abs(float(radius) / eps - 1) > 1e-3 for radius in radii(x, y)]
    assert sum(sure) >= IMAGES - 2
    assert [to != "" for to, known in zip(result.broken_by, sure, strict=True) if known] == [
        one for one, known in zip(near, sure, strict=True) if known
    ]


# ------------------------------------------------------------ zero gradients


@pytest.mark.parametrize("interval", [1, 4, 16])
@pytest.mark.parametrize("fault", ["quantized", "detached"])
def test_zero_gradients_are_counted_per_attack(fault: str, interval: int) -> None:
    model = Altered(before=lambda x: (x * 255).round() / 255 if fault == "quantized" else x.detach())
    x, y = images()
    # items that idle between two synchronizations have gradients too, and they do not count
    result = robustness(
        model, x, y, Linf(2 / 255), (*GRADIENTS, BLIND), engine=Engine(batch_size=10, sync_interval=interval)
    )
    flags = by_code(result)
    assert set(flags) <= {"zero-gradients", "square-stronger"}
    # every gradient of every attack that uses gradients, which the square attack does not
    assert [flag.evidence for flag in flags["zero-gradients"]] == [
        {"zero": costs(result)[entry.name].backwards, "gradients": costs(result)[entry.name].backwards}
        for entry in GRADIENTS
    ]
    assert [flag.sentence.partition(":")[0] for flag in flags["zero-gradients"]] == [e.name for e in GRADIENTS]
    assert costs(result)["fgsm"].backwards == IMAGES


def test_the_share_of_zero_gradient_images_is_exact() -> None:
    x, y = images()
    eighth = set(range(0, IMAGES, 8))
    marks = x[sorted(eighth), 0, 0, 0]

    def some(x: Tensor) -> Tensor:
        marked = (x[:, 0, 0, 0, None] == marks).any(1)[:, None, None, None]
        return torch.where(marked, x.detach(), x)

    result = robustness(Altered(before=some), x, y, Linf(1e-7), GRADIENTS[:1])
    assert result.robust.correct == IMAGES
    assert [flag.evidence for flag in by_code(result)["zero-gradients"]] == [{"zero": len(eighth), "gradients": IMAGES}]


def test_a_saturated_softmax_breaks_cross_entropy_but_not_dlr() -> None:
    """exp(-t) is 0 in float32 for t > 104: with logits that far apart, cross-entropy is 0 with gradient 0."""
    x, y = images()
    scale = 2.0**20  # a power of two changes no digit of any logit
    steep = Altered(after=lambda z: scale * z)
    gap = (steep(x).topk(2, dim=1).values @ torch.tensor([1.0, -1.0])).min()
    assert float(gap.detach()) > 104
    eps = float(radii(x, y).min()) / 2  # no image is broken or comes near the end of saturation
    for loss in (cross_entropy, dlr, margin):
        entry = NamedAttack("apgd", APGD(steps=10), loss)
        result, plain = (robustness(model, x, y, Linf(eps), [entry]) for model in (steep, Altered()))
        assert result.robust.correct == IMAGES
        assert list(plain.flags) == []
        backwards = costs(result)["apgd"].backwards
        assert backwards == IMAGES * 11
        if loss is cross_entropy:
            evidence = [flag.evidence for flag in by_code(result)["zero-gradients"]]
            assert evidence == [{"zero": backwards, "gradients": backwards}]
        else:
            assert list(result.flags) == []
            assert torch.equal(result.x_adv, plain.x_adv)
    # at twice the radius of the nearest image DLR finds it, cross-entropy only what its random start meets
    eps = float(radii(x, y).median()) * 1.01
    felled = [
        sum(to == "a" for to in robustness(steep, x, y, Linf(eps), [NamedAttack("a", APGD(steps=10), loss)]).broken_by)
        for loss in (dlr, cross_entropy)
    ]
    assert felled[0] >= IMAGES // 2
    assert felled[1] < IMAGES // 4


@pytest.mark.parametrize(
    "attack",
    [APGD(steps=10), APGD(steps=10, eot_samples=20), FAB(steps=5), PGD(steps=4)],
    ids=["apgd", "apgd-20-samples", "fab", "pgd"],
)
def test_the_share_of_detached_gradients_is_exact(attack: Attack) -> None:
    """However many backward passes an attack makes a step: one image in four is cut off, and so are its gradients."""
    x, _ = images()
    x[:, 0, 0, 0], x[::4, 0, 0, 0] = 0.0, 1.0
    y = Planes()(x).argmax(1)
    cut = Altered(before=lambda x: torch.where(x[:, :1, :1, :1] > 0.5, x.detach(), x))
    result = robustness(cut, x, y, Linf(1e-5), [NamedAttack("one", attack, margin)])
    assert result.robust.correct == IMAGES
    cost = costs(result)["one"]
    assert cost.zero_gradients * 4 == cost.backwards


def test_a_loss_that_is_flat_after_success_raises_no_flag() -> None:
    """DLR is 1 wherever the label comes third: attacks on randomized models continue there and get no gradient."""
    x, y = images()

    def noisy(z: Tensor) -> Tensor:
        return z + 0.01 * torch.randn_like(z)

    entries = [NamedAttack("apgd", APGD(steps=20, eot_samples=5), dlr)]
    result = robustness(Altered(after=noisy), x, y, Linf(4 * float(radii(x, y).max())), entries)
    assert result.robust.correct == 0
    assert set(by_code(result)) == {"randomized"}


# ------------------------------------------------------------- probabilities


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_probabilities_are_detected_in_every_precision(dtype: torch.dtype) -> None:
    x, _ = images()
    flags = sanity_flags(Altered(after=lambda z: z.to(dtype).softmax(1)), x)
    assert codes(flags) == ["probabilities"]
    assert 0 <= flags[0].evidence["largest_distance_of_sum_from_1"] < 4e-3
    # log-probabilities, positive logits and logits that happen to sum to one are not probabilities
    for fine in (
        lambda z: z.log_softmax(1),
        lambda z: z.exp(),
        lambda z: torch.cat([z[:, 1:], 1 - z[:, 1:].sum(1, keepdim=True)], 1),
    ):
        assert codes(sanity_flags(Altered(after=fine), x)) == []


# ---------------------------------------------------------------- randomness


@pytest.mark.parametrize("engine", [Engine(precision="fp16"), Engine(compile=True), Engine(precision="bf16")])
def test_a_randomized_model_is_flagged_and_evaluated(engine: Engine) -> None:
    model = Altered(after=lambda z: z + 0.01 * torch.randn(z.shape).to(z))
    x, y = images()
    search = choose(model, engine)
    assert codes(search.ctx.flags()) == ["randomized"]
    assert search.ctx.flags()[0].evidence == {"changed": IMAGES, "images": IMAGES}
    assert search.copy is None
    assert (search.engine.precision, search.engine.compile, search.engine.cuda_graph) == ("float32", False, False)
    deterministic = choose(Altered(), Engine(precision="fp16"))
    assert deterministic.ctx.flags() == []
    assert deterministic.copy is not None
    result = robustness(model, x, y, Linf(1e-6), GRADIENTS[:2], engine=engine)
    assert [flag.code for flag in result.flags] == ["randomized"]


def test_noise_far_below_the_logits_raises_no_flag() -> None:
    x, _ = images()
    assert codes(sanity_flags(Altered(after=lambda z: z * (1 + 1e-7 * torch.randn(z.shape))), x)) == []


# -------------------------------------------------------------- gradient path


def _purified(way: str) -> Callable[[Tensor], Tensor]:
    """Two small steps on the pixels at test time, each with a backward pass obtained in another way."""

    def purify(x: Tensor) -> Tensor:
        with torch.enable_grad():
            for _ in range(2):
                inner = x.detach().clone().requires_grad_()
                energy = inner.square().sum()
                if way == "torch.autograd.grad":
                    (step,) = torch.autograd.grad(energy, inner)
                elif way == "renamed":
                    (step,) = gradient_of(energy, inner)
                else:
                    energy.backward()
                    assert inner.grad is not None
                    step = inner.grad
                x = x - 1e-3 * step.detach()
        return x

    return purify


@pytest.mark.parametrize("way", ["torch.autograd.grad", "renamed", "backward"])
def test_backward_passes_inside_the_forward_pass_are_counted(way: str) -> None:
    x, y = images()
    flags = sanity_flags(Altered(before=_purified(way)), x)
    assert codes(flags) == ["gradient-path"]
    assert flags[0].evidence == {"backward_passes": 2}
    result = robustness(Altered(before=_purified(way)), x, y, Linf(1e-6), GRADIENTS[:1])
    assert [flag.evidence for flag in by_code(result)["gradient-path"]] == [{"backward_passes": 2}]
    # nothing of torch is left replaced
    assert torch.autograd._engine_run_backward.__name__ == "_engine_run_backward"  # type: ignore[attr-defined]


class _Times(torch.autograd.Function):
    """The same pixels forward; the gradient times a factor backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * grads[0], None


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: _Times.apply(x, factor)


@pytest.mark.parametrize(("factor", "error"), [(-1.0, 2.0), (3.0, 2 / 3), (0.5, 1.0), (-0.1, 11.0)])
def test_a_wrong_backward_pass_is_flagged_with_its_error(factor: float, error: float) -> None:
    """Along its own direction the derivative is sign(f) |w|, the backward pass |f| |w|: off by |sign(f) / |f| - 1|."""
    x, _ = images()
    flags = sanity_flags(Altered(before=_times(factor)), x)
    assert codes(flags) == ["gradient-path"]
    assert flags[0].evidence["images"] == IMAGES
    assert flags[0].evidence["median_relative_error"] == pytest.approx(error, rel=1e-3)


def test_a_gradient_error_of_a_third_is_attributed_to_curvature() -> None:
    x, _ = images()
    assert codes(sanity_flags(Altered(before=_times(1.5)), x)) == []


def _rippled(x: Tensor) -> Tensor:
    """True gradients that change sign well within the longest step and hardly at all within the shortest."""
    pitch = 4 * x[0].numel() ** 0.5 / 0.02
    return x + 5 / pitch * torch.sin(pitch * x)


def test_curved_logits_are_accepted_where_a_shorter_step_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = images()
    model = Altered(before=_rippled).double()
    assert codes(sanity_flags(model, x.double())) == []
    monkeypatch.setattr("vitadel.evaluate.sanity_checks.CHECKED_STEPS", (0.02,))
    assert codes(sanity_flags(model, x.double())) == ["gradient-path"]


# ------------------------------------------------------------ square stronger


def test_square_is_flagged_as_stronger_where_gradients_mislead() -> None:
    x, y = images()
    eps = float(radii(x, y).median()) * 1.5
    entries = (
        NamedAttack("pgd", PGD(steps=10, random_start=False)),
        NamedAttack("square", Square(queries=200), margin),
    )
    result = robustness(Altered(before=_times(-1.0)), x, y, Linf(eps), entries)
    # the gradient has the wrong sign: it breaks no image
    assert costs(result)["pgd"].broken == 0
    broken = costs(result)["square"].broken
    assert broken > IMAGES // 4
    assert [flag.evidence for flag in by_code(result)["square-stronger"]] == [{"images": broken, "of": IMAGES}]
    assert set(by_code(result)) == {"gradient-path", "square-stronger"}
    unmasked = robustness(Altered(), x, y, Linf(eps), entries)
    assert list(unmasked.flags) == []
    alone = robustness(Altered(before=_times(-1.0)), x, y, Linf(eps), entries[::-1])
    assert "square-stronger" not in by_code(alone)  # it came first, so nothing had been left


# ---------------------------------------------------------------- few classes


@pytest.mark.parametrize(("classes", "expected"), [(2, 3), (3, 3), (4, 2), (9, 2), (10, 0)])
def test_autoattack_completes_with_few_classes(classes: int, expected: int) -> None:
    x, y = images(classes)
    eps = float(radii(x, y, classes).max()) * 1.05
    result = robustness(Altered(classes=classes), x[:4], y[:4], Linf(eps), [NamedAttack("aa", AutoAttack())])
    assert result.robust.correct == 0
    flags = by_code(result)
    assert set(flags) == ({"few-classes"} if expected else set())
    raised = [(flag.sentence.partition(":")[0], flag.evidence) for flag in flags.get("few-classes", [])]
    fewer = {"classes": classes, "targets": classes - 1}
    # APGD-T and FAB-T have fewer targets; below four classes APGD-T maximizes the logit difference, not its ratio
    expected_flags = [("apgd-t", {"classes": classes, "needed": 4}), ("apgd-t", fewer), ("fab-t", fewer)]
    assert [one for one in expected_flags if one in raised] == expected_flags[3 - expected :]
    assert len(raised) == expected
    # and with a robust image, every stage: each other class is a target, and there are no more
    stages = [NamedAttack("apgd-dlr", APGD(steps=4), dlr), NamedAttack("apgd-t", APGD(steps=4, targets=9))]
    stages += [NamedAttack("fab-t", FAB(steps=4, targets=9)), NamedAttack("fab", FAB(steps=4)), BLIND]
    robust_costs = costs(robustness(Altered(classes=classes), x[:4], y[:4], Linf(1e-7), stages))
    top_other_classes = min(9, classes - 1)
    assert {name: (cost.tried, cost.broken) for name, cost in robust_costs.items()} == dict.fromkeys(
        robust_costs, (4, 0)
    )
    assert robust_costs["apgd-dlr"].backwards == 4 * 5
    assert robust_costs["apgd-t"].backwards == robust_costs["fab-t"].backwards == 4 * 5 * top_other_classes
    assert robust_costs["fab"].backwards == 4 * 5 * (classes - 1)


def test_dlr_with_two_classes_is_the_margin() -> None:
    x, y = images(2)
    eps = float(radii(x, y, 2).median())
    one, other = (
        robustness(Altered(classes=2), x, y, Linf(eps), [NamedAttack("apgd", APGD(steps=10), loss)])
        for loss in (dlr, margin)
    )
    assert [flag.evidence for flag in one.flags] == [{"classes": 2, "needed": 3}]
    assert list(other.flags) == []
    assert torch.equal(one.x_adv, other.x_adv)
    assert one.broken_by == other.broken_by


# ------------------------------------------------- searches that cannot be had


def _two_ways(model: nn.Module, engine: Engine) -> tuple[Robustness, Robustness]:
    x, y = images()
    eps = float(radii(x, y).median()) * 1.01
    entries = (NamedAttack("pgd", PGD(steps=10), margin), NamedAttack("square", Square(queries=30), margin))
    return robustness(model, x, y, Linf(eps), entries), robustness(model, x, y, Linf(eps), entries, engine=engine)


def same_results(one: Robustness, other: Robustness) -> None:
    assert one.broken_by == other.broken_by
    assert one.prediction == other.prediction
    assert one.distance == other.distance
    assert torch.equal(one.x_adv, other.x_adv)
    assert 0 < one.robust.correct < IMAGES


def test_logits_beyond_the_range_of_half_precision() -> None:
    steep = Altered(after=lambda z: 1e6 * z)
    plain, half = _two_ways(steep, Engine(precision="fp16"))
    assert [flag.code for flag in half.flags] == ["search-fallback"]
    assert "could not run as fp16: logits beyond the range" in str(half.flags[0].sentence)
    assert list(plain.flags) == []
    x, _ = images()
    result, precision, _ = search_model(steep, x, "fp16")
    assert precision == "bf16"  # which has the range
    assert result(x).dtype == torch.bfloat16
    assert choose(steep, Engine(precision="fp16")).precision == "bf16"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_a_search_that_does_not_fit_is_not_tried_in_wider_precision(error: type[RuntimeError]) -> None:
    def full(z: Tensor) -> Tensor:
        if z.dtype == torch.bfloat16:
            raise error("DefaultCPUAllocator: can't allocate memory")
        return z

    x, _ = images()
    with pytest.raises(error, match="can't allocate memory"):
        search_model(Altered(after=full), x, "bf16")


def test_a_model_that_cannot_be_cast_is_searched_in_float32() -> None:
    fixed = torch.eye(5)

    def strict(z: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return z @ fixed

    plain, half = _two_ways(Altered(after=strict), Engine(precision="fp16"))
    assert [flag.code for flag in half.flags] == ["search-fallback", "search-fallback"]
    for flag, precision in zip(half.flags, ("fp16", "bf16"), strict=True):
        assert f"could not run as {precision}: expected m" in flag.sentence
    same_results(plain, half)


def test_overflow_during_the_search_falls_back_to_bf16() -> None:
    """Nothing overflows on clean images: the search overflows later, and continues in a wider precision."""
    x, y = images()

    eps = float(radii(x, y).median()) * 1.01
    entries = (NamedAttack("pgd", PGD(steps=10), margin), NamedAttack("apgd", APGD(steps=5), dlr))
    plain = robustness(Beyond(), x, y, Linf(eps), entries)
    half = robustness(Beyond(), x, y, Linf(eps), entries, engine=Engine(precision="fp16"))
    assert [flag.code for flag in half.flags] == ["search-fallback"]
    assert half.flags[0].sentence == "the search met numbers beyond the range of fp16 and continued in bf16"
    near = [abs(float(radius) / eps - 1) < 0.05 for radius in radii(x, y)]
    for one, other, close in zip(plain.broken_by, half.broken_by, near, strict=True):
        assert close or one == other


class Beyond(Altered):
    """Finite on clean images; a million times larger where a pixel left the range they come from."""

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        far = ((x - 0.5).abs().flatten(1).amax(1) > 0.255)[:, None]
        return torch.where(far, z * 1e6, z)


def test_flags_are_kept_across_an_interruption(tmp_path: Path) -> None:
    """The first attack falls back and the second does not run any more: resumed, the flag is still there, once."""
    x, y = images()
    entries = (NamedAttack("pgd", PGD(steps=10), margin), NamedAttack("square", Square(queries=3), margin))
    store = ResultFolder(tmp_path / "results")

    def flags_of(precision: str, attacks: tuple[NamedAttack, ...]) -> list[Flag]:
        engine = Engine(precision=precision)
        ctx = Context(Beyond(), TensorImages(x, y), threat=Linf(0.05), engine=engine, store=store)
        AttackSuite("own", "", attacks).run(ctx)
        return ctx.flags()

    before = flags_of("fp16", entries[:1])
    assert "search-fallback" in codes(before)
    assert flags_of("float32", entries) == before
    assert len(store.read("pgd")["index"]) == IMAGES


def test_a_model_that_cannot_be_compiled_is_searched_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no compiler here\nand a long story")

    monkeypatch.setattr(torch, "compile", refuse)
    plain, other = _two_ways(Altered(), Engine(compile=True))
    assert [flag.sentence for flag in other.flags] == [
        "the search could not run as float32, compiled: no compiler here"
    ]
    assert other.flags[0].code == "search-fallback"
    same_results(plain, other)
    x, y = images()
    half = robustness(Altered(), x, y, Linf(0.01), GRADIENTS[:1], engine=Engine(compile=True, precision="fp16"))
    assert [flag.sentence for flag in half.flags] == ["the search could not run as fp16, compiled: no compiler here"]
    steep = Altered(after=lambda z: 1e6 * z)
    attacks = [NamedAttack("pgd", PGD(steps=2), margin)]
    both = robustness(steep, x, y, Linf(0.01), attacks, engine=Engine(compile=True, precision="fp16"))
    assert {flag.sentence.partition(":")[0] for flag in both.flags} == {
        "the search could not run as fp16, compiled",
        "the search could not run as fp16",
    }


def test_the_search_queries_the_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replacement of the compiler, so that it is known which model searched and which verified."""
    batch_sizes = []

    def fake_compile(model: nn.Module, **kwargs: object) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            batch_sizes.append(len(x))
            logits: Tensor = model(x)
            return logits

        return run

    monkeypatch.setattr(torch, "compile", fake_compile)
    plain, other = _two_ways(Altered(), Engine(compile=True))
    assert list(other.flags) == []
    same_results(plain, other)
    # three tries on the first images and three on three rows, then every forward of the search; successes are judged
    # by the model itself
    forwards = sum(attack.forwards for attack in other.attacks)
    judged = sum(attack.broken + attack.rejected for attack in other.attacks)
    assert sum(batch_sizes) == 2 * (IMAGES + 3) + forwards - judged


def test_updated_batch_statistics_are_flagged_and_restored() -> None:
    class TORAFamily(Planes):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            self.norm.train()
            return super().forward(self.norm(x))

    x = torch.rand(IMAGES, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    model = TORAFamily().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert [flag.code for flag in sanity_flags(model, x)] == ["stateful"]
    result = robustness(model, x, torch.zeros(IMAGES, dtype=torch.int64), Linf(0.01), [NamedAttack("fgsm", FGSM())])
    (flag,) = result.flags
    assert flag.code == "stateful"
    assert "BatchNorm2d.running_mean, BatchNorm2d.running_var, BatchNorm2d.num_batches_tracked" in flag.sentence
    assert flag.evidence == {"buffers": 3}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert not model.norm.training


@pytest.mark.parametrize(
    ("outputs", "flagged"),
    [
        ((0.5, 0.5), True),
        ((0.0, 1.0), True),
        ((0.6, 0.403), True),  # half precision rounds by as much
        ((0.6, 0.397), True),
        ((0.6, 0.405), False),
        ((0.6, 0.395), False),
        ((1.5, -0.5), False),
    ],
)
def test_outputs_that_sum_to_one_and_are_not_negative_are_probabilities(
    outputs: tuple[float, float], flagged: bool
) -> None:
    model = Altered(after=lambda z: z[:, :2] * 0 + torch.tensor(outputs))
    flags = sanity_flags(model, torch.rand(3, 3, 6, 6))
    assert ("probabilities" in [flag.code for flag in flags]) == flagged


@pytest.mark.parametrize(("change", "flagged"), [(0.5e-4, False), (2e-4, True)])
def test_logits_that_change_by_a_ten_thousandth_are_random(change: float, flagged: bool) -> None:
    calls: list[float] = []

    def grown(z: Tensor) -> Tensor:
        calls.append(1 + change * len(calls))
        return z * calls[-1]

    flags = [flag for flag in sanity_flags(Altered(after=grown), torch.rand(4, 3, 6, 6)) if flag.code == "randomized"]
    assert [flag.evidence for flag in flags] == [{"changed": 4, "images": 4}] * flagged
