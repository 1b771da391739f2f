"""Dotted names of the fields of a run's configuration: `section.key`, such as `train.lr`, or `seed`.

The command line, studies and search spaces all name fields this way. A third part names a parameter of the component
in the field: `model.performer.m`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from favorit.config import SECTIONS, RunConfig
from favorit.errors import FavoritError, unknown
from favorit.spec import literal

# Every field of RunConfig with its default.
DEFAULTS: dict[str, Any] = {
    f"{section}.{key}": field.default
    for section, config in SECTIONS.items()
    for key, field in config.model_fields.items()
} | {name: field.default for name, field in RunConfig.model_fields.items() if name not in SECTIONS}


def nest(changes: Mapping[str, Any]) -> dict[str, Any]:
    """{"model.dim": 64, "seed": 1} -> {"model": {"dim": 64}, "data": {}, "train": {}, "seed": 1}."""
    nested: dict[str, Any] = {section: {} for section in SECTIONS}
    for name, value in changes.items():
        section, dot, key = name.partition(".")
        if dot:
            nested[section][key] = value
        else:
            nested[name] = value
    return nested


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `nest`: {"model": {"dim": 64}, "seed": 1} -> {"model.dim": 64, "seed": 1}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if name in SECTIONS:
            flat |= {f"{name}.{key}": part for key, part in value.items()}
        else:
            flat[name] = value
    return flat


def get_field(config: RunConfig, name: str) -> Any:
    """The value of a dotted field."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def fields_set(config: RunConfig) -> dict[str, Any]:
    """{dotted field: value} for the fields that were set explicitly."""
    sections = {name: getattr(config, name).model_fields_set for name in config.model_fields_set & SECTIONS.keys()}
    names = [f"{section}.{key}" for section, keys in sections.items() for key in keys]
    names += config.model_fields_set - SECTIONS.keys()
    return {name: get_field(config, name) for name in names}


def replace_fields(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """A copy of the configuration with these dotted fields changed."""
    values = nest(changes)
    sections = {name: getattr(config, name).replace(**part) for name in SECTIONS if (part := values.pop(name))}
    return config.replace(**sections, **values)


def split_parameter(name: str) -> tuple[str, str]:
    """`model.performer.m` -> (`model.performer`, `m`): the field, and the parameter of its component or ""."""
    section, _, rest = name.partition(".")
    key, _, parameter = rest.partition(".")
    return f"{section}.{key}" if key else section, parameter


def parse_settings(settings: Iterable[str], sections: tuple[str, ...], fields: tuple[str, ...] = ()) -> dict[str, Any]:
    """Values of `--set`: ['model.dim=128', 'seed=3'] -> {'model': {'dim': 128}, 'seed': 3}.

    Raises an error for a section not in `sections` or a top-level field not in `fields`. Values are parsed by
    `spec.literal`.
    """
    found: dict[str, Any] = {section: {} for section in sections}
    for setting in settings:
        name, equals, value = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if equals and section in fields and not dot:
            found[section] = literal(value.strip())
        elif not (equals and dot and key):
            raise FavoritError(
                f"--set {setting!r} is not valid: write --set section.key=value, "
                f"for example --set {sections[0]}.dim=128"
            )
        elif section not in sections:
            raise unknown("section in --set", section, sections)
        else:
            found[section][key] = literal(value.strip())
    return found
