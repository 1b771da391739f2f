"""The names of runs: recorded at training, listed in the index of a study, or made of data, layers and seed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from favorit.errors import FavoritError
from favorit.files import read_json
from favorit.grammar import quote

# The folder of the indexes of studies, in a folder of runs.
INDEXES = ".studies"
LONGEST = 1_000  # characters of a name
# The parts of a name that only tell apart the repetitions of a variant.
_REPEATS = re.compile(r" (seed|fold)=\d+(?= |$)")


class RunName(NamedTuple):
    """The name of a run, such as `layout=relu(m=64) seed=1`, and its study; `study` is empty for a run of none."""

    name: str
    study: str = ""

    @property
    def variant(self) -> str:
        """The name without seed and fold."""
        return _REPEATS.sub("", self.name)


def check_name(kind: str, name: object) -> None:
    """Raises an error unless the name of a run or study is None or text that config.json and tables can hold."""
    is_text = isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST
    if name is not None and not is_text:
        raise FavoritError(f"{kind}={quote(name)} is not valid: printable text of 1 to {LONGEST} characters, or None")


def indexed_names(folder: str | Path) -> dict[str, RunName]:
    """The names of runs by identifier, from the indexes of studies in a folder of runs."""
    found: dict[str, RunName] = {}
    for path in sorted(Path(folder, INDEXES).glob("*/*.json")):
        try:
            points = read_json(str(path))["points"]
            found |= {str(identifier): RunName(str(name), path.parent.name) for name, _, identifier, *_ in points}
        except (
            OSError,
            FavoritError,
            KeyError,
            TypeError,
            ValueError,
        ):  # an index can be deleted, so it can also be ignored
            continue
    return found


def name_of(identifier: str, saved: Mapping[str, Any], indexed: Mapping[str, RunName]) -> RunName:
    """The name of the run with this config.json: the recorded one, else that of an index, else a description."""
    recorded = saved.get("name")
    if isinstance(recorded, str) and recorded:
        return RunName(recorded, str(saved.get("study") or ""))
    if identifier in indexed:
        return indexed[identifier]
    return RunName(_description(saved), str(saved.get("study") or ""))


def _description(saved: Mapping[str, Any]) -> str:
    """Data set, layers, seed and fold, such as `digits relu(m=64)*4 seed=0`."""
    config = saved["config"]
    data = config.get("data")
    data = data if isinstance(data, dict) else {}
    fold = data.get("fold")
    parts = [data.get("name"), saved.get("layers"), f"seed={config.get('seed', 0)}"]
    parts += [] if fold is None else [f"fold={fold}"]
    return " ".join(str(part) for part in parts if part)
