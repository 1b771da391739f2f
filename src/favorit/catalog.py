"""All components by kind, from the registries."""

from __future__ import annotations

from collections.abc import Callable

from favorit.attention import KERNELS, LOCALS, MIXERS
from favorit.data import AUGMENTS, PREPROCESSES
from favorit.errors import unknown
from favorit.fields import DEFAULTS, DESCRIPTIONS
from favorit.model import HEADS, LAYOUTS, PRESETS, STEMS
from favorit.position import POSITIONS
from favorit.spec import Registry, Spec
from favorit.training.optim import OPTIMIZERS, SCHEDULES

REGISTRIES: dict[str, Registry] = {
    "mixers": MIXERS,
    "kernels": KERNELS,
    "positions": POSITIONS,
    "stems": STEMS,
    "heads": HEADS,
    "locals": LOCALS,
    "optimizers": OPTIMIZERS,
    "schedules": SCHEDULES,
    "augments": AUGMENTS,
    "preprocesses": PREPROCESSES,
}


def _layout(name: str) -> str:
    return " | ".join(str(spec) for spec in LAYOUTS[name](Spec("performer"), 4)) + "  at depth 4"


def _preset(name: str) -> str:
    return ", ".join(f"{key}={value}" for key, value in PRESETS[name].items()) or "the defaults of ModelConfig"


# The fields of `--set section.key=value` with their defaults and descriptions.
FIELDS = {
    name: f"{DESCRIPTIONS.get(name, '')} Default: {default!r}" for name, default in DEFAULTS.items() if "." in name
}

# Kinds that are listed in the order of their table, not sorted, with the function that describes an entry.
TABLES: dict[str, tuple[dict, Callable[[str], str]]] = {
    "layouts": (LAYOUTS, _layout),
    "presets": (PRESETS, _preset),
    "fields": (FIELDS, FIELDS.__getitem__),
}
KINDS = (*REGISTRIES, *TABLES)


def list_components(kind: str) -> list[str]:
    """The names of one kind of component, such as mixers, kernels, presets, optimizers or fields (see `KINDS`)."""
    if kind in TABLES:
        return list(TABLES[kind][0])
    if kind not in REGISTRIES:
        raise unknown("kind of component", kind, KINDS)
    return sorted(REGISTRIES[kind])


def describe(kind: str, name: str) -> str:
    """One line about a component: its signature and summary, the mixers of a layout, the fields of a preset, or the
    default of a field and what it is.
    """
    if kind in TABLES:
        return TABLES[kind][1](name)
    entry = REGISTRIES[kind][name]
    return f"{entry.signature}  {entry.summary}"
