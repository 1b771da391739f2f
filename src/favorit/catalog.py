"""What there is: the names that each axis can take, from the registries."""

from __future__ import annotations

from collections.abc import Callable

from favorit.attention import KERNELS, LOCALS, MIXERS
from favorit.config import SECTIONS
from favorit.data import AUGMENTS, PREPROCESSES
from favorit.errors import unknown
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


# What `--set section.key=value` can set, with the default of each.
FIELDS = {
    f"{section}.{key}": repr(field.default)
    for section, config in SECTIONS.items()
    for key, field in config.model_fields.items()
}

# Tables in the order they were written, with what describes an entry.
TABLES: dict[str, tuple[dict, Callable[[str], str]]] = {
    "layouts": (LAYOUTS, _layout),
    "presets": (PRESETS, _preset),
    "fields": (FIELDS, FIELDS.__getitem__),
}
KINDS = (*REGISTRIES, *TABLES)


def list_components(kind: str) -> list[str]:
    """The names of a kind: mixers, kernels, positions, stems, heads, locals, layouts, presets, the parts of training,
    or all fields.
    """
    if kind in TABLES:
        return list(TABLES[kind][0])
    if kind not in REGISTRIES:
        raise unknown("kind of component", kind, KINDS)
    return sorted(REGISTRIES[kind])


def written(kind: str, name: str) -> str:
    """What there is to know about a component in one line: its call with defaults and its formula, or the fields of a
    preset.
    """
    if kind in TABLES:
        return TABLES[kind][1](name)
    entry = REGISTRIES[kind][name]
    return f"{entry.signature}  {entry.summary}"
