"""The search for attention factors: distances, gradients, starts, what is kept, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vitadel.attacks import PGD, SCALINGS, Factors, Scaling
from vitadel.attacks.attention_scaling.attack import find_attack_factors
from vitadel.attacks.attention_scaling.factor_search import FactorSearch, maximize_factors
from vitadel.attacks.attention_scaling.rescaled_model import RescaledModel, require_taps
from vitadel.core.errors import UsageError
from vitadel.losses import cross_entropy, margin
from vitadel.models import Model, load
from vitadel.threats import Linf

FAMILIES = {
    "vit": ("timm:vit_tiny_patch16_224", 8, {"depth": 2, "embed_dim": 24, "num_heads": 2}),
    "deit": ("timm:deit_tiny_distilled_patch16_224", 8, {"depth": 2, "embed_dim": 24, "num_heads": 2}),
    "cait": ("timm:cait_xxs24_224", 8, {"depth": 2, "embed_dim": 24, "num_heads": 2}),
    "xcit": ("timm:xcit_nano_12_p16_224", 8, {"depth": 2, "embed_dim": 24, "num_heads": 2}),
    "swin": ("timm:swin_tiny_patch4_window7_224", 4, {"embed_dim": 24, "window_size": 4}),
    "levit": ("timm:levit_128s", 8, {"stem_type": "s8", "num_heads": 2}),
}


def network(name: str = "vit") -> Model:
    arch, patch, options = FAMILIES[name]
    model = load(arch, num_classes=5, image_size=32, patch_size=patch, options=options)  # type: ignore[arg-type]
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():  # initial networks attend almost uniformly, and layer scale nearly disables their branches
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=rng))
    return model.eval()


def images(count: int = 6) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    return x, torch.arange(count) % 5


def features(model: Model, x: Tensor, factors: list[float]) -> list[Tensor]:
    with model.taps.scale(factors), model.taps.read("blocks.*.out") as seen:
        model(x)
    return [seen[name].flatten(1) for name in ("blocks.0.out", "blocks.1.out")]


def unit_distance(model: Model, x: Tensor, factors: list[float]) -> Tensor:
    pairs = zip(features(model, x, factors), features(model, x, [1.0, 1.0]), strict=True)
    apart = [(a / a.norm(dim=1, keepdim=True) - b / b.norm(dim=1, keepdim=True)).norm(dim=1) for a, b in pairs]
    return sum(apart).mean()


def literal_distance(model: Model, x: Tensor, factors: list[float]) -> Tensor:
    pairs = zip(features(model, x, factors), features(model, x, [1.0, 1.0]), strict=True)
    return sum((a - b).norm(dim=1) / (a.norm(dim=1) * b.norm(dim=1)) for a, b in pairs).mean()


@pytest.mark.parametrize(("distance", "by_hand"), [("unit", unit_distance), ("literal", literal_distance)])
def test_distances_match_the_formula(distance: str, by_hand: object) -> None:
    model, (x, y) = network().double(), images()
    scaling = replace(Scaling.manual(0.3, 2.0), distance=distance)
    result = maximize_factors(model, x.double(), y, scaling)
    for one, factor in zip(result.tried, (0.3, 2.0), strict=True):
        assert one.attentions == (factor, factor)
        assert one.objective == pytest.approx(float(by_hand(model, x.double(), [factor] * 2).detach()), rel=1e-9)  # type: ignore[operator]


@pytest.mark.parametrize("loss", ["cross-entropy", "margin", "gama"])
def test_other_losses_match_the_logits(loss: str) -> None:
    model, (x, y) = network().double(), images()
    (one,) = maximize_factors(model, x.double(), y, replace(Scaling.manual(0.25), loss=loss)).tried
    with model.taps.scale(0.25):
        z_BK = model(x.double())
    p_BK, clean_BK = z_BK.softmax(1), model(x.double()).softmax(1)
    guided = (margin(p_BK, y) + 50 * (p_BK - clean_BK).square().sum(1)).mean()
    expected = {"cross-entropy": cross_entropy(z_BK, y).mean(), "margin": margin(z_BK, y).mean(), "gama": guided}
    assert one.objective == pytest.approx(expected[loss].item(), rel=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("space", ["log", "linear"])
def test_gradients_agree_with_finite_differences(name: str, space: str) -> None:
    model, (x, y) = network(name).double(), images(2)
    start = "decades" if space == "log" else "normal"
    search = FactorSearch(require_taps(model), Scaling(space=space, start=start), x.double(), y, seed=0)
    count, batch = search.count, (x.double(), y)
    reference = search.reference(torch.ones(count, dtype=torch.float64), x.double())
    u_M = torch.linspace(-1.0, -0.2, count).double() if space == "log" else torch.linspace(0.2, 0.8, count).double()
    grad_M = search.gradient(u_M, batch, reference)
    # with only one token to attend to, factors change nothing
    moved = (grad_M.abs() > 1e-6).nonzero().flatten().tolist()
    assert len(moved) >= 2
    for i in {*moved[:2], moved[-1], count - 1}:
        step = 1e-5 * torch.eye(count)[i].double()
        with torch.no_grad():
            up, down = (
                float(search.objective(search.factors_at(u), batch, reference)) for u in (u_M + step, u_M - step)
            )
        assert float(grad_M[i]) == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-8)


def test_a_search_in_magnitudes_is_in_powers_of_ten() -> None:
    model, (x, y) = network().double(), images(2)
    search = FactorSearch(require_taps(model), Scaling(space="log", start="decades"), x.double(), y, seed=0)
    u_M = torch.tensor([-2.0, 0.0]).double()
    torch.testing.assert_close(search.factors_at(u_M), torch.tensor([0.01, 1.0]).double())


def test_steps_increase_the_objective_and_stay_in_range() -> None:
    model, (x, y) = network(), images()
    result = maximize_factors(model, x, y, replace(Scaling.paper(), batches=4, batch_size=6, steps=20, step_size=0.05))
    assert all(1e-7 <= factor <= 1 for one in result.tried for factor in one.attentions)
    search = FactorSearch(require_taps(model), replace(Scaling(), steps=20, step_size=0.05, batch_size=6), x, y, seed=0)
    decade, start, end = search.maximize(0, torch.ones(2, dtype=torch.float64))
    assert end.objective is not None
    assert start.objective is not None
    assert end.objective > start.objective
    assert decade.attentions[0] == decade.attentions[1] == pytest.approx(10 ** (-7 / 24))


def test_clamping_stops_gradients_unless_straight_through() -> None:
    model, (x, y) = network().double(), images(2)
    moved = {}
    for through in (True, False):
        scaling = replace(Scaling.paper(), through_clamp=through)
        search = FactorSearch(require_taps(model), scaling, x.double(), y, seed=0)
        beyond = search.clamped(torch.tensor([1.5, 0.5]).double()) if through else torch.tensor([1.5, 0.5]).double()
        reference = search.reference(torch.tensor([0.5, 0.5]).double(), x.double())
        moved[through] = search.gradient(beyond, (x.double(), y), reference)
    assert moved[False][0] == 0
    assert moved[True][0] != 0
    torch.testing.assert_close(moved[True][1], moved[False][1])


def test_a_start_differs_from_the_reference() -> None:
    model, (x, y) = network(), images(2)
    search = FactorSearch(require_taps(model), Scaling.paper(), x, y, seed=0)
    ones = torch.ones(2, dtype=torch.float64)
    starts = torch.stack([search.start(number, ones) for number in range(200)])
    assert (starts != 1).any(1).all()
    assert (starts == 1).any()  # about half of the noise is above
    assert starts.min() == 1e-7
    assert starts.max() == 1


def test_the_drifting_reference_is_the_result_of_the_last_batch() -> None:
    model, (x, y) = network(), images(4)
    scaling = replace(Scaling.literal(), batches=2, batch_size=2, logits=False)
    first, second = maximize_factors(model, x, y, scaling).tried
    search = FactorSearch(require_taps(model), scaling, x, y, seed=0)
    again = search.maximize(1, torch.tensor(first.attentions, dtype=torch.float64))[-1]
    assert second == again
    assert second != search.maximize(1, torch.ones(2, dtype=torch.float64))[-1]


@pytest.mark.parametrize(("keep", "expected"), [("last", 2), ("distance", 1), ("broken", 0)])
def test_the_kept_candidate(keep: str, expected: int) -> None:
    model, (x, y) = network(), images()
    worth = {0.5: 5, 1e-3: 1, 0.9: 3}

    def trial(factors: Factors) -> tuple[int, int]:
        return worth[factors.attentions[0]], 6

    result = maximize_factors(model, x, y, replace(Scaling.manual(*worth), keep=keep), trial=trial)
    assert [one.broken for one in result.tried] == [5, 1, 3]
    assert result.best == result.tried[expected]
    assert result.best.num_images == 6


def test_of_two_equally_successful_the_smaller_is_kept() -> None:
    model, (x, y) = network(), images()
    result = maximize_factors(model, x, y, Scaling.manual(1e-3, 0.9, 0.5), trial=lambda factors: (4, 6))
    assert result.best.attentions == (0.9, 0.9)


def test_without_a_trial_the_distance_decides() -> None:
    model, (x, y) = network(), images()
    result = maximize_factors(model, x, y, Scaling.manual(0.9, 1e-3, 0.5))
    assert result.best == result.tried[1]


def test_only_the_first_blocks_are_scaled() -> None:
    model, (x, y) = network(), images()
    result = maximize_factors(model, x, y, Scaling(blocks=1, batches=2, batch_size=3, steps=2))
    assert all(one.attentions[0] < 1 and one.attentions[1] == 1 for one in result.tried)
    more = maximize_factors(model, x, y, Scaling(blocks=9, batches=1, batch_size=3, steps=2))
    assert all(len(one.attentions) == 2 for one in more.tried)


def test_the_extra_factor_multiplies_the_logits() -> None:
    model, (x, y) = network(), images()
    result = maximize_factors(model, x, y, replace(Scaling.literal(), batches=3, batch_size=2))
    assert all(one.logits != 1 or one.attentions != (1, 1) for one in result.tried)
    with model.taps.scale((0.5, 0.25)):
        expected = 3 * model(x)
    torch.testing.assert_close(RescaledModel(model, (0.5, 0.25), 3.0)(x), expected)


def test_the_same_seed_gives_the_same_factors() -> None:
    model, (x, y) = network().train(), images()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    first, second = (maximize_factors(model, x, y, Scaling(batches=2, batch_size=3, steps=3), seed=5) for _ in range(2))
    assert first.tried == second.tried
    assert first.tried != maximize_factors(model, x, y, Scaling(batches=2, batch_size=3, steps=3), seed=6).tried
    assert model.training
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_passes_are_counted() -> None:
    model, (x, y) = network(), images()
    result = maximize_factors(model, x, y, Scaling(batches=2, batch_size=3, steps=4))
    # per batch: the reference, the decade, the start and the end, and the steps
    assert (result.forwards, result.backwards) == (2 * 3 * (4 + 4), 2 * 3 * 4)


def test_passes_of_trials_are_counted() -> None:
    model, (x, _) = network(), images()
    scaling = replace(Scaling.manual(0.5, 0.1), trial_attack=PGD(steps=3))
    result = find_attack_factors(model, x, model(x).argmax(1), Linf(1e-6), scaling)  # where no image is broken
    measured = 2 * (6 + 6)  # per candidate a reference and a value
    tried = 2 * 6 * (2 * 4 + 1)  # four points, each shown to both models, and the judgment
    assert (result.forwards, result.backwards) == (measured + tried + 6, 2 * 6 * 4)


def test_candidates_of_a_threat_search_are_tried_on_the_unscaled_model() -> None:
    model, (x, _) = network(), images()
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 5  # misclassified before any attack, so no attack breaks it
    result = find_attack_factors(model, x, y, Linf(8 / 255), Scaling.manual(0.5, 1e-3))
    assert all(one.num_images == 5 and one.broken is not None and 0 <= one.broken <= 5 for one in result.tried)


def test_a_model_in_training_mode_is_searched_in_evaluation_mode() -> None:
    """LeViT's BatchNorm would update its statistics, and refuse a single image."""
    model, (x, y) = network("levit").train(), images(1)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    find_attack_factors(
        model, x, y, Linf(8 / 255), Scaling(batches=1, batch_size=1, trial_images=1, steps=1, trial_attack=PGD(steps=1))
    )
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.training


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :5]


