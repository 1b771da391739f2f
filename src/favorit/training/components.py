"""Components of a run that the user has registered: config.json records their files, and opening the run imports them.

Opening the run of somebody else executes nothing: see `remembered`.
"""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from favorit.attention import LOCALS, MIXERS
from favorit.config import RunConfig
from favorit.data import AUGMENTS, DATASETS, PREPROCESSES
from favorit.errors import FavoritError
from favorit.files import damaged
from favorit.model import HEADS, LAYOUTS, STEMS
from favorit.model.layout import layers
from favorit.origins import Origin, imported_files
from favorit.position import POSITIONS
from favorit.remembered import RefusedError, recall, remember
from favorit.source import Source
from favorit.spec import Registry, Spec, parse, parse_pattern, parse_sum
from favorit.terminal import echo
from favorit.training.optim import OPTIMIZERS, SCHEDULES
from favorit.training.stored import StoredRun

# The components of a run by kind, as in error messages.
KINDS: dict[str, Collection[str] | Registry] = {
    **{
        registry.noun: registry
        for registry in (MIXERS, POSITIONS, STEMS, HEADS, LOCALS, OPTIMIZERS, SCHEDULES, AUGMENTS, PREPROCESSES)
    },
    DATASETS.noun: DATASETS,
    "layout": LAYOUTS,
}


def own_components(config: RunConfig) -> dict[tuple[str, str], Origin]:
    """{(kind, name): origin} of the components that are not favorit's own."""
    found = {(kind, name): _origin(kind, name) for kind, name in _used(config)}
    return {key: origin for key, origin in found.items() if not origin.is_built_in}


def sources() -> tuple[Source, ...]:
    """The files that other processes must import to know the components of this process. Remembers these files."""
    found = {os.path.abspath(source.path): source for source in imported_files()}
    for origin in (_origin(kind, name) for kind, names in KINDS.items() for name in names):
        if origin.source is not None and origin.is_importable:
            path = os.path.abspath(origin.source.path)
            found[path] = found.get(path) or origin.source.gather()
    for source in found.values():
        remember(source)
    return tuple(found.values())


def record_components(config: RunConfig) -> list[dict[str, Any]]:
    """The user's components of a run as JSON data, with the sha256 of their files. Remembers these files."""
    found = []
    for (kind, name), origin in own_components(config).items():
        record: dict[str, Any] = {"kind": kind, "name": name, "file": None, "sha256": {}, "importable": False}
        if origin.source is not None:
            source = origin.source.gather()
            record |= {"file": os.path.realpath(source.path), "sha256": source.digests}
            if origin.is_importable:
                record["importable"] = True
                remember(source)
        found.append(record)
    return found


def check_importable(configs: Iterable[RunConfig]) -> None:
    """Raises an error if worker processes cannot import a component of these runs."""
    for config in configs:
        for (kind, name), origin in own_components(config).items():
            if not origin.is_importable:
                raise FavoritError(
                    f"worker processes do not know the {kind} {name!r} of {origin.place}: put it in a file of its own "
                    "and import that file"
                )


def open_config(run: StoredRun) -> dict[str, Any]:
    """The content of config.json, after importing the user's components that the run needs."""
    saved = run.config()
    import_components(saved, run.path)
    return saved


