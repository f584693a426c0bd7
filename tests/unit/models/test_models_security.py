"""Models as SECURITY.md describes them: a file can neither run code, nor open connections, nor exhaust the memory."""

import json
import os
import re
import socket
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import timm
import torch
from timm.models.cait import Cait
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitadel.core.errors import UsageError
from vitadel.models import (
    AdapterConfig,
    Model,
    Option,
    add_adapters,
    build,
    load,
    loading,
    read_tensors,
    save,
    save_adapters,
    tora,
    weights_sha256,
)
from vitadel.models import write_tensors as write
from vitadel.models.build import build_on_meta, default_spec
from vitadel.models.options import check_options
from vitadel.models.spec import SPEC_KEY
from vitadel.recipes import RECIPES, override, train_recipe
from vitadel.recipes.published_tables import SWEEPS

SMALL: dict[str, Option] = {"depth": 1, "embed_dim": 32, "num_heads": 2}


class Canary:
    """Makes a folder when it is unpickled by the ordinary pickle."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing here may look for a host or open a connection."""
    calls = []

    def refuse(*args: object, **kwargs: object) -> None:
        calls.append(args)
        raise OSError("the network was used")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not calls


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A pickle that leaves `executed` beside it if anybody runs it."""
    path = tmp_path / "canary.pth"
    torch.save({"weight": torch.ones(2), "extra": Canary(tmp_path / "executed")}, path)
    return path


def small(seed: int = 0) -> Model:
    return load("timm:test_vit", num_classes=5, image_size=8, patch_size=4, options=SMALL, seed=seed)


def with_header(path: Path, change: Mapping[str, object], **adapters: str) -> Path:
    """A Vitadel checkpoint with a changed header."""
    model = small()
    assert model.spec is not None
    text = json.dumps({**json.loads(model.spec.to_json()), **change})
    write(path, model.net.state_dict(), {SPEC_KEY: text, **adapters})
    return path


def test_the_payload_of_these_tests_would_run(canary: Path) -> None:
    torch.load(canary, weights_only=False)
    assert (canary.parent / "executed").exists()


# options


MALICIOUS = {
    "checkpoint_path": "CANARY",
    "pretrained": True,
    "pretrained_cfg": {"file": "CANARY"},
    "pretrained_cfg_overlay": {"url": "http://localhost/weights.pth"},
    "hf_hub_id": "somebody/something",
    "cache_dir": "CANARY",
    "pretrained_strict": False,
    "pretrained_filter_fn": "os.system",
    "features_only": True,
    "pruned": True,
    "scriptable": True,
    "block_fn": "os.system",
    "device": "meta",
    "dtype": "float16",
    "url": "http://localhost/weights.pth",
    "file": "CANARY",
}


def placed(value: object, canary: Path) -> object:
    return json.loads(json.dumps(value).replace("CANARY", str(canary)))


@pytest.mark.parametrize("option", MALICIOUS)
def test_a_header_sets_only_what_describes_an_architecture(tmp_path: Path, canary: Path, option: str) -> None:
    options = {**SMALL, option: placed(MALICIOUS[option], canary)}
    path = with_header(tmp_path / "m.safetensors", {"options": options})
    with pytest.raises(UsageError, match=f"unknown option of timm:test_vit '{option}'"):
        load(path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("option", MALICIOUS)
def test_callers_and_settings_are_restricted_too(tmp_path: Path, canary: Path, option: str) -> None:
    value = placed(MALICIOUS[option], canary)
    with pytest.raises(UsageError, match=f"unknown option of timm:test_vit '{option}'"):
        load("timm:test_vit", options={option: value})  # type: ignore[dict-item]
    text = value if isinstance(value, str) else json.dumps(value)
    recipe = RECIPES["digits-standard"]()
    refused = f"unknown option of timm:test_vit '{option}'|model.options.{option} needs a number, true, false or a word"
    with pytest.raises(UsageError, match=refused):
        train_recipe(override(recipe, [f"model.options.{option}={text}"]), tmp_path / "run", data_spec="digits[:64]")
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "run").exists()


def test_every_network_is_built_without_published_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    create, calls = timm.create_model, []

    def recorded(name: str, **options: object) -> nn.Module:
        calls.append(options["pretrained"])
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", recorded)
    small()
    with torch.device("meta"):
        load("vitadel:resnet50_gelu")
        load("timm:beit_base_patch16_224")
    assert len(calls) >= 3
    assert not any(calls)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": -1}, "the option depth must be a whole number from 1 to 256, got -1"),
        ({"depth": 1.5}, "depth must be a whole number"),
        ({"depth": True}, "depth must be a whole number"),
        ({"depth": "2"}, "depth must be a whole number"),
        ({"depth": [2, 2]}, r"depth must be a whole number from 1 to 256, got \[2, 2\]"),
        ({"depth": None}, "depth must be a whole number"),
        ({"depth": 10**30}, "depth must be a whole number"),
        ({"embed_dim": 1_000_000_000}, "embed_dim must be a whole number from 1 to 65536, got 1000000000"),
        ({"num_heads": 0}, "num_heads must be a whole number from 1"),
        ({"mlp_ratio": float("nan")}, "mlp_ratio must be a number from 0 to 1000, got nan"),
        ({"mlp_ratio": float("inf")}, "mlp_ratio must be a number"),
        ({"mlp_ratio": -1.0}, "mlp_ratio must be a number"),
        ({"drop_rate": 1.5}, "drop_rate must be a number from 0 to 1, got 1.5"),
        ({"drop_rate": -0.1}, "drop_rate must be a number from 0 to 1, got -0.1"),
        ({"init_values": 1000.5}, "init_values must be a number from 0 to 1000, got 1000.5"),
        ({"reg_tokens": -1}, "reg_tokens must be a whole number from 0 to 65536, got -1"),
        ({"depth": 257}, "the option depth must be a whole number from 1 to 256, got 257"),
        ({"embed_dim": 65_537}, "embed_dim must be a whole number from 1 to 65536, got 65537"),
        ({"depth": 0}, "the option depth must be a whole number from 1 to 256, got 0"),
        ({"global_pool": "a" * 33}, "global_pool must be a word"),
        ({"drop_path_rate": False}, "drop_path_rate must be a number"),
        ({"class_token": 1}, "class_token must be true or false, got 1"),
        ({"global_pool": "__import__('os')"}, "global_pool must be a word"),
        ({"global_pool": "a" * 10_000}, "global_pool must be a word"),
        ({"global_pool": "nonsense"}, "timm cannot build test_vit with .*global_pool=nonsense"),
        ({"act_layer": "nonsense"}, "timm cannot build test_vit with .*act_layer=nonsense"),
        ({"\x1b[31m" + "a" * 10_000: 1}, "unknown option"),
    ],
)
def test_values_of_options_are_plain_and_bounded(tmp_path: Path, options: dict[str, Option], message: str) -> None:
    path = with_header(tmp_path / "m.safetensors", {"options": {**SMALL, **options}})
    for place in (lambda: load("timm:test_vit", options={**SMALL, **options}), lambda: load(path)):
        with pytest.raises(UsageError, match=message) as refused:
            place()
        assert len(str(refused.value)) < 1000
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("architecture", "option", "ends"),
    [
        (VisionTransformer, "depth", (1, 256)),
        (Cait, "depth_token_only", (1, 256)),
        (VisionTransformer, "embed_dim", (1, 65_536)),
        (VisionTransformer, "reg_tokens", (0, 65_536)),
        (VisionTransformer, "drop_rate", (0, 1, 0.0, 1.0)),
        (VisionTransformer, "init_values", (0, 1000, 1e-5)),
        (VisionTransformer, "global_pool", ("", "avg", "a" * 32)),
        (VisionTransformer, "class_token", (True, False)),
    ],
)
def test_options_at_their_bounds_are_accepted(
    architecture: type[nn.Module], option: str, ends: tuple[Option, ...]
) -> None:
    for value in ends:
        check_options("timm:a_model", {option: value}, (architecture,))


# names


@pytest.mark.parametrize(
    "name",
    [
        "timm:hf-hub:foo/bar",
        "timm:hf_hub:timm/test_vit",
        "timm:local-dir:/tmp/model",
        "timm:hf-hub:foo/bar.test_vit",
        "timm:../test_vit",
        "timm:test_vit.hf-hub:foo",
        "timm:",
        "timm:" + "a" * 150,
        "hf-hub:foo/bar",
        "local-dir:/tmp/model",
        "zoo:test_vit",
        "",
    ],
)
def test_names_of_other_sources_are_refused(tmp_path: Path, name: str) -> None:
    path = with_header(tmp_path / "m.safetensors", {"name": name})
    with pytest.raises(UsageError, match=r"timm has no model|is not an architecture"):
        load(path)
    with pytest.raises(UsageError, match=r"timm has no model|is not a model|unknown zoo model"):
        load(name or "nothing")
    if name.startswith("timm:"):
        with pytest.raises(UsageError, match="timm has no model"):
            load(name, pretrained=True)


EXISTING = [name for name, one in SWEEPS.items() if any(value.model for axis in one.axes for value in axis.values)]


@pytest.mark.parametrize("table", EXISTING)
def test_models_of_published_tables_have_names_that_load_accepts(table: str, tmp_path: Path) -> None:
    for model in (value.model for axis in SWEEPS[table].axes for value in axis.values if value.model):
        name, at, file = model.partition("@")
        assert default_spec(name, {}).num_classes == 1000
        assert (at, file) == ("@", f"{name.removeprefix('timm:')}.safetensors")
        with pytest.raises(UsageError, match=f"{re.escape(file)}.*does not exist"):
            load(f"{name}@{tmp_path / file}")


# descriptions in headers


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_classes": 1_000_000_000}, "num_classes must be a whole number from 1 to 65536, got 1000000000"),
        ({"num_classes": True}, "num_classes must be a whole number"),
        ({"num_classes": None}, "num_classes must be a whole number"),
        ({"image_size": 100_000}, "image_size must be a whole number from 1 to 4096, got 100000"),
        ({"image_size": -8}, "image_size must be a whole number"),
        ({"patch_size": 0}, "patch_size must be a whole number from 1 to 128, got 0"),
        ({"patch_size": 4.0}, "patch_size must be a whole number"),
        ({"kept_classes": -1}, "kept_classes must be a whole number from 1 to 65536, got -1"),
        ({"name": 7}, "the name of a model"),
        ({"name": "timm:" + "a" * 100_000}, "the name of a model has up to 200 characters"),
        ({"normalization": {"mean": [float("nan")] * 3, "std": [1, 1, 1]}}, "one mean and one positive std"),
        ({"normalization": {"mean": [0, 0, 0], "std": [1, float("inf"), 1]}}, "one mean and one positive std"),
        ({"normalization": {"mean": [0, 0, 0], "std": [1e-40, 1, 1]}}, "one mean and one positive std"),
        ({"normalization": {"mean": [10**39] * 3, "std": [1, 1, 1]}}, "one mean and one positive std"),
        ({"normalization": {"mean": [0] * 4, "std": [1] * 4}}, "images have 3 channels"),
        ({"normalization": [0.5]}, "is damaged"),
        ({"tuning": {"reduction": 2.5}}, "AdapterConfig.reduction must be a whole number"),
        ({"tuning": {"reduction": 0}}, "AdapterConfig.reduction must be at least 1, got 0"),
        ({"tuning": {"gate": ["token"]}}, "unknown AdapterConfig.gate"),
        ({"tuning": {"head": "a" * 10_000}}, "unknown head"),
        ({"tuning": [1, 2]}, "is damaged"),
        ({"options": None}, "is damaged"),
    ],
)
def test_sizes_and_numbers_in_a_header_are_bounded(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = with_header(tmp_path / "m.safetensors", change)
    with pytest.raises(
        UsageError, match=f"the model description in the file is damaged .*{message}|{message}"
    ) as raised:
        load(path)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"name":' * 100_000, '{"num_classes": ' + "9" * 5_000 + "}", "null", "[]", "7", '"text"']
)
def test_invalid_headers_are_a_one_line_error(tmp_path: Path, text: str) -> None:
    write(tmp_path / "m.safetensors", small().net.state_dict(), {SPEC_KEY: text})
    with pytest.raises(UsageError, match="the model description in the file is damaged") as refused:
        load(tmp_path / "m.safetensors")
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_classes": 10**9}, "num_classes must be a whole number from 1 to 65536, got 1000000000"),
        ({"image_size": 100_000}, "image_size must be a whole number from 1 to 4096, got 100000"),
        ({"patch_size": 1000}, "patch_size must be a whole number from 1 to 128, got 1000"),
        ({"num_classes": 2.5}, "num_classes must be a whole number from 1 to 65536, got 2.5"),
    ],
)
def test_sizes_given_by_callers_are_bounded_too(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load("timm:test_vit", **sizes)  # type: ignore[arg-type]


# memory


def test_a_network_larger_than_memory_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = default_spec("timm:vit_tiny_patch16_224", {}, 10)
    bytes_of = sum(4 * weights.numel() for weights in build_on_meta(spec).parameters())
    monkeypatch.setattr(build, "machine_memory", lambda: float(bytes_of - 1))
    built = []
    monkeypatch.setattr(loading, "build", lambda *args, **kwargs: built.append(args))
    with pytest.raises(UsageError, match=r"vit_tiny_patch16_224 with these sizes and options takes 0\.0 GiB, and this"):
        load("timm:vit_tiny_patch16_224", num_classes=10)
    assert not built
    with pytest.raises(UsageError, match=r"takes [0-9,]+\.[0-9] GiB, and this machine has .* Choose smaller ones"):
        load("timm:test_vit", options={"depth": 100, "embed_dim": 2**16})


@pytest.mark.parametrize(
    ("name", "sizes", "options"),
    [
        ("timm:levit_128s", {"image_size": 1536}, {}),
        ("timm:swin_tiny_patch4_window7_224", {"image_size": 2048, "patch_size": 1}, {"embed_dim": 24}),
        ("timm:swin_tiny_patch4_window7_224", {"image_size": 512}, {"embed_dim": 24, "window_size": 64}),
    ],
)
def test_a_header_cannot_describe_tables_that_fill_the_memory(
    tmp_path: Path, name: str, sizes: dict[str, int], options: dict[str, Option], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a few megabytes with all weights of such a network took gigabytes to load."""
    spec = json.dumps(asdict(replace(default_spec(name, options, 2), **sizes)))  # type: ignore[arg-type]
    write(tmp_path / "m.safetensors", small().net.state_dict(), {SPEC_KEY: spec})
    monkeypatch.setattr(loading, "build", lambda *args, **kwargs: pytest.fail("memory was spent"))
    with pytest.raises(UsageError, match=r"has tables of positions of [0-9]\.[0-9] GiB, more than 0\.5\. Choose a "):
        load(tmp_path / "m.safetensors")


