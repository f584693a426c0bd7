"""What training minimises: (model, x, y, seed) -> Step."""

from vitadel.objectives.adversarial import Adversarial
from vitadel.objectives.attention_scaling import AttentionScaling, Scope
from vitadel.objectives.awp import AWP
from vitadel.objectives.base import Examples, Objective, Step
from vitadel.objectives.hostile import Hostile
from vitadel.objectives.mart import Mart
from vitadel.objectives.moment import Each, Moment
from vitadel.objectives.standard import Standard
from vitadel.objectives.tradeoff import TradeOff
from vitadel.objectives.trades import Trades

__all__ = [
    "AWP",
    "Adversarial",
    "AttentionScaling",
    "Each",
    "Examples",
    "Hostile",
    "Mart",
    "Moment",
    "Objective",
    "Scope",
    "Standard",
    "Step",
    "TradeOff",
    "Trades",
]
