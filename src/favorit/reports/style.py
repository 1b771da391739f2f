"""How a variant looks in every figure: its label, color and shape.

In a study of hybrids, the color stands for the layout and the shape for the kernel; in other studies, the color for the
mixer and the shape for the position. So families differ at a glance, also with more variants than there are colors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from favorit.charts.palette import DASHES, SHAPES, colors
from favorit.config import RunConfig
from favorit.model.layout import LAYOUTS, layers

BASELINE = "softmax"

# Parts of a name whose values speak for themselves.
SILENT = ("data", "layout", "performer", "preset", "layers", "position")


@dataclass(frozen=True)
class Style:
    """The look of one variant. `family` is what the color stands for, `kind` what the shape stands for."""

    label: str
    family: str
    kind: str
    color: str
    shape: str
    dash: tuple[int, ...]


def styles(configs: Mapping[str, RunConfig]) -> dict[str, Style]:
    """The style of each variant of a study, given the configuration of each by name."""
    by_layout = any(is_hybrid(config) for config in configs.values())
    families = {name: _family(config, by_layout) for name, config in configs.items()}
    kinds = {name: _kind(config, by_layout) for name, config in configs.items()}
    palette = colors(dict.fromkeys(families.values()))
    places = {name: number % len(SHAPES) for number, name in enumerate(dict.fromkeys(kinds.values()))}
    return {
        name: Style(
            label(name),
            families[name],
            kinds[name],
            palette[families[name]],
            SHAPES[places[kinds[name]]],
            DASHES[places[kinds[name]]],
        )
        for name in configs
    }


def is_baseline(config: RunConfig) -> bool:
    """True if every layer has softmax attention."""
    return _mixers(config) == [BASELINE]


def is_hybrid(config: RunConfig) -> bool:
    """True if the layers have different mixers by a named layout."""
    return config.model.layout in LAYOUTS and len(_mixers(config)) > 1


def _family(config: RunConfig, by_layout: bool) -> str:
    layout = config.model.layout
    return layout if by_layout and layout in LAYOUTS else "+".join(_mixers(config))


def _kind(config: RunConfig, by_layout: bool) -> str:
    if by_layout:
        return "+".join(name for name in _mixers(config) if name != BASELINE) or BASELINE
    return config.model.position


def _mixers(config: RunConfig) -> list[str]:
    model = config.model
    return list(dict.fromkeys(spec.name for spec in layers(model.layout, model.performer, model.depth)))


def label(name: str) -> str:
    """The name of a variant without the names of fields that need none: `performer_first relu(m=128)`."""
    parts = [part.partition("=") for part in name.split(" ")]
    return " ".join(
        value if equals and field in SILENT else f"{field}{equals}{value}" for field, equals, value in parts
    )
