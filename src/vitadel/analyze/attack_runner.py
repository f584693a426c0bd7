"""Attacks on some images of a study, and which of them fell.

Shape letters: B images, K classes, T targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitadel.attacks import Engine, IterativeAttack, Oracle, WorkQueue, as_logits, is_zero, isolated
from vitadel.core.device import device_of
from vitadel.core.errors import UsageError
from vitadel.core.oom import in_batches
from vitadel.core.progress import Notify
from vitadel.core.rng import RandomStreams, fold_seed
from vitadel.evaluate.images import Images
from vitadel.goals import Goal, Untargeted, top_other_classes
from vitadel.losses import Loss, cross_entropy
from vitadel.threats import Threat


@dataclass(frozen=True, slots=True)
class AttackRunner:
    """A model and images to attack it with; every search runs and is judged in float32."""

    model: nn.Module
    images: Images
    seed: int
    batch: int | None
    notify: Notify

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    def rows_at_once(self) -> int:
        """Of what needs no more memory than a forward pass."""
        return self.batch or 64

    def logits(self, rows: Tensor, model: nn.Module | None = None) -> Tensor:
        """Answers of the model, or of another in its place, on the CPU."""
        asked = model or self.model
        with isolated(asked, self.seed, self.device), torch.no_grad():
            return as_logits(asked(self.images.images(rows).to(self.device))).float().cpu()

    def right(self, model: nn.Module | None = None) -> tuple[list[int], int]:
        """The rows that the model classifies rightly, and how many classes it knows."""
        found: list[int] = []
        classes = 0
        for rows, z_BK in in_batches(
            torch.arange(len(self.images)), self.rows_at_once(), lambda rows: self.logits(rows, model)
        ):
            label_B, classes = self.images.labels[rows], z_BK.shape[1]
            if int(label_B.max()) >= classes or int(label_B.min()) < 0:
                raise UsageError(
                    f"the model knows {classes} classes, the data has labels from {int(label_B.min())} to "
                    f"{int(label_B.max())}. Is it the model for this data set?"
                )
            if bad := int((~z_BK.isfinite()).any(1).sum()):
                raise UsageError(f"the model returned NaN or infinite logits for {bad} of {len(rows)} clean images.")
            found += rows[z_BK.argmax(1) == label_B].tolist()
        return found, classes

    def run_attack(
        self,
        name: str,
        walk: IterativeAttack,
        rows: Sequence[int],
        threat: Threat,
        *,
        loss: Loss = cross_entropy,
        model: nn.Module | None = None,
    ) -> dict[str, object]:
        """The rows of `rows` that fall to `walk`; the name chooses the random numbers, so each has its own."""
        asked, at = model or self.model, torch.tensor(rows, dtype=torch.int64)
        told: dict[str, object] = {"tried": len(rows), "fell": [], "forwards": 0, "backwards": 0, "zero_gradients": 0}
        if not rows:
            return told
        classes = self.logits(at[:1]).shape[1]
        oracle = Oracle(asked, int(self.images.labels[at].max()))
        seed = fold_seed(self.seed, *name.encode())

        def fetch(places: Tensor) -> tuple[Tensor, Goal, Tensor]:
            chosen = at[places.cpu()]
            x = self.images.images(chosen).to(self.device)
            label_B = self.images.labels[chosen].to(self.device)
            nearest_BT = torch.zeros(len(x), 0, dtype=torch.int64, device=self.device)
            if walk.targets:
                with torch.no_grad():
                    nearest_BT = top_other_classes(oracle(x), label_B, walk.num_branches(classes))
            return x, Untargeted(label_B, loss), nearest_BT

        pool = WorkQueue(RandomStreams.of(seed, at.to(self.device)), classes, fetch)
        fell: list[int] = []
        costs, done = torch.zeros(3, dtype=torch.float64), 0
        with isolated(asked, seed, self.device):
            for findings in self._engine(at).run(walk, oracle, pool, threat, oracle):
                for one in findings:
                    fell += [rows[one.index]] if one.success else []
                    costs += torch.tensor([one.forwards, one.backwards, one.zero_gradients], dtype=torch.float64)
                done += len(findings)
                self.notify(name, done, len(rows), {"fell": len(fell)})
        counts = dict(zip(("forwards", "backwards", "zero_gradients"), (round(c) for c in costs.tolist()), strict=True))
        return {**told, "fell": sorted(fell), **counts}

    def _engine(self, at: Tensor) -> Engine:
        return Engine(batch_size=self.batch, precision="float32").on(self.device, self.images.images(at[:1]).numel())

    def zero_gradients(self, loss: Loss, threat: Threat | None) -> int:
        """How many input gradients are exactly zero: on the images, or at a random point of the threat."""
        seed = fold_seed(self.seed, *b"zero-gradients")

        def count(rows: Tensor) -> int:
            x = self.images.images(rows).to(self.device)
            with isolated(self.model, seed, self.device):
                if threat is not None:
                    x = threat.sample(x, RandomStreams.of(seed, rows.to(self.device)))
                goal = Untargeted(self.images.labels[rows].to(self.device), loss)
                _, grad, _ = Oracle(self.model).gradient(x, goal)
            return int(is_zero(grad).sum())

        return sum(found for _, found in in_batches(torch.arange(len(self.images)), self.rows_at_once(), count))
