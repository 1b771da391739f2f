"""A run's configuration: a preset, changed by a file, changed by settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from favorit.cli.settings import parse_settings
from favorit.config import SECTIONS, RunConfig
from favorit.errors import FavoritError
from favorit.model.presets import PRESETS, current_name
from favorit.spec import literal
from favorit.training.find import open_run
from favorit.training.packed import SUFFIX

# What the data decide, whatever a model's configuration says.
BY_DATA = {"image_size", "channels", "classes"}


def compose(
    file: Path | None, model: str | None, settings: list[str], *, data: str | None, epochs: int | None, seed: int | None
) -> RunConfig:
    """The configuration that `favorit train` was asked for."""
    values: dict[str, Any] = _read(file) if file is not None else {}
    sections: dict[str, dict[str, Any]] = {section: dict(values.pop(section, None) or {}) for section in SECTIONS}
    named = sections["model"].pop("preset", None)
    chosen = model or named
    if chosen is not None:
        if not isinstance(chosen, str):
            raise FavoritError(
                f"--config {file}: model.preset={chosen!r} is not the name of a preset: `favorit list presets` has them"
            )
        sections["model"] = {**PRESETS[current_name(chosen)], **sections["model"]}
    changes = parse_settings(settings, tuple(SECTIONS), ("seed",))
    for key in BY_DATA & changes["model"].keys():
        resize = " (data.preprocess=resize(64) makes images of 64 x 64)" if key == "image_size" else ""
        raise FavoritError(f"--set model.{key} is not valid: it follows from the data{resize}")
    options = {"data.name": ("data", data), "train.epochs": ("epochs", epochs), "seed": ("seed", seed)}
    _refuse_both({f"{section}.{key}" for section in SECTIONS for key in changes[section]} | changes.keys(), options)
    for section in SECTIONS:
        sections[section].update(changes.pop(section))
    values.update(changes)
    if data is not None:
        sections["data"]["name"] = data
    if epochs is not None:
        sections["train"]["epochs"] = epochs
    if seed is not None:
        values["seed"] = seed
    return RunConfig(**{**values, **sections})


def _refuse_both(fields: set[str], options: dict[str, tuple[str, Any]]) -> None:
    """An error for a field that an option of its own gives a value, and --set another."""
    for field in sorted(fields & options.keys()):
        option, value = options[field]
        if value is not None:
            raise FavoritError(f"--{option} {value} and --set {field} both say {field}: give one of them")


def _read(file: Path) -> dict[str, Any]:
    import yaml

    try:
        values = open_run(file).config() if file.is_dir() or file.suffix == SUFFIX else yaml.safe_load(file.read_text())
    except OSError as error:
        raise FavoritError(f"--config {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FavoritError(f"--config {file} is not YAML: {' '.join(str(error).split())}") from None
    if isinstance(values, dict) and "schema" in values:  # a run, or its config.json
        values = values.get("config")
    if not isinstance(values, dict) or not all(isinstance(values.get(section) or {}, dict) for section in SECTIONS):
        raise FavoritError(
            f"--config {file}: it must hold the sections {', '.join(SECTIONS)}, each with key: value, and seed"
        )
    return {str(key): _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    """Keys are text, and text is read as --set reads it: to YAML 1e-3 is no number."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return literal(value) if isinstance(value, str) else value
