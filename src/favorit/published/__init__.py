"""Numbers that others published, with where they come from and what a reader must know before comparing."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

from favorit.errors import unknown


@dataclass(frozen=True)
class Table:
    """`rows` by column, numbers as numbers and empty cells as None; `flags` say how the numbers differ from ours by their making."""

    rows: tuple[dict[str, str | float | None], ...]
    source: str
    hardware: str
    flags: tuple[str, ...]


# source, hardware, flags
ABOUT: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "synthetic_imagenet": (
        "Hybrid Transformer Models with Performer and Regular Attention (2025), table 3",
        "NVIDIA T4",
        ("other hardware", "softmax is the naive form, not a fused kernel", "Performer layers of performer-pytorch"),
    ),
}


def read(name: str) -> Table:
    """A published table by name."""
    if name not in ABOUT:
        raise unknown("published table", name, ABOUT)
    lines = files(__name__).joinpath(f"{name}.csv").read_text().splitlines()
    rows = tuple({column: _value(text) for column, text in row.items()} for row in csv.DictReader(lines))
    return Table(rows, *ABOUT[name])


def _value(text: str) -> str | float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text
