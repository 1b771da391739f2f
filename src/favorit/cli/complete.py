"""Values that `favorit <TAB>` completes. Nothing here imports torch.

Names of components need torch, so `favorit list` stores them in the user's cache folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from favorit.files import SCHEMA, cache_folder, read_json, write_json

Complete = Callable[[str], list[str]]

PATH = "names.json"


def store_names(names: Mapping[str, Iterable[str]]) -> None:
    """Stores names of components by kind for later completions."""
    with suppress(OSError):
        os.makedirs(cache_folder(), exist_ok=True)
        write_json(cache_folder() / PATH, {"schema": SCHEMA, "names": {kind: list(own) for kind, own in names.items()}})


def one_of(*values: str) -> Complete:
    """Completes to one of these values."""
    return _complete(lambda incomplete: values)


def stored(*kinds: str) -> Complete:
    """Completes to the names of these kinds of components."""

    def names(incomplete: str) -> Iterable[str]:
        known = read_json(str(cache_folder() / PATH), names=dict)["names"]
        return [name for kind in kinds for name in known.get(kind, [])]

    return _complete(names)


def _complete(values: Callable[[str], Iterable[str]]) -> Complete:
    """A function for typer's `autocompletion`. An error completes to nothing, because it would garble the prompt."""

    def complete(incomplete: str) -> list[str]:
        with suppress(Exception):
            return [value for value in values(incomplete) if str(value).startswith(incomplete)]
        return []

    return complete


def _presets(incomplete: str) -> Iterable[str]:
    from favorit.model.presets import PRESETS

    return PRESETS


def _studies(incomplete: str) -> Iterable[str]:
    from favorit.study.load import built_in

    return built_in()


def _fields(incomplete: str) -> Iterable[str]:
    from favorit.fields import DEFAULTS

    return [f"{name}=" for name in DEFAULTS]


def _runs(incomplete: str) -> Iterable[str]:
    """The runs of the folder that the text names, else of `runs`. Several runs are separated by commas."""
    from favorit.training.find import stored_runs

    before, comma, last = incomplete.rpartition(",")
    folder, slash, _ = last.rpartition("/")
    return [f"{before}{comma}{folder}{slash}{run.id}" for run in stored_runs(folder or "runs")]


presets = _complete(_presets)
studies = _complete(_studies)
fields = _complete(_fields)
runs = _complete(_runs)
mixers = stored("mixers")
datasets = stored("datasets")
accelerators = one_of("auto", "cpu", "cuda", "mps")
devices = one_of("cpu", "cuda", "mps")
