"""Values that `favorit <TAB>` completes. Nothing here imports torch.

Names of components need torch, so `favorit list` stores them in the user's cache folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from favorit.files import SCHEMA, cache_folder, read_json, write_json

NAMES = "names.json"  # in the cache folder


class Item(NamedTuple):
    """A completion as the shell scripts of typer read it."""

    value: str
    help: str | None = None
    type: str = "plain"


def store_names(names: Mapping[str, Iterable[str]]) -> None:
    """Stores names by kind for later completions."""
    with suppress(OSError):
        os.makedirs(cache_folder(), exist_ok=True)
        write_json(
            cache_folder() / NAMES, {"schema": SCHEMA, "names": {kind: list(own) for kind, own in names.items()}}
        )


def complete(command: str, parameter: Any) -> None:
    """Lets the shell complete the values of a parameter of a command, if `VALUES` has it."""
    name = parameter.metavar if parameter.param_type_name == "argument" else parameter.opts[-1]
    values = VALUES.get(f"{command} {name}") or VALUES.get(name)
    if values is None:
        return

    def items(context: Any, incomplete: str) -> list[Item]:
        with suppress(Exception):  # an error would garble the prompt
            return [Item(value) for value in values(incomplete) if value.startswith(incomplete)]
        return []

    parameter.shell_complete = items


def _stored(kind: str) -> Callable[[str], Iterable[str]]:
    return lambda incomplete: read_json(str(cache_folder() / NAMES))["names"][kind]


def _presets(incomplete: str) -> Iterable[str]:
    from favorit.model.presets import PRESETS

    return PRESETS


def _studies(incomplete: str) -> Iterable[str]:
    from favorit.study.load import built_in

    return built_in()


def _spaces(incomplete: str) -> Iterable[str]:
    from favorit.cli.tune import SPACES

    return SPACES.split(", ")


def _fields(incomplete: str) -> Iterable[str]:
    from favorit.fields import DEFAULTS

    return (f"{name}=" for name in DEFAULTS)


def _runs(incomplete: str) -> Iterable[str]:
    """The runs of the folder that the text names, else of `runs`. Several runs are separated by commas."""
    from favorit.training.find import stored_runs

    before, comma, last = incomplete.rpartition(",")
    folder, slash, _ = last.rpartition("/")
    return (f"{before}{comma}{folder}{slash}{run.id}" for run in stored_runs(folder or "runs"))


# An option, the metavar of an argument, or either after its command -> the values for a text that begins so.
VALUES: dict[str, Callable[[str], Iterable[str]]] = {
    "--preset": _presets,
    "PRESET": _presets,
    "--set": _fields,
    "--mixer": _stored("mixers"),
    "--kernel": _stored("kernels"),
    "--data": _stored("datasets"),
    "data fetch NAME": _stored("datasets"),
    "data show NAME": _stored("datasets"),
    "KIND": _stored("kinds"),
    "SPACE": _spaces,
    "RUN": _runs,
    "STUDY|VARIANT...": lambda incomplete: [*_studies(incomplete), *_runs(incomplete)],
    "study plan NAME": _studies,
    "study run NAME": _studies,
    "study status NAME": _studies,
    "--scale": lambda incomplete: ("published", "smoke", "small"),
    "--protocol": lambda incomplete: ("published", "sound"),
    "--accelerator": lambda incomplete: ("auto", "cpu", "cuda", "mps"),
    "--device": lambda incomplete: ("cpu", "cuda", "mps"),
}