def test_tables_of_large_images_are_allowed() -> None:
    for name, size in (("timm:levit_128s", 1024), ("timm:swin_tiny_patch4_window7_224", 4096)):
        build_on_meta(replace(default_spec(name, {}), image_size=size))


def test_a_header_cannot_describe_more_than_the_weights_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "build", lambda *args, **kwargs: pytest.fail("memory was spent"))
    for options in ({"depth": 40, "embed_dim": 1024}, {"depth": 1, "embed_dim": 64}):
        path = tmp_path / "m.safetensors"
        monkeypatch.undo()
        with_header(path, {"options": {**SMALL, **options}})
        monkeypatch.setattr(loading, "build", lambda *args, **kwargs: pytest.fail("memory was spent"))
        with pytest.raises(UsageError, match="does not fit this architecture"):
            load(path)


# adapters


def test_descriptions_of_adapters_are_bounded_too(tmp_path: Path) -> None:
    base = small()
    model = tora(base, AdapterConfig(reduction=4))
    save_adapters(model, tmp_path / "good.safetensors")
    assert torch.equal(
        add_adapters(base, tmp_path / "good.safetensors")(torch.ones(1, 3, 8, 8)), model(torch.ones(1, 3, 8, 8))
    )
    state, about = read_tensors(tmp_path / "good.safetensors")
    values = json.loads(about[SPEC_KEY])
    for change, message in (
        ({"num_classes": 10**9}, "num_classes must be a whole number"),
        ({"num_classes": 60_000}, "of another shape: heads.acc.weight"),
        ({"tuning": {**values["tuning"], "reduction": "4"}}, "AdapterConfig.reduction must be a whole number"),
        ({"tuning": {**values["tuning"], "reduction": 10**6}}, "leaves no channels of 32"),
    ):
        write(tmp_path / "bad.safetensors", state, {**about, SPEC_KEY: json.dumps({**values, **change})})
        with pytest.raises(UsageError, match=message):
            add_adapters(base, tmp_path / "bad.safetensors")
    write(tmp_path / "bad.safetensors", state, {**about, SPEC_KEY: "[" * 100_000})
    with pytest.raises(UsageError, match="the model description in the file is damaged"):
        add_adapters(base, tmp_path / "bad.safetensors")


