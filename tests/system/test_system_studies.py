"""Every built-in study from the command to its summary, shortened, on the real data and with two workers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from favorit.study import Options, load_study, status
from favorit.study.load import built_in
from training_helpers import SHARED, finish, start

# As many images as eight minutes for all of them allow on two cores: with its grid kept as tokens a model of `kernels` takes minutes for
# 256, and `positions` drops what is no whole batch of 128. CIFAR-100 is not among the data that come with CI.
SUBSETS = {"quickstart": 256, "hybrids": 128, "vit-variants": 128, "positions": 160, "linear-attention": 128, "kernels": 64}
ONLY = {"kernels": "data=cifar10 *"}


@pytest.fixture(scope="module")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (SHARED / "unpack").exists():
        pytest.skip("../shared/data is not there")
    place = tmp_path_factory.mktemp("real")
    subprocess.run([sys.executable, str(SHARED / "unpack"), str(place)], check=True, stdout=subprocess.DEVNULL)
    return place


def test_none_is_left_out() -> None:
    assert SUBSETS.keys() == built_in().keys()


@pytest.mark.parametrize("name", SUBSETS)
def test_study_runs_end_to_end(name: str, real_data: Path, tmp_path: Path) -> None:
    """Complete, with a number for every point; the flags that the protocol calls for are in the results."""
    options = Options(epochs=1, subset=SUBSETS[name], only=ONLY.get(name))
    chosen = ["--epochs", "1", "--subset", SUBSETS[name], *(["--only", ONLY[name]] if name in ONLY else [])]
    process = start(
        "-m", "favorit", "study", "run", name, *map(str, chosen), "--workers", "2", "--data-dir", real_data, "--out", tmp_path / "runs"
    )
    code, said, errors = finish(process, timeout=900)
    assert (code, errors) == (0, "")
    states = status(name, tmp_path / "runs", options=options, data_dir=real_data)
    assert len(states) == len(load_study(name).named(options))
    assert {state.status for state in states} == {"complete"}
    assert all(state.accuracy is not None for state in states)
    assert f"{len(states)} complete, 0 failed, 0 left" in said
    lines = [line for line in said.splitlines() if re.search(r"\d%", line) and line.startswith(states[0].group)]
    assert lines
    assert all("test-subset" in line for line in lines)
    assert all(("augmented-test" in line) == (name == "hybrids") for line in lines)
