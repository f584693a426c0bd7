"""The study of representations: maps against slow computation on every family, known results, resuming, memory.

Shape letters: L layers, B images, T tokens, D features.
"""

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_models  # type: ignore[import-not-found]
import torch
from study_models import hooks, noisy_weights, studied_in
from torch import Tensor, nn

from vitadel.analyze import Correlation, run_study, study, tensor_context
from vitadel.analyze.correlation import SimilarityMeasure, groups_of
from vitadel.analyze.similarity import Grouping, cka, dependence
from vitadel.api.analyze import as_study
from vitadel.core.errors import UsageError
from vitadel.models import Model, load, save, tora, wrap
from vitadel.runs import ResultFolder

# how many layers have a map, and how many a class token
TOKENS = {"vit": (3, 3), "registers": (3, 3), "pooled": (3, 0), "distilled": (2, 2), "cait": (2, 2), "xcit": (4, 2)}
SHAPES = {"swin": 12, "levit": 11, "resnet": 8, "convnext": 4}


def tiny(family: str) -> Model:
    """A float64 model whose every weight matters."""
    return noisy_weights(study_models.tiny(family).double(), 0.05)


@pytest.fixture
def x() -> Tensor:
    return torch.rand(11, 3, 32, 32, generator=torch.Generator().manual_seed(7))


def studied(model: nn.Module, x: Tensor, settings: Correlation | None = None, **more: Any) -> dict[str, Any]:
    return study(model, x, torch.zeros(len(x), dtype=torch.int64), settings or Correlation(), **more)


def values(result: dict[str, Any], name: str, whose: str = "own") -> Tensor:
    return torch.tensor(result["maps"][whose][name]["values"], dtype=torch.float64)


def read(model: Model, x: Tensor) -> dict[str, Tensor]:
    """The outputs of every block, by the taps."""
    with torch.no_grad(), model.taps.read("*blocks.*.out") as seen:
        model(x)
    return {name: value for name, value in seen.items() if re.fullmatch(r"(class_)?blocks\.\d+\.out", name)}


def slow(tensors: list[Tensor]) -> Tensor:
    return torch.from_numpy(np.abs(np.corrcoef(np.stack([one.flatten().numpy() for one in tensors]))))


@pytest.mark.parametrize("family", TOKENS)
def test_maps_are_the_correlations_of_block_outputs(family: str, x: Tensor) -> None:
    model = tiny(family)
    result, given = studied(model, x, batch_size=4), read(model, x)
    patched, classed = TOKENS[family]
    assert result["measure"] == "pearson"
    assert result["n"] == 11
    names = [row + ".out" for row in result["maps"]["own"]["all"]["rows"]]
    assert len(names) == patched
    # the class token of an XCiT joins late, and is left out where all tokens are compared
    tokens = [given[name][:, -16:] if family == "xcit" else given[name] for name in names]
    torch.testing.assert_close(values(result, "all"), slow(tokens), atol=1e-9, rtol=0)
    if classed:
        rows = [row + ".out" for row in result["maps"]["own"]["class"]["rows"]]
        assert len(rows) == classed
        torch.testing.assert_close(values(result, "class"), slow([given[row][:, 0] for row in rows]), atol=1e-9, rtol=0)
        assert result["absent"] == ""
    else:
        assert "class" not in result["maps"]["own"]
        assert result["absent"] == "The model has no class token, so there is no map of it."
        assert result["absent"] in result["summary"]
        assert result["absent"] in result["exhibits"][0]["caption"]


@pytest.mark.parametrize("per", [Grouping.TOKEN, Grouping.FEATURE])
def test_coefficients_of_tokens_and_features_are_averaged(per: Grouping, x: Tensor) -> None:
    model = tiny("vit")
    result, given = studied(model, x, Correlation(per=per)), list(read(model, x).values())
    axis = 1 if per is Grouping.TOKEN else 2
    each = torch.stack([slow([one.select(axis, at) for one in given]) for at in range(given[0].shape[axis])])
    torch.testing.assert_close(values(result, "all"), each.mean(0), atol=1e-9, rtol=0)
    assert per.value + " by " + per.value in result["exhibits"][0]["caption"]


def test_normed_tokens(x: Tensor) -> None:
    model = tiny("vit")
    result = studied(model, x, Correlation(ln=True))
    normed = [nn.functional.layer_norm(one, one.shape[-1:], eps=1e-6) for one in read(model, x).values()]
    torch.testing.assert_close(values(result, "all"), slow(normed), atol=1e-9, rtol=0)
    assert "mean 0 and variance 1 first" in result["exhibits"][0]["caption"]


