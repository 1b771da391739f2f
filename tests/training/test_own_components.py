"""Components of a user's file: recorded by a run, imported again for this user only, and never for a stranger."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import favorit
from favorit import FavoritError, RunConfig
from favorit.attention import MIXERS
from favorit.model import LAYOUTS
from favorit.origins import import_file
from favorit.remembered import recall, remember, state_folder
from favorit.source import Source
from favorit.study import Study, product
from favorit.study.lookup import published_accuracy
from favorit.study.runner import start as start_study
from favorit.training.components import own_components, sources
from favorit.training.inference import evaluate
from own_files import NewProcess, executions, new_process, write_kernel
from training_helpers import MODEL, finish, fit, start, tiny

__all__ = ["new_process"]


def train(folder: Path, name: str, **model: Any) -> favorit.Run:
    return fit(folder / "runs", tiny(model=dict(layout=name, **model), train=dict(epochs=1)))[0]


def trained(folder: Path, new_process: NewProcess, name: str, more: str = "") -> tuple[favorit.Run, Path]:
    """A run with the kernel `name` of a file in `folder`, which a process before this one has trained."""
    file = write_kernel(folder / "mine.py", name, more)
    import_file(file)
    run = train(folder, name)
    new_process()
    return run, file


def study_of(layout: str) -> Study:
    base = {"data.name": tiny().data.name, "train.epochs": 1, **{f"model.{key}": value for key, value in MODEL.items()}}
    return Study("own", "?", base, product({"model.layout": [layout]}))


def saved(run: favorit.Run) -> dict[str, Any]:
    return json.loads((run.path / "config.json").read_text())


def edit(run: favorit.Run, **changes: Any) -> None:
    """Changes the record of the first component, as a stranger could."""
    content = saved(run)
    content["components"][0] |= changes
    (run.path / "config.json").write_text(json.dumps(content))


def test_run_records_the_file_of_its_component(tmp_path: Path, new_process: NewProcess) -> None:
    run, file = trained(tmp_path, new_process, "own_recorded")
    (record,) = saved(run)["components"]
    digests = Source.read(file).digests
    expected = {"kind": "mixer", "name": "own_recorded", "file": str(file), "sha256": digests, "importable": True}
    assert record == expected


def test_run_of_built_in_components_records_none(tmp_path: Path) -> None:
    assert "components" not in saved(train(tmp_path, "relu"))


def test_remembered_file_is_imported_with_a_note(
    tmp_path: Path, new_process: NewProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = trained(tmp_path, new_process, "own_remembered")
    assert "own_remembered" not in MIXERS
    found = evaluate(run.path)
    assert found["test"]["accuracy"] == run.result["test"]["accuracy"]
    assert capsys.readouterr().err == f"favorit: importing {file} for the mixer 'own_remembered' of {run.path}\n"
    assert executions(file) == 2


def test_file_of_another_user_is_not_executed(tmp_path: Path, new_process: NewProcess, monkeypatch) -> None:
    run, file = trained(tmp_path / "theirs", new_process, "own_of_stranger")
    monkeypatch.setenv("FAVORIT_STATE", str(tmp_path / "my state"))
    monkeypatch.chdir(file.parent)  # a file in the working directory is not trusted either
    before = executions(file)
    message = f"needs the mixer 'own_of_stranger' of '{file}', which you have not imported before: check it and give it"
    for action in (favorit.load, evaluate, lambda path: favorit.runs(path.parent)):
        if action in (favorit.load, evaluate):
            with pytest.raises(FavoritError, match=message):
                action(run.path)
        else:
            action(run.path)
    assert executions(file) == before


def test_copy_of_a_remembered_file_at_another_path_is_not_executed(tmp_path: Path, new_process: NewProcess) -> None:
    """Its folder may hold other modules."""
    run, file = trained(tmp_path, new_process, "own_copied")
    copy = run.path / "mine.py"
    shutil.copy(file, copy)
    edit(run, file=str(copy))
    with pytest.raises(FavoritError, match="which you have not imported before"):
        favorit.load(run)
    assert executions(copy) == 0


def test_installed_module_named_by_a_stranger_is_not_imported(tmp_path: Path, new_process: NewProcess) -> None:
    run, _ = trained(tmp_path, new_process, "own_antigravity")
    module = Path(os.__file__).with_name("antigravity.py")
    edit(run, file=str(module), sha256=Source.read(module).digests)
    with pytest.raises(FavoritError, match=r"antigravity\.py', which you have not imported before"):
        favorit.load(run)
    assert "antigravity" not in sys.modules


def test_module_put_next_to_a_remembered_file_is_not_executed(tmp_path: Path, new_process: NewProcess) -> None:
    more = "try:\n    import planted_of_mine\nexcept ImportError:\n    pass"
    run, _ = trained(tmp_path, new_process, "own_with_gap", more)
    planted = write_kernel(tmp_path / "planted_of_mine.py", "planted")
    edit(run, sha256={"mine.py": "0", "planted_of_mine.py": Source.read(planted).digests["planted_of_mine.py"]})
    with pytest.warns(UserWarning, match="has changed since"):
        favorit.load(run)
    assert executions(planted) == 0
    assert "planted_of_mine" not in sys.modules


def test_changed_file_is_not_executed_until_it_is_given(tmp_path: Path, new_process: NewProcess) -> None:
    run, file = trained(tmp_path, new_process, "own_changed")
    file.write_text(file.read_text() + "# changed\n")
    before = executions(file)
    with pytest.raises(FavoritError, match=f"'{file}', which has changed since you imported it: .* --import {file}$"):
        favorit.load(run)
    assert executions(file) == before
    import_file(file)
    with pytest.warns(UserWarning, match=f"{file} with the mixer 'own_changed' has changed since {run.path} was"):
        favorit.load(run)
    new_process()
    with pytest.warns(UserWarning, match=f"{file} with the mixer 'own_changed' has changed since {run.path} was"):
        favorit.load(run)


@pytest.mark.parametrize("is_complete", [True, False])
def test_training_with_a_changed_file_warns_that_the_run_is_older(
    is_complete: bool, tmp_path: Path, new_process: NewProcess
) -> None:
    """A kernel that was edited does not change the run's ID: the run is skipped or resumed."""
    run, file = trained(tmp_path, new_process, "own_edited")
    if not is_complete:
        (run.path / "result.json").unlink()
    import_file(file)
    train(tmp_path, "own_edited")  # no warning, which would be an error
    if not is_complete:
        (run.path / "result.json").unlink()
    new_process()
    file.write_text(file.read_text() + "# changed\n")
    import_file(file)
    with pytest.warns(UserWarning, match="to train again, delete .*, or register another name"):
        train(tmp_path, "own_edited")


