"""One walk on one pool of images, in motion.

Items sit in rows. Every few steps the device is asked which of them are done; their images are judged in float32 and
leave, and waiting ones take their rows. When nobody waits any more, the batch is packed. What an item does depends on
its image, its seed and its own count of steps, never on its neighbors: no verdict depends on the number of rows.

Shape letters: B items. The items of an image sit in consecutive rows, a slot.
"""

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import NoReturn

import torch
from torch import Tensor

from vitadel.attacks.counting import is_finite, is_zero
from vitadel.attacks.engine.iterative import IterativeAttack, StepContext
from vitadel.attacks.engine.queue import ImageResult, NonFiniteError, WorkQueue
from vitadel.attacks.oracle import Oracle
from vitadel.core.cuda_graph import CudaGraph, Rows
from vitadel.core.errors import UsageError
from vitadel.core.flags import Flag
from vitadel.core.rng import RandomStreams
from vitadel.goals import Goal
from vitadel.threats import Threat, per_image

# a GPU's batch is packed when this share of its slots is still in use, and recorded again if so many steps lie ahead
_PACK_AT, _WORTH_RECORDING = 0.75, 30
# how far outside rounding may leave a point of the edge; the judge sees it projected
_ROUNDING = 1e-5
_NEVER = -1


@dataclass(slots=True)
class _Case:
    """An image in work."""

    place: int
    restart: int = 0
    steps: int = 0
    zeros: int = 0
    rejected: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class ContinuousBatch:
    """One walk on one pool, in motion. `cases` says who sits in which slot; an empty slot's rows idle."""

    max_rows: int
    about: int
    with_replay: bool
    walk: IterativeAttack
    model: Oracle
    pool: WorkQueue
    threat: Threat
    judge: Oracle | None
    cases: list[_Case | None] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    goal: Goal | None = None
    replay: CudaGraph | None = None
    flags: list[Flag] = field(default_factory=list)
    per_start: int = 0
    per_step: tuple[int, int] = (0, 0)
    waiting: deque[int] = field(init=False)
    capacity: int = field(init=False)
    num_branches: int = field(init=False)
    limit: int = field(init=False)
    interval: int = field(init=False)
    clock: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.waiting = deque(range(len(self.pool)))
        self.num_branches = self.walk.num_branches(self.pool.classes)
        self.capacity = max(1, self.max_rows // self.num_branches)
        self.limit = self.walk.num_steps(self.threat)
        self.interval = _even_interval(self.limit, self.about)

    # ------------------------------------------------------------ who is in

    def fill(self) -> bool:
        """Let waiting images in where there is room, pack where there is nobody; False when all is done."""
        empty = [slot for slot, case in enumerate(self.cases) if case is None]
        if not self.cases:
            empty = list(range(min(self.capacity, len(self.waiting))))
        while self.waiting and empty and not self._admitted(empty[: len(self.waiting)]):
            empty = empty[: max(1, len(empty) // 2)]
        live = [slot for slot, case in enumerate(self.cases) if case is not None]
        if len(live) <= len(self.cases) * (1 if self.interval == 1 else _PACK_AT) and len(live) < len(self.cases):
            self._keep(live)
        return bool(self.cases)

    def _admitted(self, slots: list[int]) -> bool:
        """Let as many waiting images in as there are slots, unless they do not fit into memory."""
        places = [self.waiting.popleft() for _ in slots]
        try:
            self._admit(slots, torch.tensor(places))
        except torch.OutOfMemoryError:
            if len(slots) == 1 and not any(self.cases):
                self._give_up()
            self.waiting.extendleft(reversed(places))
            self.capacity = max(1, len(self.cases) or len(slots) // 2)
            torch.cuda.empty_cache()
            return len(slots) == 1  # those inside go on alone
        return True

    def _admit(self, slots: list[int], places: Tensor) -> None:
        x0, goal, others_BT = self.pool.fetch(places)
        goals = self.walk.branch_goals(goal, others_BT, self.pool.classes)
        streams = self.pool.rng.at(places.to(self.pool.rng.key_B.device))
        keys = [streams.fold(member).key_B.to(x0.device) for member in range(self.num_branches)]
        still = {"x0": x0.repeat_interleave(self.num_branches, 0), "stream": _interleave(keys)}
        still |= {f"goal.{name}": _interleave([getattr(one, name) for one in goals]) for name in _tensors(goals[0])}
        self.goal = goals[0]
        fresh = still | self._begin(still, torch.zeros(len(still["x0"]), dtype=torch.int64, device=x0.device))
        cases = [_Case(place) for place in places.tolist()]
        if not self.cases:
            self.rows, self.cases = {key: rows.clone() for key, rows in fresh.items()}, list(cases)
            return
        for slot, case in zip(slots, cases, strict=True):
            self.cases[slot] = case
        self._write(slots, fresh)

    def _begin(self, still: Rows, restart_B: Tensor) -> Rows:
        """The rows of items before their first step."""
        none = torch.zeros_like(restart_B)
        fresh = {"key": RandomStreams(still["stream"]).fold(restart_B).key_B, "step": none, "wave": restart_B}
        fresh |= {"hit": none + _NEVER, "zeros": none, "bad": none, "found": still["x0"]}
        calls = self.model.calls
        state = self.walk.start(self.model, self._items(still | fresh))
        self.per_start = self.model.calls - calls
        return fresh | {f"state.{name}": rows for name, rows in state.items()}

    def _write(self, slots: list[int], fresh: Rows) -> None:
        at = self._rows_of(slots)
        for key, rows in fresh.items():
            self.rows[key][at] = rows

    def _keep(self, slots: list[int]) -> None:
        at = self._rows_of(slots)
        self.rows = {key: rows[at] for key, rows in self.rows.items()}
        self.cases = [self.cases[slot] for slot in slots]
        self.replay = None

    def _rows_of(self, slots: Iterable[int]) -> Tensor:
        return self._on_device([slot * self.num_branches + item for slot in slots for item in range(self.num_branches)])

    def _on_device(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.rows["x0"].device)

    # ------------------------------------------------------------- movement

    def advance(self) -> None:
        """Some steps for every row; on a full device with half as many images, the others wait again."""
        try:
            if self.with_replay and self.replay is None and self._worth_recording():
                self._record()
            for _ in range(self.interval):
                if self.replay is not None:
                    self.replay.run()
                else:
                    self.rows = self._step(self.rows)
        except torch.OutOfMemoryError:
            self._halve()

    def _record(self) -> None:
        """Record the step; a model that asks its device for a number in between cannot be recorded."""
        try:
            self.replay = CudaGraph.record(self._step, self.rows)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.with_replay = False
            first = str(error).strip().splitlines()[0]
            self.flags.append(Flag("search-fell-back", f"the steps could not be recorded: {first[:200]}", {}))

    def _worth_recording(self) -> bool:
        return self.limit - int(self.rows["step"].min()) >= _WORTH_RECORDING or bool(self.waiting)

    def _halve(self) -> None:
        live = [slot for slot, case in enumerate(self.cases) if case is not None]
        if len(live) < 2:
            self._give_up()
        stay, go = live[: len(live) // 2], live[len(live) // 2 :]
        self.waiting.extendleft(case.place for slot in reversed(go) if (case := self.cases[slot]) is not None)
        self.capacity = len(stay)
        self._keep(stay)
        torch.cuda.empty_cache()

    def _give_up(self) -> NoReturn:
        raise UsageError(
            f"out of memory with a single image in work ({self.num_branches} rows). "
            "Use fewer targets, a smaller model or a device with more memory."
        )

    def _items(self, rows: Rows) -> StepContext:
        assert self.goal is not None
        goal: Goal = replace(self.goal, **{name: rows[f"goal.{name}"] for name in _tensors(self.goal)})  # type: ignore[type-var]
        step_B = rows["step"].clamp_max(self.limit - 1)  # rows that idle look up tables too
        return StepContext(rows["x0"], goal, self.threat, RandomStreams(rows["key"]), step_B, rows["wave"])

    def _step(self, rows: Rows) -> Rows:
        """One step of every row that has steps left. Nothing here asks the device, and `rows` are left alone."""
        items = self._items(rows)
        state = {key.removeprefix("state."): value for key, value in rows.items() if key.startswith("state.")}
        before = self.model.calls, self.model.pullbacks
        answer, moved = self.walk.step(self.model, items, state)
        self.per_step = self.model.calls - before[0], self.model.pullbacks - before[1]
        active_B = rows["step"] < self.limit
        new = rows | {"step": rows["step"] + active_B}
        bad_B = ~is_finite(answer.z_BK)
        if answer.grad is not None:
            bad_B |= ~is_finite(answer.grad)
            # at the goal a loss may well be flat, as DLR is where the label comes third
            new["zeros"] = rows["zeros"] + (is_zero(answer.grad) & active_B & ~items.goal.success(answer.z_BK))
        new["bad"] = rows["bad"] | (bad_B & active_B)
        if self.walk.stops_at_success:
            success_B = items.goal.success(answer.z_BK) & active_B
            if self.walk.may_leave_threat:
                success_B &= self.threat.distance(answer.x, items.x0) <= self.threat.eps * (1 + _ROUNDING)
            new["hit"] = torch.where(success_B, rows["step"], rows["hit"])
            new["found"] = torch.where(per_image(success_B, answer.x), answer.x, rows["found"])
        for name, value in moved.items():
            old = rows[f"state.{name}"]
            new[f"state.{name}"] = torch.where(per_image(active_B, old), value, old)
        return new

    # ------------------------------------------------------------- judgment

    def collect(self) -> list[ImageResult]:
        """Judge successes; the images that are done leave, the others of a walk with several waves start the next."""
        columns = torch.stack([self.rows[key] for key in ("hit", "step", "zeros", "bad")]).tolist()
        hit, step, zeros, bad = (
            [rows[i : i + self.num_branches] for i in range(0, len(rows), self.num_branches)] for rows in columns
        )
        live = [slot for slot, case in enumerate(self.cases) if case is not None]
        if worse := sum(any(bad[slot]) for slot in live):
            raise NonFiniteError(
                f"the model returned NaN or infinite logits or gradients for {worse} images under attack. "
                "Check its weights and precision: a NaN would count as a success of the attack."
            )
        self._share_time(live)
        fallen = self._judge({slot: hit[slot] for slot in live if max(hit[slot]) > _NEVER})
        spent = [slot for slot in live if slot not in fallen and min(step[slot]) >= self.limit]
        for slot in (*fallen, *spent):
            case = self._case(slot)
            case.steps, case.zeros = case.steps + sum(step[slot]), case.zeros + sum(zeros[slot])
        again = [slot for slot in spent if self._case(slot).restart + 1 < self.walk.num_restarts]
        lost = [slot for slot in spent if slot not in set(again)]
        findings = self._findings(fallen) + self._findings(dict.fromkeys(lost, (0, -1)))
        self._start_next_wave(again)
        self._empty([*fallen, *lost])
        return findings

    def _case(self, slot: int) -> _Case:
        case = self.cases[slot]
        assert case is not None
        return case

    def _share_time(self, slots: list[int]) -> None:
        now = time.perf_counter()
        for slot in slots:
            self._case(slot).seconds += (now - self.clock) / len(slots)
        self.clock = now

    def _judge(self, hits: dict[int, list[int]]) -> dict[int, tuple[int, int]]:
        """Of the slots with successes, those where one holds: its item and the judge's answer; the earliest first."""
        fallen: dict[int, tuple[int, int]] = {}
        while hits:
            best = {slot: _earliest(steps) for slot, steps in hits.items()}
            rows = self._on_device([slot * self.num_branches + item for slot, item in best.items()])
            agreed, answers = self._ask_judge(rows)
            rejected: dict[int, list[int]] = {}
            for (slot, item), yes, answer in zip(best.items(), agreed, answers, strict=True):
                if yes:
                    fallen[slot] = item, answer
                    continue
                self._case(slot).rejected += 1
                hits[slot][item] = _NEVER
                rejected[slot] = hits[slot]
            if rejected:
                self.rows["hit"][[slot * self.num_branches + best[slot] for slot in rejected]] = _NEVER
            hits = {slot: steps for slot, steps in rejected.items() if max(steps) > _NEVER}
        return fallen

    def _ask_judge(self, rows: Tensor) -> tuple[list[bool], list[int]]:
        if self.judge is None:
            return [True] * len(rows), [-1] * len(rows)
        x = self.threat.project(self.rows["found"][rows], self.rows["x0"][rows])
        z_BK = self._judged(self.judge, x)
        if not bool(z_BK.isfinite().all()):
            raise NonFiniteError("the model returned NaN or infinite logits for an image that was found under attack.")
        self.rows["found"][rows] = x
        return self._items(self.rows).goal.at(rows).success(z_BK).tolist(), z_BK.argmax(1).tolist()

    def _judged(self, judge: Oracle, x: Tensor) -> Tensor:
        try:
            return judge(x)
        except torch.OutOfMemoryError:
            if len(x) == 1:
                self._give_up()
        half = len(x) // 2
        return torch.cat([self._judged(judge, x[:half]), self._judged(judge, x[half:])])

    def _findings(self, chosen: dict[int, tuple[int, int]]) -> list[ImageResult]:
        if not chosen:
            return []
        rows = self._on_device([slot * self.num_branches + item for slot, (item, _) in chosen.items()])
        fell_B = self.rows["hit"][rows] > _NEVER
        best = self.rows.get("state.best", self.rows["state.x"])[rows]
        x0 = self.rows["x0"][rows]
        x = self.threat.project(torch.where(per_image(fell_B, best), self.rows["found"][rows], best), x0)
        sizes = self.threat.distance(x, x0).tolist()
        found = []
        for (slot, (_, answer)), x_one, size, fell in zip(chosen.items(), x.cpu(), sizes, fell_B.tolist(), strict=True):
            case = self._case(slot)
            checks = case.rejected + fell if self.judge is not None else 0
            starts = (case.restart + 1) * self.num_branches * self.per_start
            forwards = starts + case.steps * self.per_step[0] + checks
            backwards, zeros = case.steps * self.per_step[1], case.zeros * self.per_step[1]
            x_one = x_one.clone()  # a view would keep the batch alive
            found.append(
                ImageResult(
                    case.place, fell, x_one, answer, size, forwards, backwards, zeros, case.rejected, case.seconds
                )
            )
        return found

    def _start_next_wave(self, slots: list[int]) -> None:
        if not slots:
            return
        for slot in slots:
            self._case(slot).restart += 1
        at = self._rows_of(slots)
        still = {key: rows[at] for key, rows in self.rows.items() if key in ("x0", "stream") or key.startswith("goal.")}
        self._write(slots, self._begin(still, self.rows["wave"][at] + 1))

    def _empty(self, slots: list[int]) -> None:
        """The rows of these slots idle until somebody takes them: their steps are used up."""
        if not slots:
            return
        for slot in slots:
            self.cases[slot] = None
        at = self._rows_of(slots)
        self.rows["step"][at] = self.limit
        self.rows["hit"][at] = _NEVER


def _earliest(steps: list[int]) -> int:
    return min((at, item) for item, at in enumerate(steps) if at > _NEVER)[1]


def _even_interval(limit: int, about: int) -> int:
    """A number of steps near `about` that divides `limit` with little left over: rows idle for the rest."""
    if about == 1:
        return 1
    around = range(max(1, about // 2), about + about // 2 + 1)
    return min(around, key=lambda k: (math.ceil(limit / k) * k - limit, abs(k - about)))


def _tensors(goal: Goal) -> list[str]:
    return [one.name for one in fields(goal) if isinstance(getattr(goal, one.name), Tensor)]  # type: ignore[arg-type]


def _interleave(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts, 1).flatten(0, 1)
