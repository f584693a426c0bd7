"""Loading: architectures, checkpoints, run folders, the zoo; weights that are kept and new."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.models import (
    RAW_PIXELS,
    AdapterConfig,
    Model,
    ModelSpec,
    Normalization,
    family_of,
    load,
    loading,
    read_tensors,
    save,
    weights_sha256,
    wrap,
    write_tensors,
)
from vitadel.models.loading import training_run_of
from vitadel.models.spec import SPEC_KEY
from vitadel.runs import Run

Tiny = Callable[..., Model]
HALF = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def small(name: str = "timm:test_vit", *, classes: int = 5, seed: int = 0) -> Model:
    return load(name, num_classes=classes, image_size=32, patch_size=8, options={"depth": 2}, seed=seed)


def weights(model: Model) -> str:
    return weights_sha256(model.net.state_dict())


# architectures


def test_requested_sizes_are_used() -> None:
    model = load("timm:test_vit", num_classes=7, image_size=24, patch_size=6)
    assert model.spec == ModelSpec("timm:test_vit", 7, 24, 6, model.normalization)
    assert not model.training
    with model.taps.read("embed") as seen:
        assert model(torch.rand(3, 3, 24, 24)).shape == (3, 7)
    assert seen["embed"].shape == (3, 1 + 16, 64)


@pytest.mark.parametrize(
    ("name", "classes", "size", "patch", "family"),
    [
        ("timm:test_vit", 1000, 160, 16, "vit"),
        ("timm:deit_tiny_distilled_patch16_224", 1000, 224, 16, "vit"),
        ("timm:xcit_nano_12_p8_224", 1000, 224, 8, "xcit"),
        ("timm:cait_xxs24_224", 1000, 224, 16, "cait"),
        ("timm:swin_tiny_patch4_window7_224", 1000, 224, 4, "swin"),
        ("timm:vit_tiny_r_s16_p8_224", 1000, 224, None, "vit"),
        ("timm:vit_small_r26_s32_224", 1000, 224, None, "vit"),
        ("timm:vitamin_small_224", 768, 224, None, "vit"),
        ("timm:levit_128s", 1000, 224, 16, "levit"),
        ("timm:levit_384_s8", 1000, 224, 8, "levit"),
        ("timm:levit_conv_128s", 1000, 224, 16, "levit"),
        ("timm:test_resnet", 1000, 160, None, "convolutional"),
        ("vitadel:resnet50_gelu", 1000, 224, None, "convolutional"),
    ],
)
def test_defaults_are_those_of_the_architecture(
    name: str, classes: int, size: int, patch: int | None, family: str
) -> None:
    with torch.device("meta"):
        model = load(name)
    spec = model.spec
    assert spec is not None
    assert (spec.num_classes, spec.image_size, spec.patch_size) == (classes, size, patch)
    assert family_of(model.net).name == family


def test_normalization_is_from_timm_or_given(x: Tensor) -> None:
    timms = small()
    assert timms.normalization == Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    imagenet = load("timm:deit_tiny_patch16_224", image_size=32, options={"depth": 1})
    assert imagenet.normalization == Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    raw = load(
        "timm:test_vit", num_classes=5, image_size=32, patch_size=8, options={"depth": 2}, normalization=RAW_PIXELS
    )
    assert raw.spec is not None
    assert raw.normalization == raw.spec.normalization == RAW_PIXELS
    assert weights(raw) == weights(timms)
    torch.testing.assert_close(timms(x.float()), raw((x.float() - 0.5) / 0.5))


def test_normalization_can_be_none(x: Tensor) -> None:
    model = load("timm:test_vit", num_classes=5, image_size=32, options={"depth": 1}, normalization=RAW_PIXELS)
    assert model.normalization == RAW_PIXELS
    assert torch.equal(model(x.float()), model.net(x.float()))


def test_the_seed_determines_the_weights_and_generators_are_unchanged() -> None:
    torch.manual_seed(123)
    state = torch.get_rng_state()
    first, again, other = small(seed=1), small(seed=1), small(seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert weights(first) == weights(again)
    assert weights(first) != weights(other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:test_vitt", r"timm has no model 'test_vitt'\. Did you mean test_vit\w* or test_vit\w* or test_vit\w*\?"),
        ("timm:qqqqqqqqqq", r"timm has no model 'qqqqqqqqqq'\. See `vitadel models` for the families"),
        ("timm:test_vit.nonsense", r"timm's test_vit has no weights tagged 'nonsense'\. Leave the tag out"),
        ("timm:test_vit@", r"no file follows the @ in 'timm:test_vit@'\. Write timm:test_vit@FILE"),
        ("vitadel:wrn28_1", r"unknown model 'vitadel:wrn28_1'\. Did you mean 'vitadel:wrn28_10'"),
        ("zoo:nothing_like_it", r"unknown zoo model 'zoo:nothing_like_it'"),
        ("no/such/thing", r"'no/such/thing' is not a model: .* Give a run folder, a checkpoint, zoo:NAME or timm:NAME"),
    ],
)
def test_unknown_names_are_answered_with_similar_ones(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(name)


def test_tagged_architectures_use_the_configuration_of_the_tag() -> None:
    with torch.device("meta"):
        model = load("timm:vit_tiny_patch16_224.augreg_in21k")
    assert model.spec is not None
    assert model.spec.num_classes == 21843


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dept": 2}, "unknown option of timm:test_vit 'dept'. Did you mean 'depth'"),
        ({"num_heads": 7}, "timm cannot build test_vit with .*num_heads=7: .*divisible"),
        ({"img_size": 32}, "img_size of timm:test_vit is not an option. Write image_size=32 instead"),
        ({"in_chans": 1}, "images have 3 channels here, got in_chans=1. Leave it out"),
    ],
)
def test_options_unknown_to_timm_are_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load("timm:test_vit", options=options)


def test_invalid_arguments_are_refused() -> None:
    for key in ("num_classes", "image_size", "patch_size"):
        with pytest.raises(UsageError, match=f"{key} must be a whole number from 1 to [0-9]+, got 0"):
            load("timm:test_vit", **{key: 0})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="takes no options, got depth"):
        load("vitadel:resnet50_gelu", options={"depth": 2})
    for options, message in (
        ({"depth": 2}, "unknown option of vitadel:wrn28_10 'depth'. Known: act_layer"),
        ({"in_chans": 3}, "unknown option of vitadel:wrn28_10 'in_chans'"),
        ({"act_layer": 1}, "the option act_layer must be a word, got 1"),
        ({"act_layer": "sulu"}, "unknown act_layer of a WideResNet 'sulu'. Did you mean 'silu'"),
    ):
        with pytest.raises(UsageError, match=message):
            load("vitadel:wrn28_10", options=options)
    for name in ("vitadel:resnet50_gelu", "timm:test_resnet"):
        with pytest.raises(UsageError, match="has no patches, got patch_size=4"):
            load(name, patch_size=4)
    with pytest.raises(UsageError, match="timm:beit_base_patch16_224 has a fixed size of 224, got 32"):
        load("timm:beit_base_patch16_224", image_size=32)
    with pytest.raises(UsageError, match="Choose one of the two"):
        load("timm:test_vit@weights.pth", pretrained=True)
    with pytest.raises(UsageError, match="has no published weights"):
        load("vitadel:wrn28_10", pretrained=True)


# checkpoints


@pytest.mark.parametrize("family", ["vit", "distilled", "cait", "xcit", "swin", "levit"])
def test_a_checkpoint_gives_the_same_output_bit_for_bit(tiny: Tiny, x: Tensor, tmp_path: Path, family: str) -> None:
    model = tiny(family).float()
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", seed=99)
    assert again.spec == model.spec
    assert torch.equal(again(x.float()), model(x.float()))


def test_checkpoint_of_a_convolutional_network(x: Tensor, tmp_path: Path) -> None:
    model = load("timm:test_resnet", num_classes=5, image_size=32)
    model.train()(x.float())  # BatchNorm has statistics
    save(model.eval(), tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path / "model.safetensors")(x.float()), model(x.float()))


def test_checkpoint_of_a_hybrid_network(tmp_path: Path) -> None:
    model, x = load("timm:vit_tiny_r_s16_p8_224", num_classes=5, seed=1), torch.rand(1, 3, 224, 224)
    save(model, tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path / "model.safetensors")(x), model(x))
    assert model.fixed_size == 224
    with pytest.raises(UsageError, match="has no patches, got patch_size=16"):
        load("timm:vit_tiny_r_s16_p8_224", patch_size=16)
    with pytest.raises(UsageError, match="has a fixed size of 224, got 64"):
        load("timm:vit_tiny_r_s16_p8_224", image_size=64)


def test_normalization_is_saved_in_the_checkpoint(tmp_path: Path) -> None:
    for norm in (RAW_PIXELS, Normalization((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))):
        save(load("timm:test_vit", image_size=32, normalization=norm, options={"depth": 1}), tmp_path / "m.safetensors")
        assert load(tmp_path / "m.safetensors").normalization == norm
    assert load(tmp_path / "m.safetensors", normalization=HALF).normalization == HALF


@pytest.mark.parametrize("name", ["timm:test_vit", "timm:deit_tiny_distilled_patch16_224", "timm:xcit_nano_12_p8_224"])
def test_another_number_of_classes_replaces_only_the_head(tmp_path: Path, name: str) -> None:
    old = small(name, seed=1)
    save(old, tmp_path / "old.safetensors")
    new = load(tmp_path / "old.safetensors", num_classes=9, seed=2)
    heads = {key for key in old.net.state_dict() if key.startswith("head")}
    assert len(heads) == (4 if "distilled" in name else 2)
    fresh = small(name, classes=9, seed=2).net.state_dict()
    for key, value in new.net.state_dict().items():
        assert torch.equal(value, fresh[key] if key in heads else old.net.state_dict()[key])
    assert new(torch.rand(2, 3, 32, 32)).shape == (2, 9)
    assert new.spec is not None
    assert new.spec.num_classes == 9
    # requesting the same number keeps the head
    assert weights(load(tmp_path / "old.safetensors", num_classes=5, seed=2)) == weights(old)


def test_the_head_of_a_resnet_is_found_by_timms_name(tmp_path: Path) -> None:
    old = load("timm:test_resnet", num_classes=5, image_size=32, seed=1)
    save(old, tmp_path / "old.safetensors")
    new = load(tmp_path / "old.safetensors", num_classes=3)
    changed = [key for key, v in old.net.state_dict().items() if not torch.equal(v, new.net.state_dict()[key])]
    assert changed == ["fc.weight", "fc.bias"]


def test_a_run_folder_loads_its_best_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    with pytest.raises(UsageError, match="holds no finished checkpoint .* Train it first"):
        load(tmp_path / "run")
    final, best = small(seed=1), small(seed=2)
    save(final, folder / "final.safetensors")
    (tmp_path / "run" / "log.jsonl").touch()
    assert weights(load(tmp_path / "run")) == weights(final)
    save(best, folder / "best.safetensors")
    assert weights(load(str(tmp_path / "run"))) == weights(best)


def test_the_training_run_of_a_model_is_known(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    file = folder / "final.safetensors"
    assert training_run_of(file) is None  # neither weights nor a manifest
    file.touch()
    assert training_run_of(file) is None
    (tmp_path / "run" / "manifest.json").touch()
    assert training_run_of(file) == training_run_of(f"{file}") == training_run_of(tmp_path / "run") == tmp_path / "run"
    assert training_run_of(folder / "best.safetensors") is None
    elsewhere = tmp_path / "run" / "weights" / "final.safetensors"
    elsewhere.parent.mkdir()
    elsewhere.touch()
    assert training_run_of(elsewhere) is None
    assert training_run_of("timm:test_vit") is None
    assert training_run_of(f"timm:test_vit+{file}") == tmp_path / "run"
    assert training_run_of(f"{file}+{elsewhere}") == tmp_path / "run"
    assert training_run_of(f"{file}+{elsewhere}#rob") == tmp_path / "run"


def test_the_last_checkpoint_does_not_replace_the_best(tmp_path: Path) -> None:
    run = Run.claim(tmp_path / "run", "train", {"seed": 0}, device="cpu")
    run.checkpoints.mkdir()
    save(small(seed=1), run.checkpoints / "final.safetensors")
    run.log("step", step=1, loss=1.0)
    assert weights(load(run.folder)) == weights(small(seed=1))  # nothing was selected
    run.log("holdout", step=1, clean=0.5)
    with pytest.raises(UsageError, match=r"best\.safetensors is missing, .* instead: .*run/checkpoints/final\.safet"):
        load(run.folder)
    assert weights(load(run.checkpoints / "final.safetensors")) == weights(small(seed=1))
    (run.folder / "log.jsonl").unlink()  # nothing says any more whether weights were selected
    with pytest.raises(
        UsageError,
        match=r"best\.safetensors is missing, and .*log\.jsonl, which says whether .* instead: .*/final\.safetensors",
    ):
        load(run.folder)


def test_a_name_that_is_too_long_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot access .*: File name too long"):
        load(tmp_path / ("x" * 300))


def test_an_inaccessible_run_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", locked)
    for name in (tmp_path, tmp_path / "checkpoints" / "best.safetensors"):
        with pytest.raises(UsageError, match=r"cannot access .*best\.safetensors: Permission denied\. Make it and its"):
            load(name)


def test_zoo_models_are_files_of_the_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "ZOO", tmp_path)
    model = small(seed=3)
    save(model, tmp_path / "little-vit.safetensors")
    assert weights(load("zoo:little-vit")) == weights(model)
    with pytest.raises(UsageError, match=r"unknown zoo model 'zoo:litle-vit'\. Did you mean 'zoo:little-vit'"):
        load("zoo:litle-vit")


def test_a_path_may_contain_an_at_sign(tmp_path: Path) -> None:
    save(small(seed=4), tmp_path / "run@night.safetensors")
    assert weights(load(tmp_path / "run@night.safetensors")) == weights(small(seed=4))


def test_a_path_may_contain_marks_of_heads_and_adapters(tmp_path: Path) -> None:
    (tmp_path / "c++ x").mkdir()
    plain, marked = tmp_path / "c++ x" / "r 18.safetensors", tmp_path / "c++ x" / "w#rob"
    write_tensors(plain, small(seed=4).net.state_dict(), {})
    torch.save(small(seed=4).net.state_dict(), marked)
    for file in (plain, marked):
        again = load(f"timm:test_vit@{file}", num_classes=5, image_size=32, patch_size=8, options={"depth": 2})
        assert weights(again) == weights(small(seed=4))


def test_saved_metadata_is_in_the_file(tmp_path: Path) -> None:
    save(small(), tmp_path / "m.safetensors", {"recipe": "none"})
    assert read_tensors(tmp_path / "m.safetensors")[1]["recipe"] == "none"


def test_wrapped_unknown_modules_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="save this one's state dict instead"):
        save(wrap(small().net, mean=(0.5,) * 3, std=(0.5,) * 3), tmp_path / "m.safetensors")


def test_pretrained_is_refused_for_a_checkpoint(tmp_path: Path) -> None:
    save(small(), tmp_path / "m.safetensors")
    with pytest.raises(UsageError, match="is a checkpoint and has its weights"):
        load(tmp_path / "m.safetensors", pretrained=True)


def test_files_without_a_description_need_an_architecture(tmp_path: Path) -> None:
    write_tensors(tmp_path / "bare.safetensors", small().net.state_dict(), {})
    torch.save({}, tmp_path / "bare.pth")
    for file in ("bare.safetensors", "bare.pth"):
        with pytest.raises(UsageError, match=f"no description of its model. Name the architecture: timm:NAME@.*{file}"):
            load(tmp_path / file)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_truncated_checkpoint_is_refused(tmp_path: Path, share: float) -> None:
    save(small(), tmp_path / "whole.safetensors")
    whole = (tmp_path / "whole.safetensors").read_bytes()
    (tmp_path / "part.safetensors").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UsageError, match=r"part\.safetensors is truncated or not a safetensors file"):
        load(tmp_path / "part.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "timm:net_of_tomorrow"}, "timm has no model 'net_of_tomorrow'"),
        ({"name": "vitadel:wrn1_1", "patch_size": None}, "unknown model 'vitadel:wrn1_1'"),
        ({"image_size": "32"}, "description in the file is damaged"),
        ({"options": [1]}, "description in the file is damaged"),
        ({"normalization": {"mean": ["a"], "std": [1]}}, "description in the file is damaged"),
        ({"normalization": {}}, "description in the file is damaged"),
        ({"surplus": 1}, "description in the file is damaged"),
    ],
)
def test_damaged_description_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    model = small()
    assert model.spec is not None
    text = json.dumps({**json.loads(model.spec.to_json()), **change})
    write_tensors(tmp_path / "m.safetensors", model.net.state_dict(), {SPEC_KEY: text})
    with pytest.raises(UsageError, match=message):
        load(tmp_path / "m.safetensors")


def test_the_description_survives_json() -> None:
    spec = ModelSpec("timm:test_vit", 5, 32, None, HALF, {"depth": 2, "drop_rate": 0.1, "qkv_bias": True})
    assert ModelSpec.from_json(spec.to_json()) == spec
    # as files of earlier versions spell it
    assert ModelSpec.from_json(spec.to_json().replace("normalization", "normalisation")) == spec
    adapted = replace(spec, tuning=AdapterConfig(head="acc"))
    assert ModelSpec.from_json(adapted.to_json().replace('"head"', '"answer"')) == adapted
    with pytest.raises(UsageError, match="damaged"):
        ModelSpec.from_json("no json")


# the hub


def test_without_network_pretrained_weights_give_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("network is unreachable\nand a long story")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(UsageError) as error:
        load("timm:test_vit", pretrained=True)
    assert str(error.value) == (
        "could not fetch the weights of test_vit (OSError: network is unreachable). "
        "Without internet access, give a file: timm:test_vit@FILE."
    )


def test_hub_weights_are_resampled_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    create, published = timm.create_model, timm.create_model("test_vit").eval()

    def online(arch: str, *, pretrained: bool = False, **kwargs: object) -> torch.nn.Module:
        return published if pretrained else create(arch, **kwargs)

    monkeypatch.setattr(timm, "create_model", online)
    assert weights(load("timm:test_vit", pretrained=True)) == weights_sha256(published.state_dict())
    small = load("timm:test_vit", pretrained=True, num_classes=5, image_size=32, patch_size=4).net.state_dict()
    for key, value in published.state_dict().items():
        assert torch.equal(small[key], value) == (not key.startswith(("head.", "pos_embed", "patch_embed.proj.weight")))


def test_the_fingerprint_distinguishes_values_and_names() -> None:
    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3])}
    assert weights_sha256(one) == weights_sha256(dict(reversed(one.items())))
    assert weights_sha256(one) != weights_sha256({**one, "a": torch.tensor([1.0, 2.0000002])})
    assert weights_sha256(one) != weights_sha256({"a": one["a"], "c": one["b"]})


def test_moved_run_folder_loads_from_its_new_place(tmp_path: Path) -> None:
    (tmp_path / "a" / "checkpoints").mkdir(parents=True)
    save(small(seed=5), tmp_path / "a" / "checkpoints" / "final.safetensors")
    (tmp_path / "a" / "log.jsonl").touch()
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert weights(load(tmp_path / "b")) == weights(small(seed=5))


def test_a_model_prints_in_a_few_lines() -> None:
    model = load("timm:test_vit", num_classes=10, image_size=32, patch_size=4)
    count = sum(one.numel() for one in model.parameters())
    assert repr(model).splitlines() == [
        "Model(timm:test_vit",
        f"  {count:,} parameters",
        "  32 x 32 images in patches of 4, 10 classes",
        f"  normalization: mean {model.normalization.mean}, std {model.normalization.std})",
    ]
    assert repr(wrap(nn.LazyLinear(10), mean=0.0, std=1.0)) == "Model(LazyLinear\n  0 parameters\n  no normalization)"


def test_one_value_normalizes_all_channels() -> None:
    net, x = nn.Flatten(), torch.rand(2, 3, 4, 4)
    half = wrap(net, mean=0.5, std=0.5)
    assert half.normalization == Normalization((0.5,) * 3, (0.5,) * 3)
    assert torch.equal(half(x), wrap(net, mean=[0.5] * 3, std=(0.5, 0.5, 0.5))(x))
    assert Normalization.of([0.1, 0.2], 1) == Normalization((0.1, 0.2), (1.0, 1.0))
    assert wrap(net, mean=[0.5], std=1).normalization == Normalization((0.5,), (1.0,))
    with pytest.raises(UsageError, match="images have 3 channels, or 1 if they are gray, got mean and std of 2"):
        wrap(net, mean=[0.1, 0.2], std=1)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k", "vit_tiny_patch16_244"])
def test_a_name_of_timm_without_its_prefix_gets_a_hint(name: str) -> None:
    meant = name.replace("244", "224")
    with pytest.raises(UsageError, match=rf"or folder\. Did you mean timm:{re.escape(meant)}\? Give a run"):
        load(name)