def test_identity_blocks_form_one_group(x: Tensor) -> None:
    model = tiny("vit")
    with torch.no_grad():
        for layer in (model.net.blocks[1].attn.proj, model.net.blocks[1].mlp.fc2):  # type: ignore[index, union-attr]
            layer.weight.zero_()
            layer.bias.zero_()
    result = values(studied(model, x), "all")
    assert float(result[0, 1]) == pytest.approx(1, abs=1e-12)
    assert float(result[0, 2]) < 0.999
    assert float(result[0, 2]) == pytest.approx(float(result[1, 2]), abs=1e-12)


def given_by(model: Model, names: list[str], x: Tensor) -> list[Tensor]:
    seen: dict[str, Tensor] = {}
    handles = [
        model.net.get_submodule(name).register_forward_hook(lambda m, a, out, name=name: seen.update({name: out}))
        for name in names
    ]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return [seen[name] for name in names]


def slow_cka(tensors: list[Tensor], groups: list[Tensor], *, biased: bool = False) -> Tensor:
    """From products of features of whole groups, in float64."""
    total = torch.zeros(len(tensors), len(tensors), dtype=torch.float64)
    for rows in groups:
        grams = torch.stack([one[rows].flatten(1) @ one[rows].flatten(1).T for one in tensors])
        total += len(rows) * dependence(grams, biased=biased)
    return cka(total)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("batch", [None, 3, 1])
def test_layers_of_different_shapes_are_compared_by_cka(x: Tensor, biased: bool, batch: int | None) -> None:
    model = tiny("resnet")
    result = studied(model, x, Correlation(group=8, biased=biased), batch_size=batch)
    names = result["maps"]["own"]["whole"]["rows"]
    assert names == [f"layer{stage}.{unit}" for stage in (1, 2, 3, 4) for unit in (0, 1)]
    known = slow_cka(given_by(model, names, x), [torch.arange(6), torch.arange(6, 11)], biased=biased)
    torch.testing.assert_close(values(result, "whole"), known, atol=1e-9, rtol=0)
    caption = result["exhibits"][0]["caption"]
    assert ("Linear CKA, biased" if biased else "Linear CKA, debiased") in caption
    assert "11 images in 2 groups of at most 8" in caption
    assert result["measure"] == "cka"


@pytest.mark.parametrize("family", SHAPES)
def test_every_family_has_a_map(family: str, x: Tensor) -> None:
    result = studied(tiny(family), x)
    actual = values(result, "whole")
    assert actual.shape == (SHAPES[family], SHAPES[family])
    torch.testing.assert_close(actual.diagonal(), torch.ones(SHAPES[family], dtype=torch.float64))
    assert "class" not in result["maps"]["own"]
    assert [one["kind"] for one in result["exhibits"]] == ["heat", "lines", "table"]


def test_wide_resnets_are_compared_by_unit() -> None:
    from vitadel.models import family_of
    from vitadel.models.wide_resnet import WideResNet

    model = wrap(WideResNet(10, 1, 5).eval(), mean=(0.5,) * 3, std=(0.5,) * 3).double()
    x = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(7))
    result = studied(model, x)
    names = [layer.name for layer in family_of(model.net).layers(model.net)]
    assert names == ["groups.0.0", "groups.1.0", "groups.2.0"]
    known = slow_cka(given_by(model, names, x), [torch.arange(8)])
    torch.testing.assert_close(values(result, "whole"), known, atol=1e-9, rtol=0)


def test_a_vit_by_cka_with_its_class_token(x: Tensor) -> None:
    model = tiny("vit")
    result, given = studied(model, x, Correlation(measure=SimilarityMeasure.CKA)), list(read(model, x).values())
    torch.testing.assert_close(values(result, "whole"), slow_cka(given, [torch.arange(11)]), atol=1e-9, rtol=0)
    known = slow_cka([one[:, 0] for one in given], [torch.arange(11)])
    torch.testing.assert_close(values(result, "class"), known, atol=1e-9, rtol=0)


