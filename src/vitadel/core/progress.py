"""How long work tells its caller where it stands."""

from collections.abc import Callable, Mapping

# (what is being done, units done, units in all, numbers worth showing); of 0 units in all, it is a message to be shown
Notify = Callable[[str, int, int, Mapping[str, float]], None]


def silent(what: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
    """Tells nobody."""