def test_adapters_for_zero_classes_are_refused() -> None:
    for classes in (0, -1, 10**9):
        with pytest.raises(UsageError, match=f"num_classes must be a whole number from 1 to 65536, got {classes}"):
            tora(small(), num_classes=classes)


# weights


@pytest.mark.parametrize("zipped", [True, False])
def test_a_refused_pickle_names_its_global_without_advice(tmp_path: Path, zipped: bool) -> None:
    content = {**small().net.state_dict(), "extra": Canary(tmp_path / "executed")}
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UsageError) as refused:
        load(f"timm:test_vit@{tmp_path / 'w.pth'}")
    assert str(refused.value) == (
        f"{tmp_path / 'w.pth'} holds more than weights, and only weights are read (it references {os.name}.mkdir). "
        "Re-save its state dict alone: torch.save(model.state_dict(), ...)."
    )
    assert not (tmp_path / "executed").exists()


def test_archives_of_code_are_named(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "w.pth")
    with pytest.raises(UsageError, match=r"w\.pth is truncated or not a torch file \(it is a TorchScript archive\)"):
        load(f"timm:test_vit@{tmp_path / 'w.pth'}")


def test_recursive_containers_terminate(tmp_path: Path) -> None:
    content: dict[str, object] = {"epoch": 3}
    content["state_dict"] = content
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(UsageError, match="holds no weights that can be found"):
        load(f"timm:test_vit@{tmp_path / 'w.pth'}")


