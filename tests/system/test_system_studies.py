"""Every built-in study at its smoke scale: the command, its results and its summary, on real data with two workers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from favorit.study import Options, load_study, status
from favorit.study.load import built_in
from published_data import unpacked
from training_helpers import finish, start


@pytest.fixture(scope="module")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("real"))


@pytest.mark.parametrize("name", built_in())
def test_study_runs_end_to_end(name: str, real_data: Path, tmp_path: Path) -> None:
    """Every point is complete and has an accuracy. The summary explains the flags of the protocol."""
    options = Options(scale="smoke")
    process = start(
        *(
            "-m",
            "favorit",
            "study",
            "run",
            name,
            "--scale",
            "smoke",
            "--workers",
            "2",
            "--data-dir",
            real_data,
            "--out",
            tmp_path / "runs",
        )
    )
    code, output, errors = finish(process, timeout=1800)
    assert (code, errors) == (0, "")
    states = status(name, tmp_path / "runs", options=options, data_dir=real_data)
    assert len(states) == len(load_study(name).named(options))
    assert {state.status for state in states} == {"complete"}
    assert all(state.accuracy is not None for state in states)
    assert f"{len(states)} complete, 0 failed, 0 left" in output
    assert f"{name}: scale smoke; protocol published" in output
    # Flags that all runs share are explained below the table.
    for flag, is_shared in (
        ("test-subset", True),
        ("augmented-test", name == "hybrids"),
        ("watched", name != "quickstart"),
    ):
        assert bool(re.search(rf"^{flag}: .* \(all {len(states)} runs\)$", output, re.M)) == is_shared
