"""Foreign weights: found in any container, checked key by key, never executed."""

import argparse
import io
import os
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from vitadel.core.errors import UsageError
from vitadel.core.files import write_atomically
from vitadel.models import Model, load, read_tensors, weights_sha256, write_tensors

State = dict[str, Tensor]


def small(seed: int = 0) -> Model:
    return load("timm:test_vit", num_classes=5, image_size=32, patch_size=8, options={"depth": 2}, seed=seed)


def read(path: Path, *, classes: int = 5) -> Model:
    return load(f"timm:test_vit@{path}", num_classes=classes, image_size=32, patch_size=8, options={"depth": 2}, seed=9)


@pytest.fixture
def state() -> State:
    return dict(small(seed=1).net.state_dict())


@pytest.mark.parametrize(
    "prefix", ["", "module.", "model.", "_orig_mod.", "net.", "module.model.", "_orig_mod.module.net."]
)
@pytest.mark.parametrize("container", [(), ("state_dict",), ("model",), ("state_dict", "model")])
def test_wrappers_around_weights_are_removed(
    state: State, tmp_path: Path, prefix: str, container: tuple[str, ...]
) -> None:
    content: dict[str, object] = {prefix + key: value for key, value in state.items()}
    for name in reversed(container):
        content = {name: content, "epoch": 3, "args": argparse.Namespace(lr=0.1, name="run")}
    torch.save(content, tmp_path / "w.pth")
    assert weights_sha256(read(tmp_path / "w.pth").net.state_dict()) == weights_sha256(state)


@pytest.mark.parametrize("name", ["state_dict_ema", "model_ema", "ema"])
def test_averaged_weights_are_preferred(state: State, tmp_path: Path, name: str) -> None:
    last = dict(small(seed=2).net.state_dict())
    torch.save(
        {"state_dict": last, "model": last, name: {f"module.{k}": v for k, v in state.items()}}, tmp_path / "w.pt"
    )
    assert weights_sha256(read(tmp_path / "w.pt").net.state_dict()) == weights_sha256(state)


def test_nested_containers_are_searched_for_weights(state: State, tmp_path: Path) -> None:
    average = torch.optim.swa_utils.AveragedModel(small(seed=1).net)
    assert "n_averaged" in average.state_dict()
    for content in (
        {"model": state, "ema": {"decay": 0.9, "updates": 3}},
        {"model": state, "ema": {"decay": torch.tensor(0.9)}},
        {"model": {"state_dict": state}, "epoch": 3},
        {"net": {"model": {"weights": state}}, "state_dict": {}},
        average.state_dict(),
        {"model_ema": average.state_dict()},
    ):
        torch.save(content, tmp_path / "w.pth")
        assert weights_sha256(read(tmp_path / "w.pth").net.state_dict()) == weights_sha256(state)


def test_state_dicts_and_bare_safetensors_are_read(state: State, tmp_path: Path) -> None:
    torch.save(small(seed=1).state_dict(), tmp_path / "w.pth")
    write_tensors(tmp_path / "w.safetensors", state, {})
    for file in ("w.pth", "w.safetensors"):
        assert weights_sha256(read(tmp_path / file).net.state_dict()) == weights_sha256(state)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_half_precision_files_load_into_float32_models(state: State, tmp_path: Path, suffix: str) -> None:
    half = {key: value.half() for key, value in state.items()}
    path = tmp_path / f"w.{suffix}"
    if suffix == "pth":
        torch.save(half, path)
    else:
        write_tensors(path, half, {})
    loaded = read(path).net.state_dict()
    assert {value.dtype for value in loaded.values()} == {torch.float32}
    for key, value in loaded.items():
        assert torch.equal(value, half[key].float())


def test_half_precision_survives_resampling(state: State, tmp_path: Path) -> None:
    torch.save({key: value.half() for key, value in state.items()}, tmp_path / "w.pth")
    model = load(
        f"timm:test_vit@{tmp_path / 'w.pth'}", num_classes=5, image_size=32, patch_size=4, options={"depth": 2}
    )
    assert {value.dtype for value in model.net.state_dict().values()} == {torch.float32}