def test_two_models_are_compared_by_layer(x: Tensor, tmp_path: Path) -> None:
    first, second = tiny("resnet").float(), load("timm:deit_tiny_patch16_224", image_size=48, options={"depth": 2})
    save(second, path := tmp_path / "other.safetensors")
    settings = Correlation(other=str(path))
    result = studied(first, x, settings)
    between = result["maps"]["between"]["whole"]
    assert between["rows"][0] == "layer1.0"
    assert between["columns"] == ["blocks.0", "blocks.1"]
    resized = nn.functional.interpolate(x, (48, 48), mode="bilinear", antialias=True)
    layers = [*given_by(first, between["rows"], x), *given_by(second, between["columns"], resized)]
    known = slow_cka([one.double() for one in layers], [torch.arange(11)])
    torch.testing.assert_close(values(result, "whole", "between"), known[:8, 8:], atol=1e-4, rtol=0)
    torch.testing.assert_close(values(result, "whole"), known[:8, :8], atol=1e-4, rtol=0)
    torch.testing.assert_close(values(result, "whole", "other"), known[8:, 8:], atol=1e-4, rtol=0)
    assert "resized to 48 x 48" in result["exhibits"][0]["caption"]
    assert "not both models have one" in result["absent"]
    row, column = divmod(int(known[:8, 8:].argmax()), 2)
    assert f"{between['rows'][row]} and {between['columns'][column]} of the other" in result["summary"]

    y = torch.zeros(11).long()
    studied_in(tmp_path / "study", first, x, y, settings)
    with torch.no_grad():
        next(second.parameters()).add_(1)
    save(second, path)
    with pytest.raises(UsageError, match="has other weights than when this study began"):
        studied_in(tmp_path / "study", first, x, y, settings)


def test_two_models_of_one_architecture_are_distinguished(x: Tensor, tmp_path: Path) -> None:
    first, second = (load("timm:test_vit", num_classes=5, image_size=32, patch_size=8, seed=seed) for seed in (1, 2))
    save(second, path := tmp_path / "twin.safetensors")
    exhibits = studied(first, x, Correlation(other=str(path)))["exhibits"]
    titles = list(dict.fromkeys(one["title"].partition(":")[0] for one in exhibits))
    both = "CKA of the studied model and the other (twin.safetensors)"
    assert titles == [both, "CKA of the studied model", "CKA of the other (twin.safetensors)"]
    assert "Rows are layers of the studied model, columns of the other (twin.safetensors)." in exhibits[0]["caption"]


def test_results_do_not_depend_on_the_batch(x: Tensor) -> None:
    model = tiny("vit")
    whole = studied(model, x)
    for batch in (1, 2, 7):
        for name in ("all", "class"):
            torch.testing.assert_close(
                values(studied(model, x, batch_size=batch), name), values(whole, name), atol=1e-12, rtol=0
            )


# sums of 512 images are written together, and those of a group
@pytest.mark.parametrize(
    ("family", "name", "times", "rest"), [("vit", "all", 25, 550 - 512), ("resnet", "whole", 1, 11)]
)
def test_an_interrupted_study_resumes(family: str, name: str, times: int, rest: int, x: Tensor, tmp_path: Path) -> None:
    model, settings, x = tiny(family), Correlation(group=12), torch.cat([x, 1 - x]).repeat(times, 1, 1, 1)
    y = torch.zeros(len(x)).long()
    known = study(model, x, y, settings)
    with pytest.raises(KeyboardInterrupt):
        studied_in(tmp_path, model, x, y, settings, batch_size=64, stop_after=0.25)
    assert ResultFolder(tmp_path).read("similarity")["index"] == [0]
    images: list[int] = []
    model.register_forward_hook(lambda module, args, out: images.append(len(out)))
    result = studied_in(tmp_path, model, x, y, settings, batch_size=3)
    assert sum(images) == rest
    torch.testing.assert_close(values(result, name), values(known, name), atol=1e-12, rtol=0)
    images.clear()
    studied_in(tmp_path, model, x, y, settings)
    assert not images


