"""A study from beginning to end, the one of CONTRIBUTING.md: it resumes, ranks share it, and it can be read again."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from study_models import hooks, noisy_weights, studied_in  # type: ignore[import-not-found]
from torch import Tensor, nn

from vitadel.analyze import STUDIES, Study, map_chunks, run_study, study, tensor_context
from vitadel.core.distributed import Ranks
from vitadel.core.errors import UsageError
from vitadel.data import DataSet, InMemory, Split, Squash
from vitadel.evaluate.context import Context
from vitadel.models import load
from vitadel.runs import ResultFolder
from vitadel.runs.schema import read_study

CONTRIBUTING = Path(__file__).parents[3] / "CONTRIBUTING.md"
N = 10


@pytest.fixture(scope="module")
def confidence() -> Any:
    """The class that CONTRIBUTING.md shows."""
    (code,) = (block for block in CONTRIBUTING.read_text("utf-8").split("```") if "class Confidence" in block)
    names: dict[str, Any] = {"__name__": "contributed"}
    exec(code.removeprefix("python"), names)  # noqa: S102
    return names["Confidence"]


class Brightness(nn.Module):
    """Two classes with the odds of the brightness to one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        mean_B = x.mean((1, 2, 3))
        return torch.stack([mean_B.log(), torch.zeros_like(mean_B)], 1)


@pytest.fixture
def x() -> Tensor:
    """Images of one gray each: 1, 1/2, 1/3, ..."""
    return (1 / torch.arange(1, N + 1)).view(-1, 1, 1, 1).expand(-1, 3, 4, 4).contiguous()


Y = torch.zeros(N, dtype=torch.int64)
# of two classes with odds of 1 to k the likelier one has k / (k + 1)
MEAN = sum(k / (k + 1) for k in range(1, N + 1)) / N


def test_a_study_measures_and_summarizes(confidence: Any, x: Tensor) -> None:
    result = study(Brightness(), x, Y, confidence(), batch_size=3)
    assert result["mean"] == pytest.approx(MEAN)
    assert result["settings"] == {"is": "Confidence", "top": 1}
    assert result["summary"] == f"The mean confidence is {MEAN:.0%}."
    assert "threat" not in result
    assert study(Brightness(), x, Y, confidence(top=2))["mean"] == pytest.approx(1)
    with pytest.raises(UsageError, match=r"Confidence\.top must be at least 1"):
        study(Brightness(), x, Y, confidence(top=0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["lesion", "restricted-attention", "saliency", "feature-visualization", "correlation"])
def test_a_network_in_half_precision_has_the_results_of_its_copy_in_float32(name: str, dtype: torch.dtype) -> None:
    net = load("timm:test_vit", num_classes=3, image_size=16, patch_size=4, options={"depth": 2})
    half = noisy_weights(net, 0.1).to(dtype)
    x = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    whole = copy.deepcopy(half).float()
    y, settings, before = whole(x).argmax(1), STUDIES[name](), hooks(half)
    if name == "feature-visualization":
        settings = replace(settings, steps=1, coordinates=(0,))  # type: ignore[type-var]
    results = [study(one, x, y, settings)["summary"] for one in (half, whole)]
    if name != "feature-visualization":  # its sentence has rounded logits
        assert results[0] == results[1]
    assert {weight.dtype for weight in half.parameters()} == {dtype}
    assert hooks(half) == before


def test_an_interrupted_study_resumes_at_the_next_image(confidence: Any, x: Tensor, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        studied_in(tmp_path, Brightness(), x, Y, confidence(), stop_after=0.5, batch_size=3)
    assert ResultFolder(tmp_path).read("confidence")["index"] == list(range(6))
    model = Brightness()
    resumed = studied_in(tmp_path, model, x, Y, confidence(), batch_size=3)
    assert model.seen == N - 6
    assert resumed["mean"] == pytest.approx(MEAN)
    record = read_study(tmp_path / "result.json")
    assert record.to_json() == resumed
    assert record.tables[0].rows[0][1] == resumed["mean"]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("confidence", "x", "cannot be summarized: TypeError: .* Restore its tables and parts, or delete them and run"),
        ("confidence", [0.5], "cannot be summarized: TypeError"),
        ("other", 0.5, r"the rows in .*/tables/confidence have no column 'confidence'\. Delete"),
        ("seconds", "x", "cannot be summarized"),
    ],
)
def test_forged_rows_of_a_study_are_refused(
    confidence: Any, x: Tensor, tmp_path: Path, column: str, value: object, message: str
) -> None:
    forged: dict[str, list[object]] = {"index": list(range(N)), "seconds": [0.1] * N, column: [value] * N}
    ResultFolder(tmp_path).append("confidence", forged)
    with pytest.raises(UsageError, match=message) as error:
        studied_in(tmp_path, Brightness(), x, Y, confidence())
    assert "\n" not in str(error.value)
    assert ResultFolder(tmp_path).read("confidence") == forged


class Alone(Ranks):
    """One of several ranks that does not wait for the others."""

    def barrier(self) -> None:
        pass

    def broadcast_from_first(self, make: Any) -> Any:
        return make()


def test_ranks_share_the_images(confidence: Any, x: Tensor, tmp_path: Path) -> None:
    whole = study(Brightness(), x, Y, confidence())
    seen = []
    for rank in (1, 0):
        model = Brightness()
        ctx = tensor_context(model, x, Y)
        confidence().run(replace(ctx, store=ResultFolder(tmp_path), ranks=Alone(rank, 2)))
        seen.append(model.seen)
    assert seen == [N // 2, N // 2]
    model = Brightness()
    record = run_study(confidence(), replace(tensor_context(model, x, Y), store=ResultFolder(tmp_path)))
    assert model.seen == 0
    assert record.numbers["mean"] == whole["mean"]


@pytest.mark.parametrize(("ranks", "stop"), [([Ranks()], 2), ([Alone(0, 2), Alone(1, 2)], 9)])
def test_chunks_are_summed_once(x: Tensor, tmp_path: Path, ranks: list[Ranks], stop: int) -> None:
    ctx = replace(tensor_context(Brightness(), x, Y), store=ResultFolder(tmp_path))
    chunks: list[list[int]] = []

    def work(index: Tensor) -> dict[str, object]:
        if len(chunks) == stop:
            raise KeyboardInterrupt
        chunks.append(index.tolist())
        return {"sum": int(index.sum())}

    for one in ranks:
        try:
            map_chunks(replace(ctx, ranks=one), "sums", work, size=4)
        except KeyboardInterrupt:
            stop = 9
            map_chunks(ctx, "sums", work, size=4)
    assert sorted(chunks) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert ctx.table("sums")["sum"] == [6, 22, 17]


def test_unsupported_models_and_data_are_refused(x: Tensor) -> None:
    empty = Split("test", (), Y[:0], InMemory(torch.zeros(0, 3, 4, 4, dtype=torch.uint8)))
    data = DataSet("none", ("a", "b"), Squash(4), None, None, empty)
    with pytest.raises(UsageError, match="the set of images is empty, so there is nothing to study. Choose"):
        run_study(STUDIES["lesion"](), Context(Brightness(), empty, data))
    ctx = replace(tensor_context(Brightness(), x, Y), threat=None)
    with pytest.raises(UsageError, match=r"an attack needs a threat\. Write threat="):
        run_study(STUDIES["saliency"](), ctx)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_title_and_a_description(name: str) -> None:
    made: Study = STUDIES[name]()
    assert made.title
    assert made.about
    assert isinstance(made.needs_threat, bool)
