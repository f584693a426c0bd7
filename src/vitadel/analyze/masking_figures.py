"""The exhibits of the study of gradient masking."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitadel.analyze.attention_gaps import EDGES, LINES
from vitadel.analyze.masking_measurements import MaskingResults
from vitadel.runs.exhibits import Cell, Exhibit, Histogram, Histograms, Line, Lines, Table
from vitadel.threats import Threat, bounds_each_pixel

_MERGED = 4  # bins of the counts per bin of the figure, which has five per decade
_FORMATS = ("fp16", "fp16", "fp32", "fp32")  # of LINES


def masking_exhibits(measured: MaskingResults, threat: Threat) -> list[Exhibit]:
    """The evidence, histograms of gaps, accuracy against radius, steps and rescaled layers, and tables."""
    return [
        _evidence(measured),
        _histograms(measured),
        _radii(measured, threat),
        _steps(measured),
        _blocks(measured),
        _attacks(measured),
        _gradients(measured),
        _gaps(measured),
    ]


def _evidence(measured: MaskingResults) -> Table:
    return Table(
        "Evidence",
        "The verdict that each test points to. It is derived from the decisive tests; the others support it.",
        ["test", "points to", "decisive", "result"],
        [[one.code, one.points, "yes" if one.is_decisive else "no", one.sentence] for one in measured.verdict.evidence],
    )


def _histograms(measured: MaskingResults) -> Histograms:
    return Histograms(
        "Gap between the two largest scores of a row",
        "For each attention layer, the share of rows by the gap between their two largest pre-softmax scores, five "
        "bins per decade; filled: the original model, outlined: with scores rescaled by AAS. Beyond a line the second "
        "softmax weight is smaller than the smallest normal number of a format, then than its smallest number.",
        [
            Histogram(str(plain["name"]).removesuffix(".attn"), [_shares(plain["all"]), _shares(scaled["all"])])
            for plain, scaled in zip(measured.plain, measured.scaled, strict=True)
        ],
        series=["original", "rescaled by AAS"],
        edges=EDGES[::_MERGED],
        x_label="gap (logarithmic)",
        y_label="share of rows per bin",
        log_x=True,
        references=list(zip(_FORMATS, LINES.values(), strict=True)),
    )


def _shares(gaps: Mapping[str, Any]) -> list[float]:
    """Shares of rows in the merged bins; the first and the last include values outside the scale."""
    below, *inside, above = gaps["counts"]
    inside[0] += below
    inside[-1] += above
    return [sum(inside[i : i + _MERGED]) / max(1, gaps["rows"]) for i in range(0, len(inside), _MERGED)]


def _radii(measured: MaskingResults, threat: Threat) -> Lines:
    per_pixel = bounds_each_pixel(threat)
    x = [0.0, *(point.eps * (255 if per_pixel else 1) for point in measured.eps)]
    return Lines(
        "Accuracy and radius",
        "Accuracy under PGD at increasing radii; the last ball contains the L-infinity ball of 100/255, within which "
        "no model should be robust.",
        [Line.of("PGD", x, [measured.clean, *(point.accuracy for point in measured.eps)])],
        x_label="eps, in 1/255" if per_pixel else f"eps ({str(threat).partition(':')[0]})",
        y_label="accuracy",
        y_range=(0.0, 1.02),
    )


def _steps(measured: MaskingResults) -> Lines:
    steps, aas = [point.steps for point in measured.iterations], [point.aas for point in measured.iterations]
    return Lines(
        "Accuracy and steps",
        "Accuracy under PGD against its steps, and under PGD or the same attack on rescaled attention (AAS).",
        [
            Line.of("PGD", steps, [point.pgd for point in measured.iterations]),
            Line("PGD or AAS", steps, [one.accuracy for one in aas], dashed=True),
        ],
        x_label="steps",
        y_label="accuracy",
        log_x=True,
        y_range=(0.0, 1.02),
    )


def _blocks(measured: MaskingResults) -> Lines:
    blocks = [point.blocks for point in measured.blocks]
    return Lines(
        "Accuracy and rescaled attention layers",
        "PGD with gradients of the model whose first attention layers are rescaled. An attacker achieves what is "
        "evaluated on the model itself; the paper evaluates the rescaled model, which is a different model.",
        [
            Line.of("evaluated on the model itself", blocks, [point.original for point in measured.blocks]),
            Line(
                "evaluated on the rescaled model (paper)",
                blocks,
                [point.rescaled.accuracy for point in measured.blocks],
                dashed=True,
            ),
            Line(
                "rescaled model, no attack",
                blocks,
                [point.rescaled_clean.accuracy for point in measured.blocks],
                dashed=True,
            ),
        ],
        x_label="rescaled attention layers, first to last",
        y_label="accuracy",
        y_range=(0.0, 1.02),
    )


def _attacks(measured: MaskingResults) -> Table:
    rows: list[list[Cell]] = []
    for one in measured.attacks:
        share = (None, None, None) if one.share is None else (one.share.accuracy, one.share.low, one.share.high)
        costs = (one.forwards, one.backwards, one.zero_gradients)
        rows.append([one.name, one.tried, one.broken, *share, *costs])
    return Table(
        "Attacks",
        "Images that each attack tried and broke, with Wilson's 95% interval of the share, and its cost in passes per "
        "image, summed over images.",
        ["attack", "tried", "broken", "share", "low", "high", "forwards", "backwards", "zero gradients"],
        rows,
    )


def _gradients(measured: MaskingResults) -> Table:
    return Table(
        "Input gradients that are exactly zero",
        f"Share of {measured.n} images, with Wilson's 95% interval: at the images and at a random point of the threat.",
        ["loss and place", "share", "low", "high"],
        [[name, share.accuracy, share.low, share.high] for name, share in measured.gradients.items()],
    )


def _gaps(measured: MaskingResults) -> Table:
    rows: Sequence[Sequence[Cell]] = [
        [
            one["name"],
            under,
            gaps["rows"],
            gaps["median"],
            gaps["max"],
            *(b / max(1, gaps["rows"]) for b in gaps["beyond"]),
        ]
        for plain, scaled in zip(measured.plain, measured.scaled, strict=True)
        for one, under in ((plain, "no"), (scaled, "yes"))
        for gaps in [one["all"]]
    ]
    return Table(
        "Gaps (table)",
        "For each attention layer the number of rows, the median and the largest gap, and the share of rows beyond "
        "each line.",
        ["attention", "rescaled", "rows", "median", "largest", *(f"beyond {name}" for name in LINES)],
        rows,
        digits=4,
    )