def test_entries_that_are_not_weights_are_ignored(tmp_path: Path) -> None:
    model = small(seed=1)
    state = dict(model.net.state_dict())
    more: dict[object, object] = {7: torch.ones(2), "sparse": torch.eye(3).to_sparse()}
    more.update(state)
    torch.save(more, tmp_path / "w.pth")
    again = load(f"timm:test_vit@{tmp_path / 'w.pth'}", num_classes=5, image_size=8, patch_size=4, options=SMALL)
    assert torch.equal(again(torch.ones(1, 3, 8, 8)), model(torch.ones(1, 3, 8, 8)))
    head = state["head.weight"]
    for other in (head.to_sparse(), head.to(torch.complex64), head.to(torch.uint8).view(torch.bits8)):
        torch.save({**state, "head.weight": other}, tmp_path / "w.pth")
        with pytest.raises(UsageError, match=r"1 missing: head\.weight"):
            load(f"timm:test_vit@{tmp_path / 'w.pth'}", num_classes=5, image_size=8, patch_size=4, options=SMALL)
    write(tmp_path / "w.safetensors", {**state, "head.weight": head.to(torch.complex64)}, {})
    with pytest.raises(UsageError, match=r"1 missing: head\.weight"):
        load(f"timm:test_vit@{tmp_path / 'w.safetensors'}", num_classes=5, image_size=8, patch_size=4, options=SMALL)


