"""Study files are imported once per process, sent with the modules of their folder, and imported from the copy."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from favorit import FavoritError, RunConfig
from favorit.data import load_dataset
from favorit.source import Source
from favorit.study import load_study, worker
from favorit.study.local import local
from favorit.study.tasks import Began, Ended, EpochDone, Task, Unfinished
from favorit.study.worker import Order
from favorit.training.components import sources
from favorit.training.folder import RunFolder
from favorit.training.identity import resolve, run_id
from training_helpers import finish, start, tiny

OWN = Path(__file__).parent / "own_components"


def counting(folder: Path, more: str = "") -> Path:
    """A study file that appends to a log each time it is imported."""
    path = folder / "mine.py"
    path.write_text(f"""
from favorit.study import Study, product
with open(__file__ + ".log", "a") as log:
    log.write("x")
STUDY = Study("mine", "?", {{}}, product())
{more}
""")
    return path


def gathered(path: Path) -> Source:
    """The source of an imported study file, as workers receive it."""
    return next(source for source in sources() if source.path == str(path))


def imports(path: Path) -> int:
    return len(Path(f"{path}.log").read_text())


def test_file_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = counting(tmp_path)
    first = load_study(path)
    monkeypatch.chdir(tmp_path)
    assert load_study("mine.py") == first
    gathered(path).load()
    assert imports(path) == 1


def test_changed_file_is_imported_again(tmp_path: Path):
    before = load_study(counting(tmp_path)).name
    path = counting(tmp_path, "STUDY = Study('yours', '?', {}, product())")
    assert (before, load_study(path).name) == ("mine", "yours")
    assert imports(path) == 2


def test_file_that_runs_as_a_script_is_not_imported_again(tmp_path: Path):
    """`load_study(__file__)` at the end of a script does not import the script again."""
    path = counting(
        tmp_path, "from favorit.study import load_study\nprint(load_study(__file__).points is STUDY.points)"
    )
    assert finish(start(path.name, cwd=tmp_path)) == (0, "True\n", "")
    assert imports(path) == 1


def test_workers_import_no_file_of_a_built_in_study():
    load_study("quickstart")
    assert [source.path for source in sources() if "favorit/studies" in source.path] == []


def test_source_includes_imported_modules_of_its_folder(tmp_path: Path):
    package = tmp_path / "package_of_mine"
    package.mkdir()
    for path in (
        package / "__init__.py",
        package / "deep.py",
        tmp_path / "flat_of_mine.py",
        tmp_path / "unused_of_mine.py",
    ):
        path.write_text(f"NAME = {path.name!r}\n")
    file = counting(tmp_path, "import json, flat_of_mine, package_of_mine.deep")
    load_study(file)
    source = gathered(file)
    assert source.content == file.read_bytes()
    names = ["flat_of_mine.py", "package_of_mine/__init__.py", "package_of_mine/deep.py"]
    assert dict(source.neighbors) == {name: (tmp_path / name).read_bytes() for name in names}


def test_source_is_imported_without_its_file(tmp_path: Path):
    """In a process without the file and its folder, the components are registered and no temporary file remains."""
    neighbors = [(name, (OWN / name).read_bytes()) for name in ["rising_width.py"]]
    (tmp_path / "source").write_bytes(
        pickle.dumps(Source("absent/mine.py", (OWN / "rising_study.py").read_bytes(), tuple(neighbors)))
    )
    (tmp_path / "temporary").mkdir()
    code = (
        "import pickle, sys, tempfile\n"
        "tempfile.tempdir = 'temporary'\n"
        "with open('source', 'rb') as file:\n    source = pickle.load(file)\n"
        "print(source.load().__name__, source.load() is source.load())\n"
        "from favorit.attention import KERNELS, build_mixer\n"
        "print(KERNELS['rising'].signature, build_mixer('rising(m=6)', heads=1, head_dim=4).kernel.features)"
    )
    status, output, errors = finish(start("-c", code, cwd=tmp_path))
    assert (status, errors) == (0, "")
    assert output.splitlines()[0] == "favorit_study_mine True"
    assert "width=2.0" in output
    assert output.endswith(" 6\n")
    assert os.listdir(tmp_path / "temporary") == []


def test_failed_import_leaves_no_module_behind(tmp_path: Path):
    path, before = tmp_path / "broken_of_mine.py", list(sys.path)
    path.write_text("import no_such_widths\n")
    with pytest.raises(
        FavoritError, match=r"broken_of_mine.py, line 1: ModuleNotFoundError: No module named 'no_such_widths'"
    ):
        load_study(path)
    assert "favorit_study_broken_of_mine" not in sys.modules
    assert sys.path == before


def test_workers_know_the_components_of_a_study_file(tmp_path: Path):
    shutil.copytree(OWN, tmp_path, dirs_exist_ok=True)
    process = start(
        "-m", "favorit", "study", "run", "rising_study.py", "--workers", "2", "--accelerator", "cpu", cwd=tmp_path
    )
    status, output, errors = finish(process)
    assert (status, errors) == (0, "")
    assert "4 complete, 0 failed, 0 left" in output
    assert {"starts on worker 1", "starts on worker 2"} <= {line.partition("   ")[2] for line in output.splitlines()}
    found = [RunFolder(path.parent).config()["layers"] for path in (tmp_path / "runs").glob("*/result.json")]
    assert sorted(found) == ["rising(m=8)|softmax"] * 2 + ["rising(width=0.5)"] * 2


def test_points_fail_if_their_worker_cannot_import_the_file(tmp_path: Path):
    source = Source("absent/mine.py", b"\nraise RuntimeError('not here')")
    order = Order("worker 1", str(tmp_path), None, "cpu", 60.0, 1, 1, float("inf"), (source,))
    broke = worker._attempt(Task("point", RunConfig(), "0" * 16), order, None, lambda event: None)
    assert isinstance(broke, Unfinished)
    assert broke.error == "cannot import absent/mine.py, line 2: RuntimeError: not here"


def test_run_locked_by_another_process_is_trained_after_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The runner sees a free run, but its worker finds the run locked. The task waits until the lock is released."""
    data = load_dataset(tiny().data.name)
    config = resolve(tiny(), data)
    task = Task("point", config, run_id(config, data.digest))
    checks: list[bool] = []
    held = RunFolder.held
    lock = ExitStack()

    def free_at_first(folder: RunFolder) -> bool:
        checks.append(held(folder) if checks else False)
        if len(checks) == 3:
            lock.close()
        return checks[-1]

    monkeypatch.setattr(RunFolder, "held", free_at_first)
    with lock:
        lock.enter_context(RunFolder(tmp_path / task.id).lock())
        events = list(local([task], tmp_path, accelerator="cpu"))
    assert checks[:3] == [False, True, True]
    assert [type(event) for event in events] == [Began, *[EpochDone] * config.train.epochs, Ended]
