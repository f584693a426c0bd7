"""The engine: results of an image depend on that image alone, not on the batch.

Shape letters: B items, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from vitadel.attacks import APGD, FAB, GAMA, PGD, Engine, IterativeAttack, Query, Square, State, StepContext
from vitadel.attacks.engine.batching import ContinuousBatch, ImageResult, WorkQueue, even_interval
from vitadel.attacks.oracle import Oracle
from vitadel.core.errors import UsageError
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal, Targeted, TowardClass, Untargeted, top_other_classes
from vitadel.losses import cross_entropy, logit_difference, margin, targeted_dlr
from vitadel.threats import L1, L2, Linf, Threat

Model = Callable[[Tensor], Tensor]
IMAGES, CLASSES = 9, 4
SEARCHES: dict[str, tuple[IterativeAttack, Threat]] = {
    "apgd": (APGD(steps=12), Linf(0.008)),
    "apgd-l2": (APGD(steps=12), L2(0.05)),
    "apgd-wide": (APGD(steps=12, use_larger_eps=True), L1(0.14)),
    "apgd-t": (APGD(steps=8, targets=3), Linf(0.0085)),
    "apgd-restarts": (APGD(steps=4, restarts=3), Linf(0.008)),
    "fab": (FAB(steps=6, restarts=2), Linf(0.007)),
    "fab-t": (FAB(steps=6, targets=3), Linf(0.0085)),
    "square": (Square(queries=15), Linf(0.0168)),
    "square-l2": (Square(queries=15), L2(0.1)),
    "pgd": (PGD(steps=4, restarts=3), Linf(0.008)),
    "pgd-t": (PGD(steps=5, targets=2), L2(0.05)),
    "gama": (GAMA(steps=8, restarts=2), Linf(0.007)),
}

every_search = pytest.mark.parametrize("name", SEARCHES)


def net(seed: int = 0) -> Model:
    """A small random net whose sums run in the same order for every batch."""
    generator = torch.Generator().manual_seed(seed)
    inner = torch.randn(10, 3 * 5 * 5, dtype=torch.float64, generator=generator) * 2
    outer = torch.randn(CLASSES, 10, dtype=torch.float64, generator=generator)

    def model(x: Tensor) -> Tensor:
        hidden = ((x.flatten(1) - 0.5)[:, None] * inner).sum(2).sin()
        return (hidden[:, None] * outer).sum(2)

    return model


def images() -> tuple[Tensor, Tensor]:
    x0 = torch.rand(IMAGES, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x0, net()(x0).argmax(1)


def pool_of(numbers: Sequence[int], attack: IterativeAttack, seed: int = 0) -> WorkQueue:
    """The images with these numbers, in this order."""
    x0, label_B = images()
    index = torch.tensor(numbers)
    others_BT = top_other_classes(net()(x0), label_B, min(attack.targets, CLASSES - 1))

    def fetch(at: Tensor) -> tuple[Tensor, Goal, Tensor]:
        return x0[index[at]], Untargeted(label_B[index[at]], margin), others_BT[index[at]]

    return WorkQueue(RandomStreams.of(seed, index), CLASSES, fetch)


def run_engine(
    attack: IterativeAttack,
    threat: Threat,
    engine: Engine | None = None,
    numbers: Sequence[int] = range(IMAGES),
    model: Model | None = None,
    judge: Model | None = None,
) -> dict[int, ImageResult]:
    """Every image's result, by the image's number."""
    oracle, judging = Oracle(model or net()), None if judge is None else Oracle(judge)
    stream = (engine or Engine()).run(attack, oracle, pool_of(numbers, attack), threat, judging)
    actual = [result for results in stream for result in results]
    assert sorted(result.index for result in actual) == list(range(len(numbers)))
    return {numbers[result.index]: result for result in actual}


def assert_same(one: dict[int, ImageResult], other: dict[int, ImageResult]) -> None:
    assert one.keys() == other.keys()
    for number, result in one.items():
        for name in ("success", "prediction", "forwards", "backwards", "zero_gradients", "rejected"):
            assert getattr(result, name) == getattr(other[number], name), (number, name)
        torch.testing.assert_close(result.x_adv, other[number].x_adv, rtol=0, atol=1e-12)
        assert result.distance == pytest.approx(other[number].distance, abs=1e-12)


# -------------------------------------------------------------- invariances


@every_search
def test_results_do_not_depend_on_the_batch_size(name: str) -> None:
    attack, threat = SEARCHES[name]
    whole = run_engine(attack, threat, Engine(batch_size=64))
    assert any(result.success for result in whole.values())
    for rows in (1, 3, 7):
        assert_same(run_engine(attack, threat, Engine(batch_size=rows)), whole)


@every_search
def test_results_do_not_depend_on_order_or_batch(name: str) -> None:
    attack, threat = SEARCHES[name]
    whole = run_engine(attack, threat, Engine(batch_size=4))
    assert_same(run_engine(attack, threat, Engine(batch_size=4), [4, 0, 8, 2, 6, 1, 7, 3, 5]), whole)
    for number in (0, 5, 8):
        assert_same(run_engine(attack, threat, Engine(batch_size=4), [number]), {number: whole[number]})


def test_some_images_are_broken_and_some_robust() -> None:
    """Otherwise the invariances above would mean little."""
    verdicts = {name: [result.success for result in run_engine(*SEARCHES[name]).values()] for name in SEARCHES}
    assert sum(any(broken) and not all(broken) for broken in verdicts.values()) >= len(SEARCHES) - 2
    costs = {
        name: {result.forwards for result in run_engine(*SEARCHES[name]).values()}
        for name in ("apgd-t", "fab-t", "square", "pgd")
    }
    assert all(len(different) > 2 for different in costs.values())


@pytest.mark.parametrize("name", ["apgd", "apgd-l2", "apgd-wide", "apgd-t", "fab-t", "square", "square-l2", "pgd-t"])
@pytest.mark.parametrize("interval", [3, 4, 7])
def test_rare_judgments_cost_steps_but_change_no_verdict(name: str, interval: int) -> None:
    """A broken image is searched until the next judgment; the cost is that of the intervals begun."""
    attack, threat = SEARCHES[name]
    often, limit = run_engine(attack, threat), attack.num_steps(threat)
    every = even_interval(limit, interval)
    rarely = run_engine(attack, threat, Engine(batch_size=6, sync_interval=interval))
    num_branches, forwards = attack.num_branches(CLASSES), 2 if isinstance(attack, FAB) else 1
    for number, result in often.items():
        assert rarely[number].success == result.success
        steps = result.forwards // num_branches // forwards
        assert rarely[number].forwards == min(-(-steps // every) * every, limit) * num_branches * forwards
        assert rarely[number].distance <= threat.eps * (1 + 1e-9)
        if result.success:
            label = net()(images()[0]).argmax(1)[number]
            assert net()(rarely[number].x_adv[None]).argmax(1) != label


@every_search
def test_rarely_judged_results_do_not_depend_on_the_batch_size(name: str) -> None:
    attack, threat = SEARCHES[name]
    whole = run_engine(attack, threat, Engine(batch_size=64, sync_interval=4))
    for rows in (1, 6):
        assert_same(run_engine(attack, threat, Engine(batch_size=rows, sync_interval=4)), whole)


class SmallSteps(IterativeAttack):
    """Increases by 0.03, seven times."""

    def num_steps(self, threat: Threat) -> int:
        return 7

    def start(self, model: Oracle, items: StepContext) -> State:
        return {"x": items.x0}

    def step(self, model: Oracle, items: StepContext, state: State) -> tuple[Query, State]:
        return Query(state["x"], model(state["x"])), {"x": state["x"] + 0.03}


def test_finished_rows_do_not_move() -> None:
    """Of two intervals of four steps, the last step is one too many: 0.71 would succeed, and is not queried."""
    assert even_interval(7, 4) == 4
    for interval in (1, 4):
        (result,) = single_items(1, SmallSteps(), Linf(0.4), upwards, interval=interval)
        assert not result.success
        assert result.forwards == 7
        assert result.x_adv.item() == pytest.approx(0.71)


@pytest.mark.parametrize(
    ("limit", "about", "expected"),
    [
        (101, 1, 1),
        (101, 16, 17),  # 6 x 17 = 102
        (103, 16, 13),  # 8 x 13 = 104
        (5001, 16, 18),  # 278 x 18 = 5004, and neither 5002 nor 5003 has a divisor near
        (20, 4, 4),
        (21, 4, 3),
        (3, 16, 8),
    ],
)
def test_judging_intervals_are_even(limit: int, about: int, expected: int) -> None:
    assert even_interval(limit, about) == expected


def test_a_single_batch_gives_the_results_of_the_queue() -> None:
    attack, threat = SEARCHES["apgd-t"]
    x0, label_B = images()
    whole = run_engine(attack, threat)
    x = Engine(batch_size=5).search(
        attack, Oracle(net()), x0, Untargeted(label_B), threat, RandomStreams.of(0, torch.arange(IMAGES))
    )
    for number, result in whole.items():
        torch.testing.assert_close(x[number], result.x_adv, rtol=0, atol=1e-12)


# -------------------------------------------------------------------- costs


@every_search
def test_a_robust_image_costs_every_step_of_every_restart(name: str) -> None:
    """A model that is never fooled: forwards and backwards in closed form."""
    attack, threat = SEARCHES[name]

    def model(x: Tensor) -> Tensor:
        return net()(x) * 1e-3 + 10 * torch.nn.functional.one_hot(images()[1][:1], CLASSES)

    result = run_engine(attack, threat, numbers=[0], model=model)[0]
    per_step = {FAB: (2, CLASSES - 1), Square: (1, 0)}.get(type(attack), (1, 1))
    if name == "fab-t":
        per_step = 2, 1
    steps = attack.num_steps(threat) * attack.num_branches(CLASSES) * attack.restarts
    starts = attack.restarts if name == "gama" else 0
    assert not result.success
    assert result.prediction == -1
    assert result.forwards == steps * per_step[0] + starts
    assert result.backwards == steps * per_step[1]
    assert result.distance <= threat.eps * (1 + 1e-9)


def bright(threshold: float) -> Model:
    """Class 1 where the first value exceeds the threshold; the gradient has no information."""

    def model(x: Tensor) -> Tensor:
        objective_B = x.flatten(1)[:, 0].detach() - threshold + 0 * x.flatten(1)[:, 0]
        return torch.stack([torch.zeros_like(objective_B), objective_B], 1)

    return model


def single_items(
    count: int, attack: IterativeAttack, threat: Threat, model: Model, interval: int = 1
) -> list[ImageResult]:
    """Gray images of one value with label 0."""
    goal = Untargeted(torch.zeros(count, dtype=torch.int64), margin)
    x0, none = torch.full((count, 1, 1, 1), 0.5, dtype=torch.float64), torch.zeros(count, 0, dtype=torch.int64)
    pool = WorkQueue(RandomStreams.of(0, torch.arange(count)), 2, lambda at: (x0[at], goal.at(at), none[at]))
    actual = [
        one for results in Engine(sync_interval=interval).run(attack, Oracle(model), pool, threat) for one in results
    ]
    return sorted(actual, key=lambda result: result.index)


def test_restarts_stop_with_the_first_success_and_draw_new_starts() -> None:
    """Only the start can succeed, with a chance of a half: each restart breaks about half of the robust images."""
    count = 400
    actual = single_items(count, PGD(steps=2, restarts=4), Linf(0.4), bright(0.5))
    by_cost: dict[int, list[bool]] = {}
    for result in actual:
        by_cost.setdefault(int(result.forwards), []).append(result.success)
    # a success at the first query of restart w has cost w whole restarts of three queries and one more
    assert set(by_cost) == {1, 4, 7, 10, 12}
    assert all(all(by_cost[cost]) for cost in (1, 4, 7, 10))
    assert not any(by_cost[12])
    left = count
    for cost in (1, 4, 7, 10):
        assert len(by_cost[cost]) == pytest.approx(left / 2, abs=5 * (left / 4) ** 0.5)
        left -= len(by_cost[cost])
    assert len(by_cost[12]) == left


def test_items_of_an_image_have_their_own_random_numbers() -> None:
    """Three targets, three random starts."""
    queries: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        queries.append(x.detach().clone())
        return net()(x)

    run_engine(APGD(steps=2, targets=3), Linf(0.008), model=model)
    starts = queries[0].view(IMAGES, 3, -1)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        # independent uniform numbers are a third of the width of their range apart on average
        apart = (starts[:, one] - starts[:, other]).abs().mean().item()
        assert apart == pytest.approx(2 * 0.008 / 3, rel=0.15)


def test_slots_are_refilled_while_images_wait() -> None:
    """Until the last image is admitted, every query of the model has all the rows."""
    sizes: list[int] = []
    admitted: list[int] = []

    def model(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return net()(x)

    attack, threat = SEARCHES["apgd-t"]
    pool = pool_of(list(range(IMAGES)), attack)

    def fetch(at: Tensor) -> tuple[Tensor, Goal, Tensor]:
        admitted.append(len(sizes))
        return pool.fetch(at)

    actual = [
        one
        for some in Engine(batch_size=8).run(attack, Oracle(model), replace(pool, fetch=fetch), threat)
        for one in some
    ]
    assert len(admitted) > 3
    # 8 rows hold two images of three items
    assert set(sizes[: admitted[-1] + 1]) == {6}
    assert sizes == sorted(sizes, reverse=True)
    # with a judgment after every step, nothing idles: the model's passes are those counted for the images
    assert sum(sizes) == sum(result.forwards for result in actual)


def test_results_are_returned_as_soon_as_they_are_final() -> None:
    calls = 0

    def model(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return net()(x)

    attack, threat = SEARCHES["apgd"]
    stream = Engine(batch_size=2).run(attack, Oracle(model), pool_of(list(range(IMAGES)), attack), threat)
    seen = []
    for results in stream:
        seen.append(calls)
        assert results
    assert seen == sorted(set(seen))
    assert len(seen) > 3


# ---------------------------------------------------------------- the judge


def always_class_0(x: Tensor) -> Tensor:
    """Predicts class 0 for every input."""
    return torch.eye(2, dtype=x.dtype)[0].expand(len(x), 2)


@dataclass
class Slow:
    """A judge that rejects its first `times` queries."""

    times: int
    num_queries: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        logits = []
        for _ in range(len(x)):
            self.num_queries += 1
            logits.append([0.0, 1.0 if self.num_queries > self.times else -1.0])
        return torch.tensor(logits, dtype=x.dtype)


def upwards(x: Tensor) -> Tensor:
    """Class 1 above 0.7."""
    objective_B = x.flatten(1)[:, 0] - 0.7
    return torch.stack([torch.zeros_like(objective_B), objective_B], 1)


def one_gray(attack: IterativeAttack, judge: Model, model: Model = upwards) -> ImageResult:
    goal = Untargeted(torch.zeros(1, dtype=torch.int64), margin)
    x0, others_BT = torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64), torch.ones(1, attack.targets, dtype=torch.int64)
    pool = WorkQueue(
        RandomStreams.of(0, torch.arange(1)),
        max(2, attack.targets + 1),
        lambda at: (x0[at], goal.at(at), others_BT[at]),
    )
    stream = Engine().run(attack, Oracle(model), pool, Linf(0.4), Oracle(judge))
    (result,) = [result for results in stream for result in results]
    return result


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_judge_that_rejects_everything_leaves_all_robust(restarts: int) -> None:
    """PGD without a random start sees 0.5, 0.6, 0.7, 0.8 and 0.9: the last two succeed and are rejected."""
    attack = PGD(steps=4, step_size=0.1, random_start=False) if restarts == 1 else PGD(steps=4, restarts=3)
    result = one_gray(attack, always_class_0)
    assert not result.success
    assert result.prediction == -1
    if restarts == 1:
        assert result.rejected == 2
        assert result.x_adv.item() == pytest.approx(0.9)
    assert result.rejected >= 2
    # the search runs to its end, and each query of the judge is a forward too
    assert result.forwards == 5 * restarts + result.rejected
    assert result.backwards == 5 * restarts


@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_a_judge_that_rejects_at_first_is_queried_again(times: int) -> None:
    """Steps of 0.1 from 0.5: queries 3 to 6 of seven succeed, at 0.8, 0.9, 0.9 and 0.9."""
    result = one_gray(PGD(steps=6, step_size=0.1, random_start=False), Slow(times))
    assert result.success
    assert result.rejected == times
    assert result.prediction == 1
    assert result.x_adv.item() == pytest.approx(0.8 if times == 0 else 0.9)
    assert result.backwards == 4 + times
    assert result.forwards == 4 + times + times + 1


def test_all_items_of_an_image_are_judged() -> None:
    """Three targets that all are class 1 succeed together; all three are judged in the same step."""

    def model(x: Tensor) -> Tensor:
        objective_B = x.flatten(1)[:, 0] - 0.7
        return torch.stack([torch.zeros_like(objective_B), objective_B, objective_B - 1, objective_B - 1], 1)

    attack = PGD(steps=6, step_size=0.1, random_start=False, targets=3)
    for times in (0, 1, 2):
        judge = Slow(times)
        result = one_gray(attack, judge, model)
        assert result.success
        assert (result.rejected, judge.num_queries) == (times, times + 1)
        assert result.backwards == 3 * 4
    judge = Slow(3)
    result = one_gray(attack, judge, model)
    assert result.success
    assert result.rejected == 3
    assert result.backwards == 3 * 5


def test_a_strict_judge_gives_the_verdicts_of_the_strict_model() -> None:
    """With a judge that needs a margin of 0.3, the search continues until it has one."""

    def strict(x: Tensor) -> Tensor:
        return net()(x) + 0.3 * torch.nn.functional.one_hot(images()[1][:1], CLASSES)

    same = [number for number in range(IMAGES) if images()[1][number] == images()[1][0]]
    attack, threat = PGD(steps=20), Linf(0.01)
    free = run_engine(attack, threat, numbers=same, judge=net())
    actual = run_engine(attack, threat, numbers=same, judge=strict)
    for number, result in actual.items():
        if result.success:
            assert strict(result.x_adv[None]).argmax(1).item() == result.prediction != images()[1][number].item()
        assert result.rejected == 0 or result.forwards > free[number].forwards
    assert any(result.rejected and result.success for result in actual.values())
    # a judge that rejects nothing is the model of the search itself
    assert all(result.rejected == 0 for result in free.values())


# ------------------------------------------------------------------- trouble


@dataclass
class Small:
    """A device that holds so many rows, from some call on."""

    most: int
    from_call: int = 0
    error: Exception = field(default_factory=lambda: torch.OutOfMemoryError("full"))
    calls: int = 0
    refused: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        if len(x) > self.most and self.calls > self.from_call:
            self.refused += 1
            raise self.error
        return net()(x)


FULL = (torch.OutOfMemoryError("full"), RuntimeError("DefaultCPUAllocator: can't allocate memory"))


@pytest.mark.parametrize("name", ["apgd", "apgd-t", "apgd-restarts", "fab-t", "square", "pgd"])
@pytest.mark.parametrize("from_call", [0, 4])
@pytest.mark.parametrize("error", FULL, ids=["GPU", "CPU"])
def test_out_of_memory_halves_the_batch_and_changes_nothing(name: str, from_call: int, error: Exception) -> None:
    attack, threat = SEARCHES[name]
    model = Small(attack.num_branches(CLASSES), from_call, error)
    result = run_engine(attack, threat, Engine(batch_size=64), model=model)
    assert model.refused >= 1
    assert_same(result, run_engine(attack, threat))


@pytest.mark.parametrize("from_call", [0, 4])
def test_other_errors_of_the_model_are_not_hidden(from_call: int) -> None:
    attack, threat = SEARCHES["apgd"]
    model = Small(1, from_call, RuntimeError("a mistake in the model"))
    with pytest.raises(RuntimeError, match="a mistake in the model"):
        run_engine(attack, threat, model=model)
    assert model.refused == 1


def test_an_image_that_does_not_fit_is_an_error() -> None:
    attack, threat = SEARCHES["apgd-t"]
    with pytest.raises(UsageError, match=r"out of memory with a single image \(3 items\)"):
        run_engine(attack, threat, model=Small(2))
    attack, threat = SEARCHES["apgd"]
    with pytest.raises(UsageError, match=r"out of memory with a single image \(1 items\)"):
        run_engine(attack, threat, model=Small(0))


@pytest.mark.parametrize("name", ["apgd", "fab-t", "square", "pgd", "gama"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_logits_are_an_error(name: str, value: float) -> None:
    attack, threat = SEARCHES[name]
    calls = 0

    def model(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        z_BK = net()(x)
        spoil = torch.zeros_like(z_BK)
        spoil[0] = value
        return z_BK + spoil if calls == 4 else z_BK

    with pytest.raises(UsageError, match="NaN or infinite logits or gradients for 1 images"):
        run_engine(attack, threat, model=model)


@pytest.mark.parametrize("name", ["apgd", "apgd-t", "fab-t", "pgd", "gama"])
def test_nan_gradients_are_an_error(name: str) -> None:
    attack, threat = SEARCHES[name]
    calls = 0

    def model(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        # the root of zero is zero, with no gradient
        return net()(x) + (x - x.detach()).flatten(1).sum(1, keepdim=True).abs().sqrt() * (calls >= 3)

    with pytest.raises(UsageError, match="NaN or infinite logits or gradients"):
        run_engine(attack, threat, model=model)


def test_zero_gradients_are_counted_per_image() -> None:
    def model(x: Tensor) -> Tensor:
        return net()(x.detach()) + 0 * x.flatten(1)[:, :1]

    attack, threat = SEARCHES["apgd-t"]
    actual = run_engine(attack, threat, model=model)
    assert actual
    for result in actual.values():
        assert result.zero_gradients == result.backwards > 0


def test_targets_need_an_untargeted_goal() -> None:
    x0, label_B = images()
    with pytest.raises(UsageError, match="needs an Untargeted goal, got Targeted"):
        Engine().search(
            APGD(targets=2), Oracle(net()), x0, Targeted(label_B), Linf(0.1), RandomStreams.of(0, torch.arange(IMAGES))
        )


# ------------------------------------------------- no synchronization with the device

META = torch.device("meta")
THREATS: dict[str, Threat] = {"linf": Linf(0.1), "l2": L2(0.5), "l1": L1(2.0)}
STEPS: dict[str, IterativeAttack] = {
    "apgd": APGD(),
    "apgd-wide": APGD(use_larger_eps=True),
    "apgd-rand": APGD(eot_samples=3),
    "fab": FAB(),
    "square": Square(),
    "pgd": PGD(),
    "gama": GAMA(),
}


def absent(attack: IterativeAttack, goal: Goal | None = None) -> tuple[Oracle, StepContext]:
    """Images on the meta device: reading a value is an error."""
    x0 = torch.empty(4, 3, 8, 8, device=META)
    label_B = torch.empty(4, dtype=torch.int64, device=META)
    weight = torch.empty(3 * 8 * 8, CLASSES, device=META)
    rng = RandomStreams(torch.empty(4, dtype=torch.int64, device=META))
    items = StepContext(x0, goal or Untargeted(label_B, margin), Linf(0.1), rng, label_B, label_B)
    return Oracle(lambda x: x.flatten(1) @ weight), items


@pytest.mark.parametrize("norm", THREATS)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_does_not_synchronize_with_the_device(name: str, norm: str) -> None:
    attack = STEPS[name]
    oracle, items = absent(attack)
    items = replace(items, threat=THREATS[norm])
    state = attack.start(oracle, items)
    query, moved = attack.step(oracle, items, state)
    assert query.z_BK.device == META
    assert moved["x"].shape == items.x0.shape
    # shapes and types of the state do not change, or a captured step could not be replayed
    for key, rows in moved.items():
        assert (rows.shape, rows.dtype) == (state[key].shape, state[key].dtype), key


@pytest.mark.parametrize("loss", [logit_difference, targeted_dlr])
@pytest.mark.parametrize("norm", THREATS)
def test_a_step_towards_a_class_does_not_synchronize(
    norm: str, loss: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> None:
    for attack in (APGD(targets=3), FAB(targets=3), PGD(targets=3)):
        none_B = torch.empty(4, dtype=torch.int64, device=META)
        oracle, items = absent(attack, TowardClass(none_B, none_B, loss))
        items = replace(items, threat=THREATS[norm])
        assert attack.step(oracle, items, attack.start(oracle, items))[0].z_BK.device == META


@pytest.mark.parametrize("name", STEPS)
def test_the_step_of_the_engine_does_not_synchronize(name: str) -> None:
    attack = STEPS[name]
    oracle, items = absent(attack)
    none = torch.empty(4, 0, dtype=torch.int64, device=META)
    pool = WorkQueue(items.rng, CLASSES, lambda at: (items.x0, items.goal, none))
    stream = ContinuousBatch(
        batch_size=4,
        sync_interval=16,
        use_cuda_graph=False,
        attack=attack,
        model=oracle,
        queue=pool,
        threat=items.threat,
        judge=None,
    )
    assert stream.fill()
    before = dict(stream.items)
    with torch.no_grad():
        after = stream.step(stream.items)
    assert after.keys() == before.keys()
    for key, rows in after.items():
        assert stream.items[key] is before[key]
        assert (rows.shape, rows.dtype) == (before[key].shape, before[key].dtype), key


def test_a_step_that_synchronizes_is_detected() -> None:
    """The assumption of the tests above."""

    class Synchronizing(PGD):
        def step(self, model: Oracle, items: StepContext, state: State) -> tuple[Query, State]:
            query, moved = PGD.step(self, model, items, state)
            return (query, moved) if bool((query.z_BK > 0).all()) else (query, state)

    oracle, items = absent(Synchronizing())
    with pytest.raises((RuntimeError, NotImplementedError)):
        Synchronizing().step(oracle, items, Synchronizing().start(oracle, items))


def test_losses_of_the_stages_differ() -> None:
    """The same attack with another loss gives another result: the goal of the queue is maximized."""
    attack, threat = SEARCHES["apgd"]
    x0, label_B = images()
    none = torch.zeros(IMAGES, 0, dtype=torch.int64)
    result = []
    for loss in (margin, cross_entropy):
        goal = Untargeted(label_B, loss)

        def fetch(at: Tensor, goal: Untargeted = goal) -> tuple[Tensor, Goal, Tensor]:
            return x0[at], goal.at(at), none[at]

        pool = WorkQueue(RandomStreams.of(0, torch.arange(IMAGES)), CLASSES, fetch)
        stream = Engine().run(attack, Oracle(net()), pool, threat)
        result.append(torch.stack([one.x_adv for some in stream for one in sorted(some, key=lambda one: one.index)]))
    assert not torch.allclose(result[0], result[1])


def test_a_judge_out_of_memory_is_queried_in_halves() -> None:
    attack, threat = SEARCHES["apgd"]
    whole = run_engine(attack, threat, judge=net())

    def full(x: Tensor) -> Tensor:
        if len(x) > 1:
            raise torch.OutOfMemoryError("full")
        return net()(x)

    alone = run_engine(attack, threat, judge=full)
    assert [result.success for result in alone.values()] == [result.success for result in whole.values()]
    assert any(result.success for result in alone.values())


def test_a_judge_that_returns_nan_is_an_error() -> None:
    attack, threat = SEARCHES["apgd"]
    with pytest.raises(UsageError, match="NaN or infinite logits for an image that was found"):
        run_engine(attack, threat, judge=lambda x: net()(x) * torch.nan)