def test_endless_files_are_not_read(tmp_path: Path) -> None:
    for name in ("pipe.pth", "pipe.safetensors"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(UsageError, match=f"{name}: it is a named pipe"):
            load(f"timm:test_vit@{tmp_path / name}")
    with pytest.raises(UsageError, match=r"pipe\.safetensors: it is a named pipe"):
        load(tmp_path / "pipe.safetensors")


def test_archives_that_expand_are_not_read(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1_000_000)}, tmp_path / "stored.pth")
    with (
        zipfile.ZipFile(tmp_path / "stored.pth") as stored,
        zipfile.ZipFile(tmp_path / "w.pth", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    with pytest.raises(UsageError, match=r"w\.pth is truncated or not a torch file \(it is a compressed archive"):
        load(f"timm:test_vit@{tmp_path / 'w.pth'}")
    # an entry that overlaps the others, by its size in the table of contents
    content = bytearray((tmp_path / "stored.pth").read_bytes())
    at = content.index(b"PK\x01\x02") + 20
    content[at : at + 8] = struct.pack("<II", 2**30, 2**30)
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(UsageError, match=r"w\.pth .*\(its entries are larger than the file\)"):
        load(f"timm:test_vit@{tmp_path / 'w.pth'}")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("head.weight", torch.ones(1).expand(5, 32)),
        ("head.weight", torch.ones(40).as_strided((5, 32), (1, 1))),
        ("pos_embed", torch.ones(1).expand(1, 2**48, 32)),
    ],
    ids=["expanded", "overlapping", "of 32 PiB"],
)
def test_tensors_that_are_larger_than_their_file_are_refused(
    tmp_path: Path, key: str, value: torch.Tensor, zipped: bool
) -> None:
    content = {**small().net.state_dict(), key: value}
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UsageError, match=rf"w\.pth has tensors with more values than it holds, .*: {key}\. Re-save"):
        load(f"timm:test_vit@{tmp_path / 'w.pth'}", num_classes=5, image_size=8, patch_size=4, options=SMALL)