def test_evaluation_warns_once_of_a_changed_file(tmp_path: Path, new_process: NewProcess) -> None:
    """It reads the run twice: for its weights and for its data."""
    run, file = trained(tmp_path, new_process, "own_evaluated")
    file.write_text(file.read_text() + "# changed\n")
    import_file(file)
    with pytest.warns(UserWarning, match="has changed since") as found:
        evaluate(run)
    assert len(found) == 1


def test_file_that_has_moved_is_not_a_changed_file(tmp_path: Path, new_process: NewProcess) -> None:
    run, file = trained(tmp_path, new_process, "own_moved")
    import_file(file.rename(tmp_path / "other_name.py"))
    assert favorit.load(run).classes  # no warning, which would be an error


def test_changed_neighbor_is_named_and_not_executed(tmp_path: Path, new_process: NewProcess) -> None:
    neighbor = tmp_path / "near_of_mine.py"
    neighbor.write_text("WIDTH = 2.0\n")
    (tmp_path / "unused_of_mine.py").write_text("")
    run, _ = trained(tmp_path, new_process, "own_with_neighbor", "from near_of_mine import WIDTH")
    assert set(saved(run)["components"][0]["sha256"]) == {"mine.py", "near_of_mine.py"}
    favorit.load(run)
    new_process()
    write_kernel(neighbor, "planted")
    with pytest.raises(FavoritError, match=r"whose module near_of_mine\.py has changed since you imported it"):
        favorit.load(run)
    assert executions(neighbor) == 0


def test_missing_file_is_named(tmp_path: Path, new_process: NewProcess) -> None:
    run, file = trained(tmp_path, new_process, "own_missing")
    file.rename(tmp_path / "moved.py")
    with pytest.raises(FavoritError, match=r"mine\.py', which does not exist: give it with --import FILE$"):
        favorit.load(run)
    import_file(tmp_path / "moved.py")
    assert favorit.load(run).classes


def test_remembered_file_that_fails_is_one_line(tmp_path: Path, new_process: NewProcess, monkeypatch) -> None:
    run, file = trained(tmp_path, new_process, "own_failing", "import os\nassert 'OWN_FAILS' not in os.environ")
    monkeypatch.setenv("OWN_FAILS", "1")
    with pytest.raises(FavoritError, match=f"cannot import {file}, line 2: AssertionError: .*--import {file}$"):
        favorit.load(run)


