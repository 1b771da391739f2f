"""`--set section.key=value`: any field of a configuration from the command line."""

from __future__ import annotations

from typing import Any

from favorit.errors import FavoritError, unknown
from favorit.spec import literal


def parse_settings(settings: list[str], sections: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """['model.dim=128'] -> {'model': {'dim': 128}}; values are Python literals, anything else is text."""
    found: dict[str, dict[str, Any]] = {section: {} for section in sections}
    for setting in settings:
        place, equals, value = setting.partition("=")
        section, dot, key = place.strip().partition(".")
        if not (equals and dot and key):
            raise FavoritError(f"--set {setting!r} is not valid: write --set section.key=value, for example --set {sections[0]}.dim=128")
        if section not in found:
            raise unknown("section in --set", section, sections)
        found[section][key] = literal(value.strip())
    return found
