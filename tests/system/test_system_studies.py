"""Every built-in study from the command to its summary, shortened, on the real data and with two workers."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

from favorit import FavoritError
from favorit.data import fetch, present
from favorit.study import Options, load_study, status
from favorit.study.load import built_in
from published_data import unpacked
from training_helpers import finish, start

SUBSET = 256
# With their grid kept as tokens the models of `kernels` take 10 minutes of two cores, and 8 GiB each, for as many (LOG.md): here fewer.
SMALLER = {"kernels": 64}


@pytest.fixture(scope="module")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = unpacked(tmp_path_factory.mktemp("real"))
    with suppress(FavoritError):  # CIFAR-100 comes with no package: where its publisher cannot be reached, there is none
        fetch("cifar100", place)
    return place


def obtainable(name: str, data: Path) -> str | None:
    """The points of a study whose data can be had here; None for all of them."""
    return None if name != "kernels" or present("cifar100", data) else "data=cifar10 *"


@pytest.mark.parametrize("name", built_in())
def test_study_runs_end_to_end(name: str, real_data: Path, tmp_path: Path) -> None:
    """Complete, with a number for every point; the flags that the protocol calls for are in the results."""
    options = Options(epochs=1, subset=SMALLER.get(name, SUBSET), only=obtainable(name, real_data))
    chosen = ["--epochs", "1", "--subset", options.subset, *(["--only", options.only] if options.only else [])]
    process = start(
        "-m", "favorit", "study", "run", name, *map(str, chosen), "--workers", "2", "--data-dir", real_data, "--out", tmp_path / "runs"
    )
    code, said, errors = finish(process, timeout=1800)
    assert (code, errors) == (0, "")
    states = status(name, tmp_path / "runs", options=options, data_dir=real_data)
    assert len(states) == len(load_study(name).named(options))
    assert {state.status for state in states} == {"complete"}
    assert all(state.accuracy is not None for state in states)
    assert f"{len(states)} complete, 0 failed, 0 left" in said
    table = said.rpartition("\npoint ")[2]  # on a slow machine epochs are told before it, in lines of their own
    lines = [line for line in table.splitlines() if re.search(r"\d%", line) and line.startswith(states[0].group)]
    assert lines
    assert all("test-subset" in line for line in lines)
    assert all(("augmented-test" in line) == (name == "hybrids") for line in lines)
