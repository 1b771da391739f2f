"""`--set section.key=value`: any field of a configuration from the command line."""

from __future__ import annotations

from typing import Any

from favorit.errors import FavoritError, unknown
from favorit.spec import literal


def parse_settings(settings: list[str], sections: tuple[str, ...], fields: tuple[str, ...] = ()) -> dict[str, Any]:
    """['model.dim=128', 'seed=3'] -> {'model': {'dim': 128}, 'seed': 3}; values are Python literals, anything else is
    text.
    """
    found: dict[str, Any] = {section: {} for section in sections}
    for setting in settings:
        place, equals, value = setting.partition("=")
        section, dot, key = place.strip().partition(".")
        if equals and section in fields and not dot:
            found[section] = literal(value.strip())
        elif not (equals and dot and key):
            raise FavoritError(
                f"--set {setting!r} is not valid: write --set section.key=value, for example --set {sections[0]}.dim=128"
            )
        elif section not in sections:
            raise unknown("section in --set", section, sections)
        else:
            found[section][key] = literal(value.strip())
    return found
