"""What a hold-out score gives away while training still runs."""

from collections.abc import Mapping
from dataclasses import dataclass

# one step fells few images and many steps fell them all: the model has learned to hide its slope from one step
_GAP = 0.2
# robust accuracy that falls this far below its best is not coming back by itself
_FALL = 0.2
# and this far is more than chance makes of some hundred images, the same at every check
_SLIP = 0.06
# accuracy on one-step images above that on clean ones, by more than chance on a thousand images
_LEAK = 0.03


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something a person should look at, as data: what, in words, and the numbers behind it."""

    code: str
    sentence: str
    evidence: Mapping[str, float]


def alarms(scores: Mapping[str, float], best: float | None) -> list[Alarm]:
    """Alarms for scores named clean, fgsm (one step) and robust (many), and rob_clean and rob_fgsm of a robust head.

    `best` is the best robust score so far.
    """
    found = []
    clean, one_step, robust = (scores.get(name) for name in ("clean", "fgsm", "robust"))
    if one_step is not None and robust is not None and one_step - robust > _GAP:
        sentence = (
            f"catastrophic overfitting: one step leaves {one_step:.1%} right, many steps {robust:.1%}. "
            "Use more attack steps, a smaller step size or a shorter training"
        )
        found.append(Alarm("overfitting", sentence, {"fgsm": one_step, "robust": robust}))
    if one_step is not None and clean is not None and one_step - clean > _LEAK:
        sentence = (
            f"label leaking: images attacked by one step are classified better ({one_step:.1%}) than clean ones "
            f"({clean:.1%}). Use two attack steps or a random start"
        )
        found.append(Alarm("label-leaking", sentence, {"fgsm": one_step, "clean": clean}))
    head_clean, head_one_step = scores.get("rob_clean"), scores.get("rob_fgsm")
    if head_clean is not None and head_one_step is not None and head_one_step - head_clean > _LEAK:
        sentence = (
            f"label leaking in the robust head: it gets {head_one_step:.1%} right of images attacked through the joint "
            f"answer, and {head_clean:.1%} of clean ones. It may read the attack; try objective.attacks_own=true"
        )
        found.append(Alarm("head-leaking", sentence, {"rob_fgsm": head_one_step, "rob_clean": head_clean}))
    if best is not None and robust is not None and best - robust > _FALL:
        sentence = f"robust accuracy fell from {best:.1%} to {robust:.1%}; the best weights are kept"
        found.append(Alarm("robust-fell", sentence, {"best": best, "robust": robust}))
    elif best is not None and robust is not None and best - robust > _SLIP:
        sentence = (
            f"robust overfitting: robust accuracy was {best:.1%} and is {robust:.1%}; the best weights are kept. "
            "Train for fewer epochs, or mix images (plan.mixing)"
        )
        found.append(Alarm("robust-overfitting", sentence, {"best": best, "robust": robust}))
    return found
