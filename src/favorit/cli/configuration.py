"""The configuration that a command line describes: a preset, then a file, then `--set` and the other options."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from favorit.config import SECTIONS, RunConfig
from favorit.errors import FavoritError
from favorit.fields import flatten, parse_settings
from favorit.files import read_yaml
from favorit.model.presets import PRESETS, current_name
from favorit.spec import literal
from favorit.training.components import import_components
from favorit.training.find import open_run
from favorit.training.packed import SUFFIX

# Suffixes of a file with a configuration. Other text that is no path names a run.
TEXT_FILES = {".yaml", ".yml", ".json"}
# Fields that the data set determines.
FROM_DATA = {"image_size", "channels", "classes"}


def build_config(
    file: Path | None,
    model: str | None,
    settings: list[str],
    *,
    data: str | None,
    epochs: int | None,
    seed: int | None,
    skip_unreadable: bool = False,
) -> RunConfig:
    """The configuration of `favorit train`. `model` is the name of a preset."""
    values: dict[str, Any] = _read(file) if file is not None else {}
    sections: dict[str, dict[str, Any]] = {section: dict(values.pop(section, None) or {}) for section in SECTIONS}
    in_file = sections["model"].pop("preset", None)
    chosen = in_file if model is None else model
    if chosen is not None:
        if not isinstance(chosen, str):
            raise FavoritError(
                f"--config {file}: model.preset={chosen!r} is not a preset name: `favorit list presets` lists them"
            )
        sections["model"] = {**PRESETS[current_name(chosen)], **sections["model"]}
    changes = parse_settings(settings, tuple(SECTIONS), ("seed",))
    for key in FROM_DATA & changes["model"].keys():
        resize = " (data.preprocess=resize(64) makes images of 64 x 64)" if key == "image_size" else ""
        raise FavoritError(f"--set model.{key} is not valid: the data set determines it{resize}")
    options = {
        "data.name": (f"data {data}", data),
        "train.epochs": (f"epochs {epochs}", epochs),
        "seed": (f"seed {seed}", seed),
        "data.skip_unreadable": ("skip-unreadable", skip_unreadable or None),
    }
    _reject_duplicates(flatten(changes), options)
    for section in SECTIONS:
        sections[section].update(changes.pop(section))
    values.update(changes)
    if data is not None:
        sections["data"]["name"] = data
    if skip_unreadable:
        sections["data"]["skip_unreadable"] = True
    if epochs is not None:
        sections["train"]["epochs"] = epochs
    if seed is not None:
        values["seed"] = seed
    return RunConfig(**{**values, **sections})


def _reject_duplicates(fields: Iterable[str], options: dict[str, tuple[str, Any]]) -> None:
    """Raises an error if a field is given both by --set and by its own option."""
    for field in sorted(set(fields) & options.keys()):
        option, value = options[field]
        if value is not None:
            raise FavoritError(f"--{option} and --set {field} both set {field}: give one of them")


def _read(file: Path) -> dict[str, Any]:
    is_run = file.is_dir() or file.suffix == SUFFIX or not (file.exists() or file.suffix in TEXT_FILES)
    values = open_run(file).config() if is_run else read_yaml(file, f"--config {file}")
    if isinstance(values, dict) and "schema" in values:  # a run, or its config.json
        import_components(values, file)
        values = values.get("config")
    if not isinstance(values, dict) or not all(isinstance(values.get(section) or {}, dict) for section in SECTIONS):
        raise FavoritError(
            f"--config {file}: expected a mapping with sections among {', '.join(SECTIONS)} (each key: value), "
            "and optionally seed"
        )
    return {str(key): _parse(value) for key, value in values.items()}


def _parse(value: Any) -> Any:
    """The value with text keys. Text values are parsed as in `--set`, because YAML reads 1e-3 as text."""
    if isinstance(value, dict):
        return {str(key): _parse(part) for key, part in value.items()}
    return literal(value) if isinstance(value, str) else value