def import_components(saved: Mapping[str, Any], run: str | Path) -> None:
    """Imports the user's components that config.json records and this process does not know.

    Each imported file gives a line on stderr. A file is imported only if this user has imported the same content
    before. Otherwise the error names the component and the file.
    """
    for record in _records(saved, run):
        kind, name, file = record["kind"], record["name"], record["file"]
        if name in KINDS[kind]:
            continue
        what = f"{run} needs the {kind} {name!r}"
        if file is None:
            raise FavoritError(
                f"{what} of a notebook or interactive session: run its cell first, or write it to a file and give that "
                "with --import FILE"
            )
        if not record["importable"]:
            raise FavoritError(
                f"{what} of the script {file!r}, which is not imported because that would run it again: move the "
                f"{kind} to a file of its own and give that with --import FILE"
            )
        exists = os.path.isfile(file) and file.isprintable()
        give = f"--import {shlex.quote(file)}" if exists else "--import FILE"
        try:
            source = recall(file)
        except RefusedError as error:
            check = "check it and " if exists else ""
            raise FavoritError(f"{what} of {file!r}, {error}: {check}give it with {give}") from None
        if os.environ.get("LOCAL_RANK", "0") == "0":
            echo(f"favorit: importing {source.path} for the {kind} {name!r} of {run}", err=True)
        try:
            source.load(only_known=True)
        except FavoritError as error:
            raise FavoritError(f"{what}: {error}; give the file with {give}") from None
        if name not in KINDS[kind]:
            raise FavoritError(f"{what}, but {source.path} does not register it: give its file with --import FILE")


def warn_if_changed(saved: Mapping[str, Any], run: str | Path) -> None:
    """Warns of components of this process whose files are not those that config.json records."""
    for file in changed_files(saved, run):
        warnings.warn(
            f"{file} has changed since {run} was started, whose weights and results are those of the earlier file: to "
            f"train again, delete {run}, or register another name",
            stacklevel=3,
        )


def changed_files(saved: Mapping[str, Any], run: str | Path) -> Iterator[str]:
    """The components of this process whose files are not those that config.json records, such as
    "mine.py with the mixer 'softsign'".
    """
    for record in _records(saved, run):
        kind, name = record["kind"], record["name"]
        source = _origin(kind, name).source if name in KINDS[kind] else None
        if source is None or record["file"] is None:
            continue
        source = source.gather()
        # The file may have moved, so only the contents are compared.
        if sorted(source.digests.values()) != sorted(map(str, record["sha256"].values())):
            yield f"{source.path} with the {kind} {name!r}"


def _origin(kind: str, name: str) -> Origin:
    if isinstance(registry := KINDS[kind], Registry):
        return registry[name].origin
    code = LAYOUTS[name].__code__
    return Origin.of(LAYOUTS[name].__globals__, code, code.co_firstlineno)


def _used(config: RunConfig) -> Iterator[tuple[str, str]]:
    """(kind, name) of each component of a configuration."""
    model, data, options = config.model, config.data, config.train
    patterns: list[tuple[Registry, str | None]] = [(AUGMENTS, data.augment), (PREPROCESSES, data.preprocess)]
    specs: list[tuple[Registry, Iterable[Spec]]] = [
        (MIXERS, layers(model.layout, model.performer, model.depth)),
        (POSITIONS, parse_sum(model.position)),
        *((registry, parse_pattern(text)) for registry, text in patterns if text is not None and text.strip()),
    ]
    singles: list[tuple[Registry, str | None]] = [
        (STEMS, model.stem),
        (HEADS, model.head),
        (LOCALS, model.local),
        (OPTIMIZERS, options.optimizer),
        (SCHEDULES, options.schedule),
    ]
    specs += [(registry, [parse(text)]) for registry, text in singles if text is not None]
    for registry, own in specs:
        yield from ((registry.noun, spec.name) for spec in own if spec.name in registry)
    if (layout := model.layout.strip()) in LAYOUTS:
        yield "layout", layout
    dataset = re.match(r"\w*", data.name)
    if dataset is not None and dataset[0] in DATASETS:
        yield DATASETS.noun, dataset[0]


def _records(saved: Mapping[str, Any], run: str | Path) -> list[dict[str, Any]]:
    """The records of components in config.json. Raises an error if they are damaged."""
    records = saved.get("components", [])
    types = {"kind": str, "name": str, "file": str | None, "sha256": dict, "importable": bool}
    for record in records if isinstance(records, list) else [None]:
        if (
            not isinstance(record, dict)
            or not all(key in record and isinstance(record[key], kind) for key, kind in types.items())
            or record["kind"] not in KINDS
            or not _is_path(record["file"] or "")
        ):
            raise damaged(run, "its record of components", run)
    return records


def _is_path(text: str) -> bool:
    """True if the system accepts the text as a path."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
