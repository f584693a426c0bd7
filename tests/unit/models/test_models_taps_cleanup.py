"""Taps have no side effects, and raise if they do not fire."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from vitadel.core.errors import UsageError
from vitadel.models import Model, load

Tiny = Callable[..., Model]
Block = Callable[[Model], AbstractContextManager[object]]

VERBS: dict[str, Block] = {
    "read": lambda model: model.taps.read("*"),
    "edit inside": lambda model: model.taps.edit("*.attn.*", lambda a: a * 2),
    "edit outside": lambda model: model.taps.edit("blocks.0.out", lambda a: a * 2),
    "scale": lambda model: model.taps.scale(0.5),
    "mask": lambda model: model.taps.mask(torch.eye(17, dtype=torch.bool)),
    "skip": lambda model: model.taps.skip("blocks.0", "blocks.1.attn"),
}
EVERY_VERB = pytest.mark.parametrize("verb", VERBS)


class InjectedError(Exception):
    """Raised where nothing should catch it."""


def raise_injected_error(*args: object, **kwargs: object) -> Tensor:
    raise InjectedError


def hooks(model: Model) -> int:
    """All hooks of any kind on any module."""
    return sum(
        len(value) for m in model.modules() for key, value in vars(m).items() if "_hooks" in key and value is not None
    )


@pytest.fixture
def unchanged_model(tiny: Tiny, x: Tensor) -> Iterator[Model]:
    """A model that the test must leave unchanged: hooks, modes, and the output bit for bit."""
    model = tiny("vit", fused=True)
    # a hook of the caller's own has to survive
    model.net.get_submodule("blocks.0.attn").register_forward_hook(lambda module, args, out: None)
    before, count, modes = model(x), hooks(model), len(_get_current_function_mode_stack())
    yield model
    assert hooks(model) == count == 1
    assert len(_get_current_function_mode_stack()) == modes == 0
    assert torch.equal(model(x), before)
    with model.taps.read("*") as seen:  # and the taps still work
        torch.testing.assert_close(model(x), before, rtol=1e-12, atol=1e-12)
    assert len(seen) == len(model.taps.names())


@EVERY_VERB
def test_taps_leave_nothing_behind(unchanged_model: Model, x: Tensor, verb: str) -> None:
    before = unchanged_model(x)
    with VERBS[verb](unchanged_model):
        assert hooks(unchanged_model) > 1
        inside = unchanged_model(x)
    assert torch.allclose(inside, before) == (verb == "read")


@EVERY_VERB
def test_taps_leave_nothing_behind_after_an_error_in_the_block(unchanged_model: Model, x: Tensor, verb: str) -> None:
    with pytest.raises(InjectedError), VERBS[verb](unchanged_model):
        raise InjectedError


@EVERY_VERB
@pytest.mark.parametrize("path", ["blocks.0.attn.qkv", "blocks.1.attn.proj", "blocks.1.mlp", "head"])
def test_taps_leave_nothing_behind_after_an_error_in_the_network(
    unchanged_model: Model, x: Tensor, verb: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged_model.net.get_submodule(path), "forward", raise_injected_error)
    with pytest.raises(InjectedError), VERBS[verb](unchanged_model):
        unchanged_model(x)
    monkeypatch.undo()


@pytest.mark.parametrize(
    "name", ["embed", "blocks.1.attn.q", "blocks.0.attn.logits", "blocks.1.attn.probs", "blocks.0.out", "head.in"]
)
def test_taps_leave_nothing_behind_after_an_error_in_an_edit(unchanged_model: Model, x: Tensor, name: str) -> None:
    with (
        pytest.raises(InjectedError),
        unchanged_model.taps.scale(2.0),
        unchanged_model.taps.edit(name, raise_injected_error),
    ):
        unchanged_model(x)


def test_taps_leave_nothing_behind_after_wrong_image_sizes(unchanged_model: Model, x: Tensor) -> None:
    with pytest.raises(UsageError, match="takes 32 x 32"), unchanged_model.taps.read("*"):
        unchanged_model(x[..., :16])


def test_taps_leave_nothing_behind_after_a_wrong_mask_shape(unchanged_model: Model, x: Tensor) -> None:
    with pytest.raises(RuntimeError), unchanged_model.taps.mask(torch.ones(3, 5, dtype=torch.bool)):
        unchanged_model(x)


def test_the_model_works_inside_the_block_after_an_error(unchanged_model: Model, x: Tensor) -> None:
    with unchanged_model.taps.read("*.attn.logits") as seen:
        with pytest.raises(InjectedError), unchanged_model.taps.edit("blocks.1.attn.probs", raise_injected_error):
            unchanged_model(x)
        unchanged_model(x)
    assert len(seen) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_code_outside_attention_is_unchanged(unchanged_model: Model, x: Tensor, fails: bool) -> None:
    logits = torch.arange(9.0).view(3, 3)
    product, probs = logits @ logits, logits.softmax(-1)
    with unchanged_model.taps.scale(0.0), unchanged_model.taps.mask(torch.eye(17)):
        unchanged_model(x)
        if fails:
            with pytest.raises(InjectedError), unchanged_model.taps.edit("blocks.0.attn.v", raise_injected_error):
                unchanged_model(x)
        assert torch.equal(logits @ logits, product)
        assert torch.equal(logits.softmax(-1), probs)


def test_closing_an_inner_block_keeps_the_outer_active(unchanged_model: Model, x: Tensor) -> None:
    taps = unchanged_model.taps
    with taps.scale(0.5):
        alone = unchanged_model(x)
        for verb in VERBS.values():
            with verb(unchanged_model):
                unchanged_model(x)
            assert torch.equal(unchanged_model(x), alone)
    with taps.read("head.in"):  # the outer one needs no mode, the inner one does
        with taps.scale(0.5):
            assert torch.equal(unchanged_model(x), alone)
        unchanged_model(x)


def test_consecutive_blocks_read_the_same(unchanged_model: Model, x: Tensor) -> None:
    seen = []
    for _ in range(2):
        with unchanged_model.taps.read("*") as these:
            unchanged_model(x)
        seen.append(these)
    assert all(torch.equal(seen[0][name], seen[1][name]) for name in unchanged_model.taps.names())


def test_two_models_at_once_do_not_interfere(tiny: Tiny, x: Tensor) -> None:
    one, other = tiny("vit"), tiny("cait")
    with one.taps.scale(0.5):
        alone = one(x)
    plain = other(x)
    with one.taps.scale(0.5), other.taps.read("*.attn.logits") as seen:
        assert torch.equal(one(x), alone)
        torch.testing.assert_close(other(x), plain, rtol=1e-12, atol=1e-12)
    assert len(seen) == 4


@EVERY_VERB
def test_copies_have_their_own_taps(unchanged_model: Model, x: Tensor, verb: str) -> None:
    before = unchanged_model(x)
    twin = copy.deepcopy(unchanged_model)
    with VERBS[verb](unchanged_model):
        expected = unchanged_model(x)
    with VERBS[verb](twin):
        assert torch.equal(unchanged_model(x), before)
        assert torch.equal(twin(x), expected)
    assert torch.equal(twin(x), before)


def test_copying_inside_the_block_is_refused(unchanged_model: Model, x: Tensor) -> None:
    with unchanged_model.taps.scale(0.5):
        unchanged_model(x)
        with pytest.raises(UsageError, match="outside the `with` block"):
            copy.deepcopy(unchanged_model)


# precision, training, no gradient


@pytest.fixture
def small() -> Model:
    return load(
        "timm:test_vit", num_classes=5, image_size=32, patch_size=8, options={"depth": 2, "attn_drop_rate": 0.5}
    )


def test_taps_follow_the_model_to_another_precision(small: Model, x: Tensor) -> None:
    with small.taps.read("*") as single:
        z = small(x.float())
    with small.double().taps.read("*") as double:
        torch.testing.assert_close(small(x).float(), z, rtol=1e-4, atol=1e-5)
    for name in small.taps.names():
        assert single[name].dtype == torch.float32
        assert double[name].dtype == torch.float64
        torch.testing.assert_close(double[name].float(), single[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["vit", "cait", "xcit", "swin", "levit"])
@pytest.mark.parametrize("fused", [True, False])
def test_taps_work_under_autocast(tiny: Tiny, x: Tensor, family: str, fused: bool) -> None:
    model = tiny(family, fused=fused).float()
    images = x.float()
    with model.taps.read("*.logits") as exact:
        z = model(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(images)
        with model.taps.read("*") as seen, model.taps.scale(1.0), model.taps.mask(torch.zeros(1, 1, 1, 1)):
            tapped = model(images)
        with model.taps.scale(torch.ones(len(model.taps.attentions()))):
            scaled = model(images)
    assert plain.dtype == tapped.dtype == scaled.dtype == torch.bfloat16
    for output in (tapped, scaled):
        torch.testing.assert_close(output.float(), z, rtol=0.1, atol=0.1 * z.abs().max().item())
    for name, logits in exact.items():
        atol = 0.1 * logits.abs().max().item()
        torch.testing.assert_close(seen[name].float(), logits, rtol=0.1, atol=atol)


def test_dropout_is_the_same_with_and_without_taps(small: Model, x: Tensor) -> None:
    images = x.float()
    small.train()
    for module in small.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # type: ignore[assignment]
    torch.manual_seed(0)
    bare = small(images)
    for module in small.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = True  # type: ignore[assignment]
    torch.manual_seed(0)
    with small.taps.read("*") as seen:
        tapped = small(images)
    torch.testing.assert_close(tapped, bare)
    # probabilities are read before dropout
    torch.testing.assert_close(seen["blocks.0.attn.probs"].sum(-1), torch.ones(2, 2, 17))
    with small.taps.scale(1.0):
        assert not torch.allclose(small(images), small(images))
    assert not torch.allclose(small.eval()(images), bare)


def test_values_are_the_same_without_gradients(unchanged_model: Model, x: Tensor) -> None:
    with unchanged_model.taps.read("*") as graded:
        unchanged_model(x)
    with torch.no_grad(), unchanged_model.taps.read("*") as seen:
        unchanged_model(x)
    assert all(a.requires_grad for a in graded.values())
    assert not any(a.requires_grad for a in seen.values())
    assert all(torch.equal(seen[name], graded[name]) for name in seen)


# errors


@EVERY_VERB
def test_taps_that_do_not_fire_are_an_error(unchanged_model: Model, verb: str) -> None:
    with (
        pytest.raises(UsageError, match=r"never fired: .*not called inside the `with` block"),
        VERBS[verb](unchanged_model),
    ):
        pass


def test_taps_fire_when_the_network_inside_is_called(unchanged_model: Model, x: Tensor) -> None:
    with unchanged_model.taps.read("blocks.0.out") as seen:
        unchanged_model.net((x - unchanged_model.mean) / unchanged_model.std)
    assert seen["blocks.0.out"].shape == (2, 17, 48)


def test_tap_of_a_block_that_was_bypassed_is_named(
    unchanged_model: Model, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged_model.net.get_submodule("blocks.1"), "forward", lambda tokens, **kwargs: tokens)
    message = r"never fired: blocks\.1\.attn\.logits\. The model was called, but not"
    with pytest.raises(UsageError, match=message), unchanged_model.taps.read("*.logits"):
        unchanged_model(x)
    monkeypatch.undo()


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


OUTSIDE: dict[str, Block] = {
    "read": lambda model: model.taps.read("blocks.0.out"),
    "edit": lambda model: model.taps.edit("head.in", lambda a: a * 0),
    "skip": lambda model: model.taps.skip("blocks.0"),
}


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_compiled_wrapper_refuses_taps(small: Model, x: Tensor) -> None:
    compiled = torch.compile(small, backend="eager")
    compiled(x.float())
    for block in OUTSIDE.values():
        with pytest.raises(UsageError, match=r"never fired: .*compiled.*does not see taps"), block(small):
            compiled(x.float())
    with small.taps.read("blocks.0.out") as seen:  # the model itself still has them
        small(x.float())
    assert len(seen) == 1


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_model_compiled_in_place_refuses_taps(small: Model, x: Tensor) -> None:
    small.compile(backend="eager")
    small(x.float())
    for block in OUTSIDE.values():
        with (
            pytest.raises(UsageError, match="The model is compiled, and compiled code does not see taps"),
            block(small),
        ):
            small(x.float())


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("first", [None, "blocks.0.out"])
def test_a_compiled_model_is_correct_or_refuses(small: Model, x: Tensor, first: str | None) -> None:
    """The compiler recompiles where it detects a mode; then the taps must do what they do uncompiled."""
    images = x.float()
    compiled = torch.compile(small, backend="eager")
    if first is None:
        compiled(images)
    else:  # compiled inside a block, it must not keep the edit
        with small.taps.edit(first, lambda a: a * 0):
            compiled(images)
    for verb in (VERBS["scale"], VERBS["mask"], VERBS["edit inside"]):
        with verb(small):
            expected = small(images)
        try:
            with verb(small):
                got = compiled(images)
        except UsageError as error:
            assert "does not see taps" in str(error)  # noqa: PT017
        else:
            torch.testing.assert_close(got, expected)
    torch.testing.assert_close(compiled(images), small(images))


@pytest.mark.parametrize("family", ["vit", "cait", "xcit", "swin", "levit"])
def test_gradient_checkpointing_is_refused(tiny: Tiny, x: Tensor, family: str) -> None:
    """The backward pass runs the blocks once more, after the `with` block: its gradients would be wrong."""
    model = tiny(family)
    model.net.set_grad_checkpointing(True)  # type: ignore[operator]
    with pytest.raises(UsageError, match=r"model\.net\.set_grad_checkpointing\(False\)"), model.taps.scale(0.5):
        model(x)
    with torch.no_grad(), model.taps.read("head.in") as seen:  # nothing is run again
        model(x)
    assert len(seen) == 1


def test_unknown_names_are_refused_with_the_known_ones(tiny: Tiny) -> None:
    taps = tiny("vit").taps
    for use in (lambda: taps.read("block.0.out"), lambda: taps.edit("block.0.out", raise_injected_error)):
        with (
            pytest.raises(UsageError, match=r"no tap matches 'block\.0\.out'\. This model has 18: embed, blocks\.0"),
            use(),
        ):
            pass
    for use in (lambda: taps.skip("blocks.2"), lambda: taps.skip("blocks.0", "blocks.2")):
        with pytest.raises(UsageError, match=r"no part to skip matches 'blocks\.2'\. This model has 6"), use():
            pass
    masks = {"class_blocks.*": torch.ones(1)}
    with pytest.raises(UsageError, match=r"no attention matches 'class_blocks\.\*'"), taps.mask(masks):
        pass


@pytest.mark.parametrize("factors", [[1.0], [1.0, 1.0, 1.0], torch.ones(1), []])
def test_wrong_number_of_factors_is_refused(tiny: Tiny, factors: list[float] | Tensor) -> None:
    with (
        pytest.raises(UsageError, match=f"2 attention layers, got {len(factors)} factors"),
        tiny("vit").taps.scale(factors),
    ):
        pass


def test_convolutional_networks_have_no_attention(x: Tensor) -> None:
    model = load("timm:test_resnet", num_classes=5, image_size=32)
    assert model.taps.names() == ["head.in"]
    for use in (lambda: model.taps.scale(0.5), lambda: model.taps.mask(torch.ones(1))):
        with pytest.raises(UsageError, match="ResNet has no attention Vitadel supports"), use():
            pass
    for pattern in ("blocks.*", "embed"):
        with (
            pytest.raises(UsageError, match=f"no tap matches '{pattern}'".replace("*", r"\*")),
            model.taps.read(pattern),
        ):
            pass
    with pytest.raises(UsageError, match="its family has no blocks Vitadel supports"), model.taps.skip("blocks.0"):
        pass
    with model.taps.read("head.in") as seen:
        z = model(x.float())
    assert torch.equal(model.net.get_classifier()(seen["head.in"]), z)  # type: ignore[operator]


def test_blocks_with_several_attentions_are_refused() -> None:
    model = load("timm:vit_small_patch16_18x2_224", image_size=32, patch_size=16, options={"depth": 1, "embed_dim": 48})
    with pytest.raises(UsageError, match="has no attention Vitadel supports"), model.taps.scale(0.5):
        pass