def test_another_number_of_classes_replaces_only_the_head(state: State, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "w.pth")
    fresh = read(tmp_path / "w.pth", classes=8).net.state_dict()
    changed = [key for key in state if not torch.equal(fresh[key], state[key])]
    assert changed == ["head.weight", "head.bias"]
    assert fresh["head.weight"].shape[0] == 8


class MaliciousPickle:
    """Runs code when it is unpickled by the ordinary pickle."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_refused_and_never_run(state: State, tmp_path: Path, zipped: bool) -> None:
    mark = tmp_path / "executed"
    path = tmp_path / "w.pth"
    torch.save({**state, "extra": MaliciousPickle(mark)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(UsageError, match="holds more than weights, and only weights are read"):
        read(path)
    assert not mark.exists()
    torch.load(path, weights_only=False)  # the payload runs
    assert mark.exists()


def test_bare_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_bytes(pickle.dumps(MaliciousPickle(tmp_path / "executed"), protocol=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of the protocol, which is more than the one line of a refusal
        with pytest.raises(UsageError):
            read(tmp_path / "w.pth")
    assert not (tmp_path / "executed").exists()


def test_whole_modules_are_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "w.pth")
    with pytest.raises(UsageError, match=r"torch\.save\(model\.state_dict\(\), \.\.\.\)"):
        read(tmp_path / "w.pth")


def test_every_kind_of_mismatch_is_listed(state: State, tmp_path: Path) -> None:
    del state["norm.weight"], state["cls_token"]
    state |= {"surplus.one": torch.ones(1), "surplus.two": torch.ones(1)}
    state["blocks.0.mlp.fc1.bias"] = torch.ones(3)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(UsageError) as error:
        read(tmp_path / "w.pth")
    message = str(error.value)
    assert "does not fit this architecture" in message
    assert "2 missing: cls_token, norm.weight" in message
    assert "2 unexpected: surplus.one, surplus.two" in message
    assert "1 of another shape: blocks.0.mlp.fc1.bias [3] instead of [192]" in message


def test_a_head_of_another_size_is_a_mismatch_unless_classes_are_given(state: State, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(UsageError, match=r"head\.weight \[5, 64\] instead of \[1000, 64\].*num_classes"):
        load(f"timm:test_vit@{tmp_path / 'w.pth'}", image_size=32, patch_size=8, options={"depth": 2})


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    torch.save(load("timm:test_resnet", num_classes=5).net.state_dict(), tmp_path / "w.pth")
    with pytest.raises(UsageError, match="missing: cls_token, pos_embed"):
        read(tmp_path / "w.pth")


def test_missing_batch_norm_counters_are_allowed(tmp_path: Path) -> None:
    model = load("timm:test_resnet", num_classes=5, seed=1)
    old = {key: value for key, value in model.net.state_dict().items() if not key.endswith("num_batches_tracked")}
    assert len(old) < len(model.net.state_dict())
    torch.save(old, tmp_path / "w.pth")
    loaded = load(f"timm:test_resnet@{tmp_path / 'w.pth'}", num_classes=5, seed=2)
    assert weights_sha256(loaded.net.state_dict()) == weights_sha256(model.net.state_dict())


def damaged() -> dict[str, bytes]:
    buffer, legacy = io.BytesIO(), io.BytesIO()
    state = {"a": torch.arange(2000.0), "args": argparse.Namespace(lr=0.1)}
    torch.save(state, buffer)
    torch.save(state, legacy, _use_new_zipfile_serialization=False)
    files = {"empty": b"", "text": b"these are not weights\n" * 20, "noise": bytes(range(256)) * 4}
    for name, whole in (("zip", buffer.getvalue()), ("legacy", legacy.getvalue())):
        # named without the file's length, which is not the same every time it is made
        cuts = {**{str(n): n for n in (1, 30, 49, 56, 133, 200)}, "half": len(whole) // 2, "the end": len(whole) - 9}
        files |= {f"{name} cut at {where}": whole[:n] for where, n in cuts.items()}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("readme.txt", "hello")
    return files | {"other zip": archive.getvalue()}


@pytest.mark.parametrize("kind", damaged())
def test_damaged_files_are_usage_errors(tmp_path: Path, kind: str) -> None:
    (tmp_path / "w.pth").write_bytes(damaged()[kind])
    with pytest.raises(UsageError, match=r"w\.pth (is truncated or not a torch file|holds more than weights)"):
        read(tmp_path / "w.pth")


@pytest.mark.parametrize("content", [[1, 2], torch.ones(3), {"epoch": 3}, {"state_dict": {}}])
def test_file_without_weights_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(UsageError, match="holds no weights that can be found"):
        read(tmp_path / "w.pth")


def test_errors_of_torch_are_shortened(state: State, tmp_path: Path) -> None:
    torch.save({**state, "best": np.float64(0.5)}, tmp_path / "w.pth")
    with pytest.raises(UsageError) as raised:
        read(tmp_path / "w.pth")
    message = str(raised.value)
    assert "\x1b" not in message
    assert "\n" not in message
    assert "weights_only" not in message
    assert "holds more than weights, and only weights are read (it references numpy._core.multiarray.scalar)" in message


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_an_unreadable_file_is_not_reported_missing(
    state: State, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tensors(tmp_path / name, state, {})

    def locked(*args: object, **kwargs: object) -> None:  # what each library raises
        raise (FileNotFoundError if name.endswith("safetensors") else PermissionError)(str(args[0]))

    monkeypatch.setattr(safetensors, "safe_open", locked)
    monkeypatch.setattr(torch, "load", locked)
    with pytest.raises(UsageError, match=f"{name} may not be read: permission denied. Make it readable."):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["none.pth", "none.safetensors"])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} does not exist"):
        read(tmp_path / name)


TENSORS = {
    "w": torch.arange(6.0).view(2, 3),
    "half": torch.ones(3).bfloat16(),
    "n": torch.tensor(7),
    "e": torch.ones(0),
}


def test_a_flipped_bit_in_a_file_is_detected_or_harmless(tmp_path: Path) -> None:
    path, about = tmp_path / "w.safetensors", {"vitadel.model": '{"depth": 2}'}
    write_tensors(path, TENSORS, about)
    whole, outcomes = path.read_bytes(), []
    assert read_tensors(path)[1] == about
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            tensors, result = read_tensors(path)
        except UsageError as error:
            outcomes.append(str(error)[: len(f"{path} is ")])
        else:  # the damage is in the name of the hash
            assert tensors.keys() == TENSORS.keys()
            assert all(t.dtype == TENSORS[name].dtype and torch.equal(t, TENSORS[name]) for name, t in tensors.items())
            assert result.items() >= about.items()
            outcomes.append("harmless")
    assert set(outcomes) == {f"{path} is ", "harmless"}
    assert outcomes.count("harmless") < 30


def test_a_file_without_a_hash_is_read(tmp_path: Path) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "w.safetensors", {"of": "another program"})
    tensors, about = read_tensors(tmp_path / "w.safetensors")
    assert weights_sha256(tensors) == weights_sha256(TENSORS)
    assert about == {"of": "another program"}


def test_a_failed_write_is_a_usage_error(state: State, tmp_path: Path) -> None:
    """safetensors has its own error class for a full disk."""
    resource = pytest.importorskip("resource")  # not on Windows
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(UsageError, match=r"cannot write .*weights\.safetensors: .*File too large"):
            write_atomically(tmp_path / "weights.safetensors", lambda temporary: write_tensors(temporary, state, {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_weights_in_a_folder_whose_name_is_not_utf8_are_not_called_damaged(tmp_path: Path) -> None:
    write_tensors(tmp_path / "w.safetensors", {"a": torch.zeros(2)}, {})
    renamed = tmp_path.rename(tmp_path.with_name("run\udcff"))
    with pytest.raises(UsageError, match=r"w\.safetensors' is not UTF-8, and safetensors opens no such file\. Rename"):
        read_tensors(renamed / "w.safetensors")
