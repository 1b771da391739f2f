"""What there is: the names that each axis can take, from the registries."""

from __future__ import annotations

from favorit.attention import KERNELS, MIXERS
from favorit.errors import unknown
from favorit.model import HEADS, LAYOUTS, PRESETS, STEMS
from favorit.position import POSITIONS
from favorit.spec import Registry, Spec

REGISTRIES: dict[str, Registry] = {"mixers": MIXERS, "kernels": KERNELS, "positions": POSITIONS, "stems": STEMS, "heads": HEADS}
TABLES: dict[str, dict] = {"layouts": LAYOUTS, "presets": PRESETS}
KINDS = (*REGISTRIES, *TABLES)


def list_components(kind: str) -> list[str]:
    """The names of a kind (mixers, kernels, positions, stems, heads, layouts, presets); each builds with its defaults."""
    source = REGISTRIES.get(kind, TABLES.get(kind))
    if source is None:
        raise unknown("kind of component", kind, KINDS)
    return sorted(source) if kind in REGISTRIES else list(source)


def written(kind: str, name: str) -> str:
    """What there is to know about a component in one line: its call with defaults and its formula, or the fields of a preset."""
    if kind in REGISTRIES:
        entry = REGISTRIES[kind][name]
        return f"{entry.signature}  {entry.summary}"
    if kind == "presets":
        return ", ".join(f"{key}={value}" for key, value in PRESETS[name].items()) or "the defaults of ModelConfig"
    return " | ".join(str(spec) for spec in LAYOUTS[name](Spec("performer"), 4)) + "  at depth 4"
