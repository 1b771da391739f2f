"""The figure of `favorit doctor`: maps of layers x heads. `grids` computes the data, `draw` draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from favorit.bench.approximation import UNIFORM
from favorit.bench.doctor.advice import MIN_EFFECT, ROUNDING
from favorit.bench.doctor.layer_stats import OWN, SWEPT, Finding
from favorit.spec import parse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Grid = tuple[tuple[float, ...], ...]

# The color scale ends at a tenth of uniform's error and at ten times uniform's error.
MAX_RATIO = 10.0


@dataclass(frozen=True)
class Grids:
    """Rows are layers, columns are heads.

    `own` and `relative` are the errors of the model's own mixers and of `kernel`, divided by the error of uniform
    averaging. `own` is None if all mixers are softmax. `logit_bounds` are means of |q||k|/sqrt(D). `idle` marks heads
    in which uniform averaging changes the output so little that the ratios are meaningless.
    """

    kernel: str
    mixers: tuple[str, ...]
    own: Grid | None
    relative: Grid
    logit_bounds: Grid
    idle: tuple[tuple[bool, ...], ...]


def grids(findings: Sequence[Finding]) -> Grids:
    """The data of the figure."""
    whole = [finding for finding in findings if finding.head is None]
    swept = [name for name in whole[0].errors if parse(name).name == SWEPT]
    kernel = max(swept, key=lambda name: parse(name).kwargs["m"])
    rows = [
        [finding for finding in findings if finding.layer == layer.layer and finding.head is not None]
        for layer in whole
    ]

    def relative(name: str) -> Grid:
        return tuple(tuple(head.errors[name] / max(head.errors[UNIFORM], 1e-9) for head in row) for row in rows)

    return Grids(
        kernel=kernel,
        mixers=tuple(layer.mixer for layer in whole),
        own=relative(OWN) if any(layer.errors[OWN] >= ROUNDING for layer in whole) else None,
        relative=relative(kernel),
        logit_bounds=tuple(tuple(head.logit_bound for head in row) for row in rows),
        idle=tuple(tuple(head.errors[UNIFORM] < MIN_EFFECT for head in row) for row in rows),
    )


def draw(content: Grids, title: str) -> Figure:
    """The maps side by side, with the value in each cell that is not idle."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure

    layers, heads = len(content.mixers), len(content.logit_bounds[0])
    errors = {f"{content.kernel}: error / uniform's": content.relative}
    if content.own is not None:
        errors = {"own mixers: error / uniform's": content.own, **errors}
    # At least 3.4 inches per map, the width of its title.
    width = 2.0 + (len(errors) + 1) * max(3.4, 0.7 * heads + 1.2)
    figure = Figure(figsize=(width, 2.2 + 0.55 * layers), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    *first, last = figure.subplots(1, len(errors) + 1, sharey=True)
    left = first[0]
    for axes, (name, values) in zip(first, errors.items(), strict=True):
        ratio = _map(figure, axes, values, name, "RdBu_r", LogNorm(1 / MAX_RATIO, MAX_RATIO), content.idle)
        ratio.set_ticks([0.1, 0.3, 1, 3, 10], labels=["0.1", "0.3", "1", "3", "10"])
        ratio.ax.minorticks_off()
    largest = max(max(row) for row in content.logit_bounds)
    _map(
        figure,
        last,
        content.logit_bounds,
        "mean of |q||k|/sqrt(D)",
        "viridis",
        Normalize(0, largest),
        ((False,) * heads,) * layers,
    )
    left.set_yticks(range(layers), [f"{layer}  {mixer}" for layer, mixer in enumerate(content.mixers, 1)])
    left.set_ylabel("layer")
    if any(any(row) for row in content.idle):
        figure.supxlabel(
            f"gray: averaging all values changes the output by less than {MIN_EFFECT:.0%}",
            fontsize=9,
            x=0.01,
            ha="left",
        )
    return figure


def _map(
    figure: Figure, axes: Axes, values: Grid, title: str, colors: str, norm: Normalize, gray: Sequence[Sequence[bool]]
) -> Colorbar:
    """Draws cells colored by value, with the value in each; cells in `gray` are gray."""
    import numpy as np

    shown = np.ma.masked_array(values, np.array(gray))
    image = axes.imshow(shown, cmap=colors, norm=norm, aspect="auto")
    axes.set_facecolor("#d8d8d8")
    for (row, column), value in np.ndenumerate(shown.data):
        if gray[row][column]:
            continue
        red, green, blue, _ = image.cmap(norm(max(value, norm.vmin or value)))
        text_color = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.55 else "white"
        axes.text(
            column,
            row,
            f"{value:.2f}" if value < 10 else f"{value:.0f}",
            ha="center",
            va="center",
            fontsize=9,
            color=text_color,
        )
    axes.set_xticks(range(shown.shape[1]), [str(head) for head in range(1, shown.shape[1] + 1)])
    axes.set_xlabel("head")
    axes.set_title(title, fontsize=10.5, loc="left")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure.colorbar(image, ax=axes, pad=0.02)