@pytest.mark.parametrize("place", ["below a file", "no folder"])
def test_training_continues_if_the_state_folder_cannot_be_written(
    tmp_path: Path, new_process: NewProcess, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FAVORIT_STATE", str(tmp_path / "file" / "state") if place == "below a file" else "/proc/none")
    name = f"own_{place.replace(' ', '_')}"
    file = write_kernel(tmp_path / "mine.py", name)
    with pytest.warns(UserWarning, match=f"will need --import {file}"):
        import_file(file)
    with pytest.warns(UserWarning, match="FAVORIT_STATE sets another folder"):
        run = train(tmp_path, name)
    new_process()
    with pytest.raises(FavoritError, match="which you have not imported before"):
        favorit.load(run)


def test_damaged_entry_of_the_state_folder_counts_as_not_remembered(tmp_path: Path, new_process: NewProcess) -> None:
    run, _ = trained(tmp_path, new_process, "own_damaged_state")
    (entry,) = (state_folder() / "components").glob("*/*.json")
    for content in ("{", "[]", '{"schema": 1}', '{"schema": 1, "file": "x", "sha256": {}}'):
        entry.write_text(content)
        with pytest.raises(FavoritError, match="which you have not imported before"):
            favorit.load(run)


def test_concurrent_processes_remember_all_their_files(tmp_path: Path, new_process: NewProcess) -> None:
    code = (
        "import sys\nfrom favorit.remembered import remember\nfrom favorit.source import Source\n"
        "for path in sys.argv[1:]:\n    remember(Source.read(path))\n"
    )
    files = [write_kernel(tmp_path / f"file{number}.py", f"k{number}") for number in range(20)]
    processes = [start("-c", code, *map(str, files), cwd=tmp_path) for _ in range(3)]
    assert [finish(process) for process in processes] == [(0, "", "")] * 3
    assert [recall(str(file)).content for file in files] == [file.read_bytes() for file in files]
    assert not list(state_folder().rglob(".*"))


def run_as_script(path: Path, text: str) -> None:
    """Executes a script as Python does, in a module `__main__` of its own."""
    path.write_text(text)
    exec(compile(text, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})


def test_script_without_main_guard_is_not_imported(tmp_path: Path, new_process: NewProcess) -> None:
    write_kernel(tmp_path / "script.py", "own_script")
    run_as_script(tmp_path / "script.py", (tmp_path / "script.py").read_text())
    run = train(tmp_path, "own_script")
    assert sources() == ()
    new_process()
    with pytest.raises(FavoritError, match=r"script\.py', which is not imported because that would run it again: move"):
        favorit.load(run)
    assert executions(tmp_path / "script.py") == 1


def test_script_with_main_guard_is_imported_without_its_main_part(tmp_path: Path, new_process: NewProcess) -> None:
    script = write_kernel(tmp_path / "script.py", "own_guarded")
    main = (
        "if __name__ == '__main__':\n    with open(__file__ + '.main', 'a') as file:\n        print('x', file=file)\n"
    )
    run_as_script(script, script.read_text() + main)
    run = train(tmp_path, "own_guarded")
    new_process()
    favorit.load(run)
    assert Path(f"{script}.main").read_text() == "x\n"


def test_component_of_a_main_part_is_not_importable(tmp_path: Path, new_process: NewProcess) -> None:
    kernel = write_kernel(tmp_path / "script.py", "own_main_part").read_text()
    body = "\n".join(f"    {line}" for line in kernel.splitlines())
    run_as_script(tmp_path / "script.py", f"if __name__ == '__main__':\n{body}\n")
    run = train(tmp_path, "own_main_part")
    new_process()
    with pytest.raises(FavoritError, match="which is not imported because that would run it again"):
        favorit.load(run)


def test_component_of_a_notebook_says_so(tmp_path: Path, new_process: NewProcess) -> None:
    def run_cell() -> None:
        text = write_kernel(tmp_path / "cell.py", "own_cell").read_text().replace("__file__", repr(str(tmp_path / "x")))
        exec(compile(text, "<ipython-input>", "exec"), {"__name__": "__main__"})

    run_cell()
    run_cell()  # replaces the kernel
    run = train(tmp_path, "own_cell")
    favorit.load(run)
    _, events = start_study(study_of("own_cell"), tmp_path / "study")
    with pytest.raises(FavoritError, match="worker processes do not know the mixer 'own_cell' of a notebook"):
        next(events)
    new_process()
    with pytest.raises(FavoritError, match="the mixer 'own_cell' of a notebook or interactive session: run its cell"):
        favorit.load(run)


def test_module_of_a_package_is_imported_with_its_package(tmp_path: Path, new_process: NewProcess) -> None:
    package = tmp_path / "package_of_own"
    file = write_kernel(package / "deep" / "kern.py", "own_packaged", "from ..widths import WIDTH")
    for name in ("__init__.py", "deep/__init__.py", "unused.py"):
        (package / name).write_text("")
    (package / "widths.py").write_text("WIDTH = 2.0\n")
    import_file(file)
    assert "package_of_own.deep.kern" in sys.modules
    run = train(tmp_path, "own_packaged")
    names = {"deep/kern.py", "__init__.py", "deep/__init__.py", "widths.py"}
    assert set(saved(run)["components"][0]["sha256"]) == {f"package_of_own/{name}" for name in names}
    new_process()
    favorit.load(run)
    assert "package_of_own.unused" not in sys.modules


def test_layout_of_a_file_is_recorded(tmp_path: Path, new_process: NewProcess) -> None:
    file = tmp_path / "layouts.py"
    file.write_text("from favorit.model import LAYOUTS\nLAYOUTS['own_layout'] = lambda performer, n: [performer] * n\n")
    import_file(file)
    found = own_components(RunConfig(model={"layout": "own_layout"}))
    del LAYOUTS["own_layout"]
    assert {key: origin.place for key, origin in found.items()} == {("layout", "own_layout"): str(file)}


def test_executed_again_file_replaces_its_components(tmp_path: Path, new_process: NewProcess) -> None:
    file = write_kernel(tmp_path / "mine.py", "own_again")
    import_file(file)
    write_kernel(file, "own_again", "# another version")
    import_file(file)
    other = write_kernel(tmp_path / "other.py", "own_again")
    message = f"the kernel 'own_again' is registered twice: in {file} and in {other}: choose another name"
    with pytest.raises(FavoritError, match=message):
        import_file(other)
    with pytest.raises(FavoritError, match=f"in favorit and in {other}"):
        import_file(write_kernel(other, "relu"))


@pytest.mark.parametrize(
    "components",
    [{}, "x", [1], [{}], [{"kind": "x", "name": "x", "file": None, "sha256": {}, "importable": True}],
     [{"kind": "mixer", "name": "x", "file": "a\0b", "sha256": {}, "importable": True}],
     [{"kind": "mixer", "name": "x", "file": "\ud800", "sha256": {}, "importable": True}],
     [{"kind": "mixer", "name": 1, "file": None, "sha256": {}, "importable": True}]],
)  # fmt: skip
def test_damaged_record_is_one_line(tmp_path: Path, new_process: NewProcess, components: Any) -> None:
    run = train(tmp_path, "relu")
    (run.path / "config.json").write_text(json.dumps({**saved(run), "components": components}))
    with pytest.raises(FavoritError, match="is damaged"):
        favorit.load(run)


def test_study_of_a_script_sends_the_files_of_its_components(tmp_path: Path, new_process: NewProcess) -> None:
    """The study is an object, not a file: workers know the kernel because it is that of an imported file."""
    import_file(write_kernel(tmp_path / "mine.py", "own_sent"))
    report, events = start_study(study_of("own_sent"), tmp_path / "runs", accelerator="cpu")
    assert not report.errors, list(events)
    list(events)
    assert len(report.results) == 1, report.errors


def test_study_warns_once_of_finished_runs_of_a_changed_file(tmp_path: Path, new_process: NewProcess) -> None:
    file = write_kernel(tmp_path / "mine.py", "own_studied", "from near_of_study import WIDTH")
    (tmp_path / "near_of_study.py").write_text("WIDTH = 2.0\n")
    import_file(file)
    report, events = start_study(study_of("own_studied"), tmp_path / "runs", accelerator="cpu")
    list(events)
    assert len(report.results) == 1, report.errors
    start_study(study_of("own_studied"), tmp_path / "runs")  # no warning, which would be an error
    new_process()
    (tmp_path / "near_of_study.py").write_text("WIDTH = 3.0\n")
    import_file(file)
    with pytest.warns(UserWarning, match=f"{file} with the mixer 'own_studied' has changed since finished") as found:
        start_study(study_of("own_studied"), tmp_path / "runs")
    assert len(found) == 1


def test_own_component_has_no_published_accuracy(tmp_path: Path, new_process: NewProcess) -> None:
    config = RunConfig(model={"layout": "unknown_here"}, data={"name": "cifar10"})
    assert published_accuracy(config).problem == ""


def test_state_folder_is_that_of_the_user_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAVORIT_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "mine.py"
    file.write_text("")
    remember(Source.read(file))
    assert recall(str(file)).content == b""
    assert len(list((tmp_path / "favorit" / "components").glob("*/*.json"))) == 1
