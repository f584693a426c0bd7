"""Images that are not in the numbers because somebody asked for that."""

from vitadel.attacks import Flag

# skipped images that a flag names
_NAMED = 5


def skipped_flags(images: object) -> list[Flag]:
    """What a reader must know of images that were left out because somebody asked for it."""
    left_out = tuple(getattr(images, "skipped", ()))
    if not left_out:
        return []
    named = "; ".join(left_out[:_NAMED]) + ("; ..." if len(left_out) > _NAMED else "")
    sentence = f"{len(left_out)} images were skipped on request: {named}"
    return [Flag("images-skipped", sentence, {"images": len(left_out)})]