_PEAK = """
import resource, sys, torch
from vitadel.analyze import Correlation, run_study
from vitadel.evaluate.context import Context
from vitadel.models import load

class Drawn:
    labels = torch.zeros(int(sys.argv[1]), dtype=torch.int64)
    def __len__(self): return len(self.labels)
    def images(self, rows): return torch.rand(len(rows), 3, 32, 32)

model = load("timm:vit_tiny_patch16_224", image_size=32, patch_size=4, options={"depth": 6, "embed_dim": 96})
run_study(Correlation(), Context(model, Drawn()))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images() -> None:
    def peak(n: int) -> int:
        words = [sys.executable, "-c", _PEAK, str(n)]
        return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    few, many = peak(600), peak(2400)
    kilobytes = 6 * 65 * 96 * 4 * 1800 // 1024  # what the features of the other images would take
    assert kilobytes > 250_000
    assert many - few < kilobytes // 10


@pytest.mark.parametrize("family", ["vit", "xcit", "resnet"])
def test_the_model_is_left_unchanged_also_after_an_error(family: str, x: Tensor) -> None:
    model = tiny(family).train()
    before, twin = {key: value.clone() for key, value in model.state_dict().items()}, copy.deepcopy(model)
    hooks_before = hooks(model)
    studied(model, x)
    with pytest.raises(UsageError, match="takes images of shape"):
        run_study(Correlation(), tensor_context(model, x[:, :1], torch.arange(11)))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.training
    assert hooks(model) == hooks_before
    assert torch.equal(model.eval()(x), twin.eval()(x))


def test_the_blocks_of_a_model_with_adapters(x: Tensor) -> None:
    base = load("timm:vit_tiny_patch16_224", num_classes=5, image_size=32, patch_size=8, options={"depth": 2})
    result = studied(tora(base), x)
    torch.testing.assert_close(values(result, "all"), values(studied(base, x), "all"), atol=1e-5, rtol=0)


def test_the_exhibits_show_the_maps(x: Tensor) -> None:
    result = studied(tiny("vit"), x)
    heat, lines, table = result["exhibits"]
    assert [one["name"] for one in heat["matrices"]] == ["all tokens", "class token"]
    assert heat["matrices"][0]["values"] == result["maps"]["own"]["all"]["values"]
    assert heat["rows"] == ["0", "1", "2"]
    actual = values(result, "all")
    assert lines["lines"][0]["x"] == [1, 2]
    assert lines["lines"][0]["y"] == [float(actual[0, 1]), float(actual[1, 2])]
    assert table["rows"][0] == ["blocks.1", float(actual[0, 1]), float(values(result, "class")[0, 1])]
    late = studied(tiny("cait"), x)["exhibits"]
    assert [one["title"] for one in late[:2]] == [
        "Correlation of representations: all tokens",
        "Correlation of representations: class token",
    ]
    assert late[1]["rows"] == ["class 0", "class 1"]
    assert late[3]["rows"][1][:2] == ["class_blocks.1", None]


def test_groups_have_one_size_up_to_the_limit() -> None:
    assert [len(group) for group in groups_of(65, 64)] == [33, 32]
    assert [len(group) for group in groups_of(64, 64)] == [64]
    assert torch.cat(groups_of(10, 8)).tolist() == list(range(10))


def test_settings_are_parsed() -> None:
    assert as_study("correlation") == Correlation()
    assert as_study("correlation:per=token,ln=true") == Correlation(per=Grouping.TOKEN, ln=True)
    assert as_study("correlation:other=timm:vit@f.safetensors,biased=true,group=32") == Correlation(
        other="timm:vit@f.safetensors", biased=True, group=32
    )


def test_unsupported_models_and_data_are_refused(x: Tensor) -> None:
    for model, settings, message in (
        (
            tiny("swin"),
            Correlation(measure=SimilarityMeasure.PEARSON),
            "layers of SwinTransformer have different shapes",
        ),
        (tiny("resnet"), Correlation(per=Grouping.TOKEN), r"Correlation\.per and \.ln are about Pearson"),
        (tiny("vit"), Correlation(biased=True), r"Correlation\.biased is about CKA"),
        (wrap(nn.Flatten(), mean=(0.0,) * 3, std=(1.0,) * 3), Correlation(), "Flatten has no layers Vitadel supports"),
        (nn.Flatten(), Correlation(), "this Flatten does not name them"),
        (tiny("vit"), Correlation(other="zoo:nothing"), "unknown zoo model 'zoo:nothing'"),
    ):
        with pytest.raises(UsageError, match=message):
            studied(model, x, settings)
    with pytest.raises(UsageError, match="at least 4 images, got 3"):
        studied(tiny("vit"), x[:3])
    with pytest.raises(UsageError, match="Correlation.group must be at least 8, got 4. It counts images"):
        Correlation(group=4)
    with pytest.raises(UsageError, match="which Pearson's correlation cannot compare"):
        Correlation(other="timm:resnet18", measure=SimilarityMeasure.PEARSON)
    compiled = tiny("vit")
    compiled.net.compile()
    with pytest.raises(UsageError, match="compiled code does not see hooks"):
        studied(compiled, x)
