"""The figure of a search: accuracy by trial, and importance of each field.

`history` and `importances` compute the data, `draw` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from favorit.export import save_figure
from favorit.tuning.result import TuneResult


@dataclass(frozen=True)
class History:
    """(trial, accuracy) of complete and pruned trials, and the best complete accuracy up to each trial."""

    complete: list[tuple[int, float]]
    pruned: list[tuple[int, float]]
    best: list[tuple[int, float]]


def history(result: TuneResult) -> History:
    """The data of the left panel."""
    points = {
        state: [(t.number, t.values[0]) for t in result.trials if t.state == state and t.values]
        for state in ("complete", "pruned")
    }
    best: list[tuple[int, float]] = []
    for number, value in points["complete"]:
        best.append((number, max(value, best[-1][1]) if best else value))
    return History(points["complete"], points["pruned"], best)


def importances(result: TuneResult) -> list[tuple[str, list[float]]]:
    """The data of the right panel: each field with its importance for each objective.

    The field that is most important for the first objective comes first.
    """
    names = [name for name in result.objectives if name in result.importances]
    fields: Sequence[str] = list(result.importances[names[0]]) if names else []
    return [(field, [result.importances[name][field] for name in names]) for field in fields]


def draw(result: TuneResult, file: Path) -> None:
    """Writes both panels as a PNG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    found = history(result)
    for points, marker, label in ((found.complete, "o", "complete"), (found.pruned, "x", "pruned")):
        if points:
            left.scatter(*zip(*points, strict=True), marker=marker, s=22, label=label)
    if found.best:
        left.step(*zip(*found.best, strict=True), where="post", color="black", linewidth=1, label="best so far")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set(xlabel="trial", ylabel="validation accuracy", title=result.name)
    if found.complete or found.pruned:
        left.legend(fontsize="small")
    shares = importances(result)
    for index, name in enumerate(result.objectives if shares else ()):
        positions = [row + 0.4 * index for row in range(len(shares))]
        right.barh(positions, [values[index] for _, values in shares], height=0.38, label=name)
    right.set_yticks(range(len(shares)), [field for field, _ in shares])
    right.invert_yaxis()
    right.set(xlabel="importance", title="importance of the fields" if shares else "too few trials for importances")
    if not shares:
        right.set_axis_off()
    if len(result.objectives) > 1 and shares:
        right.legend(fontsize="small")
    save_figure(figure, file, dpi=150)
