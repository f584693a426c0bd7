"""Continuous batching: an attack runs on a queue of images, and waiting images replace finished ones.

A batch has slots for images; the items of an image (one per target class) are consecutive rows of its tensors. Every
few steps the state of all items is read from the device; finished images are judged in float32, and waiting images take
their slots. When none are waiting, the batch is compacted. What an item does depends on its image, its seed and its own
number of steps, never on its neighbors: no result depends on the batch size.

The file has more than 400 lines because admission, steps and judging work on the same slots and tensors.

Shape letters: B items, T targets.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import NoReturn

import torch
from torch import Tensor

from vitadel.attacks.engine.iterative import IterativeAttack, StepContext
from vitadel.attacks.oracle import Oracle, is_finite, is_zero
from vitadel.core.cuda_graph import CudaGraph, Tensors
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.oom import is_out_of_memory, raise_out_of_memory, run_in_parts
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal
from vitadel.threats import Threat, per_image

# a batch on a GPU is compacted when at most this share of its slots is in use, and its step is captured again if at
# least this many steps are left
_COMPACT_BELOW, _WORTH_CAPTURING = 0.75, 30
# how far rounding may move a point of the boundary outside of eps; the judge gets it projected
_ROUNDING = 1e-5
_NEVER = -1


@dataclass(frozen=True, slots=True)
class WorkQueue:
    """The images to attack, loaded when a batch has space for them.

    Args:
        rng: A random stream per image.
        num_classes: The number of classes of the model.
        fetch: Takes indices into the queue and returns, on the model's device, the images [B, C, H, W], their goal, and
            the classes other than the label [B, T] by descending clean logit.
    """

    rng: RandomStreams
    num_classes: int
    fetch: Callable[[Tensor], tuple[Tensor, Goal, Tensor]]

    def __len__(self) -> int:
        return len(self.rng.key_B)


@dataclass(frozen=True, slots=True)
class ImageResult:
    """The result of an attack on one image.

    Args:
        index: The image's index in the queue.
        success: Whether an adversarial example was found.
        x_adv: The adversarial example, or the best attempt.
        prediction: The judge's class for an adversarial example, -1 for a robust image.
        distance: The distance of `x_adv` in the threat's norm.
        forwards: Forward passes; an attack that counts them per batch divides the number evenly among its images.
        backwards: Backward passes.
        zero_gradients: Gradients that were exactly zero.
        rejected: Successes in the search's precision that the judge did not confirm.
        seconds: The duration, divided evenly among the images attacked at the same time.
    """

    index: int
    success: bool
    x_adv: Tensor
    prediction: int
    distance: float
    forwards: float
    backwards: float
    zero_gradients: float
    rejected: int
    seconds: float


class NonFiniteError(UsageError):
    """The model returned NaN or infinite logits or gradients in a search."""


@dataclass(slots=True)
class _Slot:
    """The image in a slot of the batch, by its index in the queue, and its cost so far."""

    index: int
    restart: int = 0
    steps: int = 0
    zero_gradients: int = 0
    rejected: int = 0
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class ContinuousBatch:
    """An attack running on a queue of images.

    Args:
        batch_size: The largest number of items.
        sync_interval: About how many steps lie between two reads from the device.
        use_cuda_graph: Whether to capture a step as a CUDA graph.
        attack: The attack.
        model: The model to search on.
        queue: The images.
        threat: The threat model.
        judge: The float32 model that confirms successes, if any.
        flags: Receives a flag if the step could not be captured.
    """

    batch_size: int
    sync_interval: int
    use_cuda_graph: bool
    attack: IterativeAttack
    model: Oracle
    queue: WorkQueue
    threat: Threat
    judge: Oracle | None
    slots: list[_Slot | None] = field(default_factory=list)
    items: Tensors = field(default_factory=dict)
    goal: Goal | None = None
    graph: CudaGraph | None = None
    flags: list[Flag] = field(default_factory=list)
    forwards_per_start: int = 0
    passes_per_step: tuple[int, int] = (0, 0)
    waiting: deque[int] = field(init=False)
    capacity: int = field(init=False)
    num_branches: int = field(init=False)
    num_steps: int = field(init=False)
    steps_per_sync: int = field(init=False)
    clock: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.waiting = deque(range(len(self.queue)))
        self.num_branches = self.attack.num_branches(self.queue.num_classes)
        self.capacity = max(1, self.batch_size // self.num_branches)
        self.num_steps = self.attack.num_steps(self.threat)
        self.steps_per_sync = even_interval(self.num_steps, self.sync_interval)

    def results(self) -> Iterator[list[ImageResult]]:
        """Attack all images; their results are yielded as they finish."""
        while True:
            with torch.no_grad():  # not around the `yield`, where it would apply to the caller
                if not self.fill():
                    return
                self.advance()
                finished = self.collect()
            if finished:
                yield finished

    # ------------------------------------------------------------- admission

    def fill(self) -> bool:
        """Admit waiting images to empty slots, or compact the batch; False when all images are done."""
        empty = [number for number, slot in enumerate(self.slots) if slot is None]
        if not self.slots:
            empty = list(range(min(self.capacity, len(self.waiting))))
        while self.waiting and empty and not self._try_to_admit(empty[: len(self.waiting)]):
            empty = empty[: max(1, len(empty) // 2)]
        used = self._used()
        most = len(self.slots) * (1 if self.steps_per_sync == 1 else _COMPACT_BELOW)
        if len(used) <= most and len(used) < len(self.slots):
            self._compact(used)
        return bool(self.slots)

    def _used(self) -> list[int]:
        return [number for number, slot in enumerate(self.slots) if slot is not None]

    def _try_to_admit(self, slot_numbers: list[int]) -> bool:
        """Admit as many waiting images as there are slots, unless they do not fit into memory."""
        indices = [self.waiting.popleft() for _ in slot_numbers]
        try:
            self._admit(slot_numbers, torch.tensor(indices))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(slot_numbers) == 1 and not any(self.slots):
                self._refuse()
            self.waiting.extendleft(reversed(indices))
            self.capacity = max(1, len(self.slots) or len(slot_numbers) // 2)
            torch.cuda.empty_cache()
            return len(slot_numbers) == 1  # the images in the batch continue without it
        return True

    def _admit(self, slot_numbers: list[int], index_B: Tensor) -> None:
        x0, goal, others_BT = self.queue.fetch(index_B)
        goals = self.attack.branch_goals(goal, others_BT, self.queue.num_classes)
        streams = self.queue.rng.at(index_B.to(self.queue.rng.key_B.device))
        keys = [streams.fold(branch).key_B.to(x0.device) for branch in range(self.num_branches)]
        fixed = {"x0": x0.repeat_interleave(self.num_branches, 0), "stream": _interleave(keys)}
        fixed |= {f"goal.{name}": _interleave([getattr(one, name) for one in goals]) for name in _tensors(goals[0])}
        self.goal = goals[0]
        new = fixed | self._start(fixed, torch.zeros(len(fixed["x0"]), dtype=torch.int64, device=x0.device))
        slots = [_Slot(index) for index in index_B.tolist()]
        if not self.slots:
            self.items, self.slots = {key: rows.clone() for key, rows in new.items()}, list(slots)
            return
        for number, slot in zip(slot_numbers, slots, strict=True):
            self.slots[number] = slot
        self._write(slot_numbers, new)

    def _start(self, fixed: Tensors, restart_B: Tensor) -> Tensors:
        """The tensors of items before their first step."""
        zero = torch.zeros_like(restart_B)
        new = {"key": RandomStreams(fixed["stream"]).fold(restart_B).key_B, "step": zero, "restart": restart_B}
        new |= {"success_step": zero + _NEVER, "zero_gradients": zero, "nonfinite": zero, "x_adv": fixed["x0"]}
        calls = self.model.forward_calls
        state = self.attack.start(self.model, self._context(fixed | new))
        self.forwards_per_start = self.model.forward_calls - calls
        return new | {f"state.{name}": rows for name, rows in state.items()}

    def _write(self, slot_numbers: list[int], new: Tensors) -> None:
        rows_B = self._rows_of(slot_numbers)
        for key, rows in new.items():
            self.items[key][rows_B] = rows

    def _compact(self, slot_numbers: list[int]) -> None:
        rows_B = self._rows_of(slot_numbers)
        self.items = {key: rows[rows_B] for key, rows in self.items.items()}
        self.slots = [self.slots[number] for number in slot_numbers]
        self.graph = None

    def _rows_of(self, slot_numbers: Iterable[int]) -> Tensor:
        rows = [number * self.num_branches + branch for number in slot_numbers for branch in range(self.num_branches)]
        return self._on_device(rows)

    def _on_device(self, slot_numbers: list[int]) -> Tensor:
        return torch.tensor(slot_numbers, dtype=torch.int64, device=self.items["x0"].device)

    # ------------------------------------------------------------------ steps

    def advance(self) -> None:
        """Advance every item by a few steps; when out of memory, return half of the images to the queue."""
        try:
            if self.use_cuda_graph and self.graph is None and self._worth_capturing():
                self._capture()
            for _ in range(self.steps_per_sync):
                if self.graph is not None:
                    self.graph.run()
                else:
                    self.items = self.step(self.items)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._halve()

    def _capture(self) -> None:
        """Capture the step, which fails for a model that synchronizes with its device."""
        try:
            self.graph = CudaGraph.capture(self.step, self.items)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            self.use_cuda_graph = False
            first = str(error).strip().splitlines()[0]
            self.flags.append(
                Flag("search-fallback", f"the steps could not be captured as a CUDA graph: {first[:200]}", {})
            )

    def _worth_capturing(self) -> bool:
        return self.num_steps - int(self.items["step"].min()) >= _WORTH_CAPTURING or bool(self.waiting)

    def _halve(self) -> None:
        used = self._used()
        if len(used) < 2:
            self._refuse()
        kept, removed = used[: len(used) // 2], used[len(used) // 2 :]
        self.waiting.extendleft(self._slot(number).index for number in reversed(removed))
        self.capacity = len(kept)
        self._compact(kept)
        torch.cuda.empty_cache()

    def _refuse(self) -> NoReturn:
        raise_out_of_memory(f" ({self.num_branches} items)")

    def _context(self, items: Tensors) -> StepContext:
        assert self.goal is not None
        goal: Goal = replace(self.goal, **{name: items[f"goal.{name}"] for name in _tensors(self.goal)})  # type: ignore[type-var]
        step_B = items["step"].clamp_max(self.num_steps - 1)  # idle items index tables too
        return StepContext(items["x0"], goal, self.threat, RandomStreams(items["key"]), step_B, items["restart"])

    def step(self, items: Tensors) -> Tensors:
        """The items after one step of those that have steps left; no synchronization, and `items` are not modified."""
        ctx = self._context(items)
        state = {key.removeprefix("state."): value for key, value in items.items() if key.startswith("state.")}
        before = self.model.forward_calls, self.model.backward_calls
        query, new_state = self.attack.step(self.model, ctx, state)
        self.passes_per_step = self.model.forward_calls - before[0], self.model.backward_calls - before[1]
        active_B = items["step"] < self.num_steps
        new = items | {"step": items["step"] + active_B}
        nonfinite_B = ~is_finite(query.z_BK)
        if query.grad is not None:
            nonfinite_B |= ~is_finite(query.grad)
            # after a success the gradient may be zero, as that of DLR where the label has the third largest logit
            zero_B = is_zero(query.grad) & active_B & ~ctx.goal.success(query.z_BK)
            new["zero_gradients"] = items["zero_gradients"] + zero_B
        new["nonfinite"] = items["nonfinite"] | (nonfinite_B & active_B)
        if self.attack.stops_at_success:
            success_B = ctx.goal.success(query.z_BK) & active_B
            if self.attack.may_leave_threat:
                success_B &= self.threat.distance(query.x, ctx.x0) <= self.threat.eps * (1 + _ROUNDING)
            new["success_step"] = torch.where(success_B, items["step"], items["success_step"])
            new["x_adv"] = torch.where(per_image(success_B, query.x), query.x, items["x_adv"])
        for name, value in new_state.items():
            old = items[f"state.{name}"]
            new[f"state.{name}"] = torch.where(per_image(active_B, old), value, old)
        return new

    # ---------------------------------------------------------------- judging

    def collect(self) -> list[ImageResult]:
        """Judge successes and remove finished images; images out of steps start their next restart."""
        names = ("success_step", "step", "zero_gradients", "nonfinite")
        columns = torch.stack([self.items[name] for name in names]).tolist()
        success_step, step, zeros, nonfinite = (
            [rows[i : i + self.num_branches] for i in range(0, len(rows), self.num_branches)] for rows in columns
        )
        used = self._used()
        if bad := sum(any(nonfinite[number]) for number in used):
            raise NonFiniteError(
                f"the model returned NaN or infinite logits or gradients for {bad} images under attack. "
                "Check its weights and precision: a NaN would count as a success of the attack."
            )
        self._divide_time(used)
        broken = self._judge({number: success_step[number] for number in used if max(success_step[number]) > _NEVER})
        finished = [number for number in used if number not in broken and min(step[number]) >= self.num_steps]
        for number in (*broken, *finished):
            slot = self._slot(number)
            slot.steps, slot.zero_gradients = slot.steps + sum(step[number]), slot.zero_gradients + sum(zeros[number])
        restarting = [number for number in finished if self._slot(number).restart + 1 < self.attack.restarts]
        robust = [number for number in finished if self._slot(number).restart + 1 >= self.attack.restarts]
        results = self._results(broken) + self._results(dict.fromkeys(robust, (0, -1)))
        self._restart(restarting)
        self._free([*broken, *robust])
        return results

    def _slot(self, number: int) -> _Slot:
        slot = self.slots[number]
        assert slot is not None
        return slot

    def _divide_time(self, slot_numbers: list[int]) -> None:
        now = time.perf_counter()
        for number in slot_numbers:
            self._slot(number).seconds += (now - self.clock) / len(slot_numbers)
        self.clock = now

    def _judge(self, success_steps: dict[int, list[int]]) -> dict[int, tuple[int, int]]:
        """The slots with a confirmed success: its branch and the judge's prediction."""
        confirmed: dict[int, tuple[int, int]] = {}
        while success_steps:
            first = {number: _earliest(steps) for number, steps in success_steps.items()}
            rows_B = self._on_device([number * self.num_branches + branch for number, branch in first.items()])
            agreed, predictions = self._query_judge(rows_B)
            rejected: dict[int, list[int]] = {}
            for (number, branch), yes, prediction in zip(first.items(), agreed, predictions, strict=True):
                if yes:
                    confirmed[number] = branch, prediction
                    continue
                self._slot(number).rejected += 1
                success_steps[number][branch] = _NEVER
                rejected[number] = success_steps[number]
            if rejected:
                rows = [number * self.num_branches + first[number] for number in rejected]
                self.items["success_step"][rows] = _NEVER
            success_steps = {number: steps for number, steps in rejected.items() if max(steps) > _NEVER}
        return confirmed

    def _query_judge(self, rows_B: Tensor) -> tuple[list[bool], list[int]]:
        if self.judge is None:
            return [True] * len(rows_B), [-1] * len(rows_B)
        x = self.threat.project(self.items["x_adv"][rows_B], self.items["x0"][rows_B])
        z_BK = run_in_parts(self.judge, x)
        if not bool(z_BK.isfinite().all()):
            raise NonFiniteError(
                "the model returned NaN or infinite logits for an image that was found under attack. "
                "Check its weights and precision."
            )
        self.items["x_adv"][rows_B] = x
        return self._context(self.items).goal.at(rows_B).success(z_BK).tolist(), z_BK.argmax(1).tolist()

    def _results(self, chosen: dict[int, tuple[int, int]]) -> list[ImageResult]:
        """The results of slots, given the branch and the prediction of each."""
        if not chosen:
            return []
        rows_B = self._on_device([number * self.num_branches + branch for number, (branch, _) in chosen.items()])
        success_B = self.items["success_step"][rows_B] > _NEVER
        best = self.items.get("state.best", self.items["state.x"])[rows_B]
        x0 = self.items["x0"][rows_B]
        x = self.threat.project(torch.where(per_image(success_B, best), self.items["x_adv"][rows_B], best), x0)
        columns = zip(success_B.tolist(), x.cpu(), self.threat.distance(x, x0).tolist(), strict=True)
        results = []
        for (number, (_, prediction)), (success, x_adv, distance) in zip(chosen.items(), columns, strict=True):
            slot = self._slot(number)
            judged = slot.rejected + success if self.judge is not None else 0
            started = (slot.restart + 1) * self.num_branches * self.forwards_per_start
            forwards, backwards = self.passes_per_step
            results.append(
                ImageResult(
                    index=slot.index,
                    success=success,
                    x_adv=x_adv.clone(),  # a view would keep the batch alive
                    prediction=prediction,
                    distance=distance,
                    forwards=started + slot.steps * forwards + judged,
                    backwards=slot.steps * backwards,
                    zero_gradients=slot.zero_gradients * backwards,
                    rejected=slot.rejected,
                    seconds=slot.seconds,
                )
            )
        return results

    def _restart(self, slot_numbers: list[int]) -> None:
        if not slot_numbers:
            return
        for number in slot_numbers:
            self._slot(number).restart += 1
        rows_B = self._rows_of(slot_numbers)
        fixed = {
            key: rows[rows_B] for key, rows in self.items.items() if key in ("x0", "stream") or key.startswith("goal.")
        }
        self._write(slot_numbers, self._start(fixed, self.items["restart"][rows_B] + 1))

    def _free(self, slot_numbers: list[int]) -> None:
        """Let the items of these slots idle until they are replaced, as if they had used up their steps."""
        if not slot_numbers:
            return
        for number in slot_numbers:
            self.slots[number] = None
        rows_B = self._rows_of(slot_numbers)
        self.items["step"][rows_B] = self.num_steps
        self.items["success_step"][rows_B] = _NEVER


def even_interval(num_steps: int, about: int) -> int:
    """An interval near `about` that divides `num_steps` with a small remainder, in which items would idle."""
    if about == 1:
        return 1
    near = range(max(1, about // 2), about + about // 2 + 1)
    return min(near, key=lambda k: (math.ceil(num_steps / k) * k - num_steps, abs(k - about)))


def _earliest(success_steps: list[int]) -> int:
    return min((step, branch) for branch, step in enumerate(success_steps) if step > _NEVER)[1]


def _tensors(goal: Goal) -> list[str]:
    return [one.name for one in fields(goal) if isinstance(getattr(goal, one.name), Tensor)]  # type: ignore[arg-type]


def _interleave(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts, 1).flatten(0, 1)
