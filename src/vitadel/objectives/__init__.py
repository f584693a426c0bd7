"""What training minimises: (model, x, y, seed) -> Step."""

from vitadel.objectives.adversarial import Adversarial
from vitadel.objectives.base import Objective, Step
from vitadel.objectives.standard import Standard

__all__ = ["Adversarial", "Objective", "Standard", "Step"]