def test_models_without_scalable_attention_are_refused() -> None:
    x, y = images(2)
    with pytest.raises(UsageError, match="this Plain has none. Load it with vitadel.models.load"):
        maximize_factors(Plain(), x, y, Scaling())
    with pytest.raises(UsageError, match=r"factor of its logits is chosen by an attack, .* Call find_attack_factors"):
        maximize_factors(load("timm:resnet18", num_classes=5, image_size=32), x, y, Scaling())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype: torch.dtype) -> None:
    x, y = images(2)
    with pytest.raises(UsageError, match=r"has torch.b?float16 weights. Call model.float\(\) first"):
        maximize_factors(network().to(dtype), x, y, Scaling())


def test_compiled_models_without_taps_are_refused() -> None:
    model, (x, y) = network(), images(2)
    with pytest.raises(UsageError, match="compiled code does not see them. Give the model itself"):
        maximize_factors(torch.compile(model, backend="eager"), x, y, Scaling())
    model.net.compile(backend="eager")  # in place: the class of the model is still its own
    with pytest.raises(UsageError, match="compiled code does not see them. Give the model itself"):
        maximize_factors(model, x, y, Scaling())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "lpips"}, "loss"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"blocks": 0}, "blocks must be at least 1"),
        ({"low": 1.0}, "0 < low < high"),
        ({"grid": (0.1, 0.0)}, r"Scaling.grid\[1\] must be positive, got 0.0"),
        ({"space": "linear"}, "is log-spaced"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Scaling(**settings)  # type: ignore[arg-type]


def test_presets_match_the_table() -> None:
    literal, paper = SCALINGS["aas-literal"](), SCALINGS["aas-paper"]()
    assert (literal.distance, literal.reference, literal.keep) == ("literal", "drifting", "last")
    assert (literal.through_clamp, literal.logits, literal.space) == (False, True, "linear")
    assert (paper.distance, paper.reference, paper.keep, paper.start) == ("unit", "original", "distance", "normal")
    assert all((one.steps, one.step_size, one.low, one.high) == (10, 1.0, 1e-7, 1.0) for one in (literal, paper))
    assert math.isclose(min(SCALINGS["manual"]().grid), 1e-5)
    assert max(SCALINGS["manual"]().grid) == 10