def test_tensors_that_share_their_values_are_read(tmp_path: Path) -> None:
    model, shared = small(seed=1), torch.rand(40)
    state = {**model.net.state_dict(), "norm.weight": shared[4:36], "norm.bias": shared[8:]}
    model.net.load_state_dict(state)
    torch.save(state, tmp_path / "w.pth")
    again = load(f"timm:test_vit@{tmp_path / 'w.pth'}", num_classes=5, image_size=8, patch_size=4, options=SMALL)
    assert weights_sha256(again.state_dict()) == weights_sha256(model.state_dict())


@pytest.mark.timeout(20)
def test_many_names_are_fast(tmp_path: Path) -> None:
    """The prefixes of all names were once compared with all names."""
    many = {f"a{at}.b{at}.c{at}.d": torch.zeros(1) for at in range(6_000)}
    write(tmp_path / "w.safetensors", {**small().net.state_dict(), **many}, {})
    with pytest.raises(UsageError, match=r"6000 unexpected: a0\.b0\.c0\.d") as refused:
        load(f"timm:test_vit@{tmp_path / 'w.safetensors'}", num_classes=5, image_size=8, patch_size=4, options=SMALL)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "factors",
    [torch.ones(3), torch.ones(1, 1), torch.full((1,), float("nan")), torch.full((1,), -1.0), torch.ones(0)],
    ids=["too many", "a matrix", "nan", "negative", "none"],
)
def test_factors_of_attention_in_a_file_are_checked(tmp_path: Path, factors: torch.Tensor) -> None:
    model = small()
    save(model, tmp_path / "m.safetensors")
    state, about = read_tensors(tmp_path / "m.safetensors")
    write(tmp_path / "m.safetensors", {**state, "attention_scales": factors}, about)
    with pytest.raises(UsageError, match=r"has 1 attention layers, got|attention scaling factors must be finite"):
        load(tmp_path / "m.safetensors")


def test_weights_on_the_meta_device_are_not_written(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = small()
    for use in (lambda: save(model, tmp_path / "m.safetensors"), lambda: weights_sha256(model.net.state_dict())):
        with pytest.raises(UsageError, match="the weights are on the meta device and have no values"):
            use()
    assert not (tmp_path / "m.safetensors").exists()
