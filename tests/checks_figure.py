"""A check that only the tests use: whether a figure lies inside its canvas."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def is_inside_canvas(figure: Figure) -> bool:
    """True if the canvas cuts nothing: no text, legend or axis."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.get_tightbbox(canvas.get_renderer())  # in inches
    width, height = figure.get_size_inches()
    return box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
