"""The results queue: trains every missing run once, in order, packs it, and survives kills at any moment."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import yaml

from favorit import FavoritError
from favorit.study.queue import Queue, held_queue, plan_queue, read_queue, run_queue
from favorit.study.tasks import Ended
from favorit.training import Run
from training_helpers import PATIENCE, files, finish, start, untimed

STUDY = """
from favorit.study import Scale, Study, product
STUDY = Study(
    "mine", "?",
    {"data.name": "synthetic(size=8, classes=3, train=96, test=48)", "model.stem": "patch(4)", "model.dim": 8,
     "model.heads": 2, "model.depth": 1, "model.mlp_dim": 16, "train.epochs": 3, "train.batch_size": 16},
    product({"model.layout": ["softmax", "uniform", "relu"]}),
    scales={"small": Scale({"train.epochs": 1})},
)
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(STUDY)
    return path


def queue_file(tmp_path: Path, *entries: object) -> Path:
    path = tmp_path / "queue.yaml"
    path.write_text(yaml.safe_dump(list(entries)))
    return path


def planned(tmp_path: Path, *entries: object) -> Queue:
    return plan_queue(queue_file(tmp_path, *entries), tmp_path / "runs", pack=tmp_path / "packed")


def names(queue: Queue) -> list[tuple[str, str]]:
    return [(planned.entry.scale, task.name) for planned, task in queue.missing()]


# invalid queues


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"study": "hybird"},
            "unknown study (or the path of a .py file with STUDY = ...) 'hybird': did you mean 'hybrids'",
        ),
        ({"study": "quickstart", "scale": "smal"}, "unknown scale of study quickstart 'smal'"),
        ({"study": "quickstart", "only": ["layout=gelu"]}, "no point matches 'layout=gelu'"),
        ({"study": "quickstart", "seed": [1]}, "unknown field of QueueEntry 'seed': did you mean 'seeds'"),
        ({"study": "quickstart", "seeds": ["a"]}, "seeds='a' is not valid"),
        ({"study": "quickstart", "protocol": "sond"}, "unknown protocol 'sond': did you mean 'sound'"),
        ({"scale": "small"}, "study is missing"),
        ("hybrids", "'hybrids' is not an entry such as {study: hybrids, scale: small}"),
    ],
)
def test_invalid_entry_is_a_one_line_problem_and_the_others_are_kept(
    tmp_path: Path, study: Path, entry: object, message: str
):
    queue = planned(tmp_path, entry, {"study": str(study)})
    (problem,) = queue.problems
    assert message in problem
    assert str(tmp_path / "queue.yaml") in problem
    assert "\n" not in problem
    assert len(queue.missing()) == 3


@pytest.mark.parametrize(
    ("text", "message"), [("a: 1", "must be a list of entries"), ("[", "is not YAML"), (None, "no such file")]
)
def test_invalid_queue_file_is_rejected(tmp_path: Path, text: str | None, message: str):
    path = tmp_path / "queue.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FavoritError, match=message):
        read_queue(path)


def test_second_queue_in_the_same_folder_is_rejected(tmp_path: Path):
    out, pack = tmp_path / "out", tmp_path / "pack"
    with held_queue(out, pack):
        for folders in ((out, None), (tmp_path / "other", pack)):
            with pytest.raises(FavoritError, match="another queue is running in"), held_queue(*folders):
                pass
    with held_queue(out, pack):
        pass


def test_queue_can_train_and_pack_in_the_same_folder(tmp_path: Path):
    with held_queue(tmp_path, tmp_path):
        pass


def test_single_seed_and_pattern_need_no_list(tmp_path: Path, study: Path):
    queue = planned(tmp_path, {"study": str(study), "seeds": 3, "only": "relu"})
    assert [task.config.seed for _, task in queue.missing()] == [3]


def test_study_file_is_found_in_the_folder_of_the_queue(tmp_path: Path, study: Path):
    assert len(planned(tmp_path, {"study": study.name}).missing()) == 3


# order of the runs


def test_missing_runs_follow_the_order_of_entries_without_repeats(tmp_path: Path, study: Path):
    queue = planned(
        tmp_path,
        {"study": str(study), "scale": "small", "only": ["uniform"]},
        {"study": str(study), "scale": "small", "seeds": [0, 1]},
        {"study": str(study), "only": ["softmax", "relu"]},
    )
    assert queue.problems == []
    assert names(queue) == [
        ("small", "layout=uniform"),
        ("small", "layout=softmax seed=0"),
        ("small", "layout=softmax seed=1"),
        ("small", "layout=uniform seed=1"),
        ("small", "layout=relu seed=0"),
        ("small", "layout=relu seed=1"),
        ("published", "layout=softmax"),
        ("published", "layout=relu"),
    ]


def test_queue_trains_and_packs_every_run_and_then_has_nothing_to_do(tmp_path: Path, study: Path):
    entries = [{"study": str(study), "scale": "small", "only": ["uniform"]}, {"study": str(study), "scale": "small"}]
    queue = planned(tmp_path, *entries)
    assert queue.seconds_left(1) is None
    ended = [event.task.name for _, event in run_queue(queue) if isinstance(event, Ended)]
    assert ended == ["layout=uniform", "layout=softmax", "layout=relu"]
    assert queue.missing() == []
    assert [len(planned.report.results) for planned in queue.entries] == [1, 3], "a run of both entries is done in both"
    assert len(list((tmp_path / "packed").glob("*.zip"))) == 3
    again = planned(tmp_path, *entries)
    assert again.missing() == []
    assert list(run_queue(again)) == []


def test_packed_run_counts_as_done_without_its_folder(tmp_path: Path, study: Path):
    entry = {"study": str(study), "scale": "small", "only": ["uniform"]}
    list(run_queue(planned(tmp_path, entry)))
    for path in (tmp_path / "runs").iterdir():
        if (path / "config.json").exists():
            path.rename(tmp_path / "elsewhere")
    assert planned(tmp_path, entry).missing() == []


def test_time_left_is_estimated_from_similar_runs(tmp_path: Path, study: Path):
    queue = planned(
        tmp_path, {"study": str(study), "only": ["softmax"], "seeds": [0, 1]}, {"study": str(study), "only": ["relu"]}
    )
    first = next(iter(queue.missing()))[1]
    images = 86 * 3
    result = {
        "epochs": 3,
        "total_seconds": 20.0,
        "inference_seconds": 1.8,
        "test": {"accuracy": 0.5},
        "environment": {},
    }
    queue.update(Ended(first, result))
    left = queue.seconds_left(1)
    assert left == pytest.approx(2 * 21.8), "one run of the same shape, one of the same study"
    assert queue.seconds_left(2) == pytest.approx(21.8)
    assert images == 258


# the command


def command(tmp_path: Path, *more: str) -> list[str]:
    # Other tests run at the same time: at the lowest priority these would take minutes.
    place = ["--out", str(tmp_path / "runs"), "--pack", str(tmp_path / "packed"), "--nice", "1"]
    return ["-m", "favorit", "study", "queue", str(tmp_path / "queue.yaml"), *place, *more]


def test_command_prints_a_line_for_each_run_and_discards_weights(tmp_path: Path, study: Path):
    queue_file(tmp_path, {"study": str(study), "scale": "small"}, {"study": "hybird"})
    code, output, errors = finish(start(*command(tmp_path, "--discard")))
    assert code == 1, "an entry is invalid"
    assert errors.count("unknown study") == errors.count("\n") == 2, "printed at the start and at the end"
    *lines, last = output.splitlines()
    assert last == "1 entry, 3 runs: 3 done, 0 failed, 0 to do"
    assert lines[0] == "1 entry, 3 runs: 0 done, 0 failed, 3 to do"
    assert [line.split("   ")[0] for line in lines[1:]] == [
        f"[{number}/3] {study} small: layout={layout}"
        for number, layout in enumerate(("softmax", "uniform", "relu"), 1)
    ]
    assert all("test " in line for line in lines[1:])
    assert "left" in lines[1]
    assert not list((tmp_path / "runs").glob("*/*.safetensors"))
    for path in (tmp_path / "packed").glob("*.zip"):
        assert Run(path).result["environment"]["nice"] == os.nice(0) + 1


def test_list_shows_the_status_and_trains_nothing(tmp_path: Path, study: Path):
    queue_file(tmp_path, {"study": str(study), "scale": "small", "seeds": [0, 1]})
    code, output, errors = finish(start(*command(tmp_path, "--list")))
    assert (code, errors) == (0, "")
    assert "1 entry, 6 runs: 0 done, 0 failed, 6 to do" in output
    assert not list((tmp_path / "runs").glob("*/config.json"))


def test_list_counts_runs_without_their_data_set_apart(tmp_path: Path, study: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAVORIT_DATA", str(tmp_path / "empty"))
    queue_file(tmp_path, {"study": str(study), "scale": "small"}, {"study": "positions", "only": ["data=mnist*"]})
    code, output, errors = finish(start(*command(tmp_path, "--list")))
    assert code == 1
    assert "mnist is not in" in errors
    assert "2 entries, 18 runs: 0 done, 0 failed, 3 to do, 15 without their data set" in output


def test_list_writes_nothing(tmp_path: Path, study: Path):
    queue_file(tmp_path, {"study": str(study), "scale": "small"})
    plan_queue(tmp_path / "queue.yaml", tmp_path / "runs", pack=tmp_path / "packed", read_only=True)
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "packed").exists()


def one_done(tmp_path: Path, study: Path) -> tuple[Path, Path]:
    """The folder and the packed file of a finished run."""
    list(run_queue(planned(tmp_path, {"study": str(study), "scale": "small", "only": ["uniform"]})))
    (packed,) = (tmp_path / "packed").glob("*.zip")
    return tmp_path / "runs" / packed.stem, packed


def test_discard_keeps_a_folder_that_this_queue_did_not_train(tmp_path: Path, study: Path):
    folder, _ = one_done(tmp_path, study)
    code, _, errors = finish(start(*command(tmp_path, "--discard")))
    assert (code, errors) == (0, "")
    assert (folder / "best.safetensors").exists(), "another command may need its weights"


def test_damaged_packed_run_is_packed_again_from_its_folder(tmp_path: Path, study: Path):
    folder, packed = one_done(tmp_path, study)
    whole = packed.read_bytes()
    packed.write_bytes(whole[:100])
    code, output, errors = finish(start(*command(tmp_path, "--discard")))
    assert (code, errors) == (0, "")
    assert "1 entry, 1 runs: 1 done, 0 failed, 0 to do" in output
    assert packed.read_bytes() == whole
    assert folder.exists()


def test_damaged_packed_run_without_its_folder_is_a_one_line_error_and_counts_as_failed(tmp_path: Path, study: Path):
    folder, packed = one_done(tmp_path, study)
    shutil.rmtree(folder)
    packed.write_bytes(packed.read_bytes()[:100])
    code, output, errors = finish(start(*command(tmp_path, "--list")))
    assert code == 0
    assert "1 entry, 1 runs: 0 done, 1 failed, 0 to do" in output
    assert errors.count("\n") == 1
    assert "is damaged" in errors


def test_run_that_failed_earlier_is_printed_and_exit_status_is_0(tmp_path: Path, study: Path):
    study.write_text(STUDY.replace('"train.batch_size": 16', '"train.batch_size": 16, "train.lr": 1e30'))
    queue_file(tmp_path, {"study": str(study), "scale": "small", "only": ["uniform"]})
    code, output, _ = finish(start(*command(tmp_path, "--discard")))
    assert code == 1
    assert "1 entry, 1 runs: 0 done, 1 failed, 0 to do" in output
    code, output, errors = finish(start(*command(tmp_path, "--discard")))
    assert code == 0, "an earlier failure does not change the exit status"
    assert "failed before" in errors
    assert errors.count("\n") == 1


def test_discard_without_pack_is_rejected(tmp_path: Path):
    code, _, errors = finish(start("-m", "favorit", "study", "queue", str(tmp_path / "queue.yaml"), "--discard"))
    assert code == 2
    assert "--discard needs --pack" in errors


def test_queue_killed_three_times_packs_every_run_once(tmp_path: Path, study: Path):
    entry = {"study": str(study), "seeds": [0, 1]}
    whole = tmp_path / "whole"
    whole.mkdir()
    queue_file(whole, entry)
    assert finish(start(*command(whole)))[0] == 0
    queue_file(tmp_path, entry)
    packed = tmp_path / "packed"
    moments = random.Random(0)
    before: dict[str, int] = {}
    for _ in range(3):
        process = start(*command(tmp_path, "--discard"), start_new_session=True)
        limit = time.monotonic() + PATIENCE
        while len(dict(files(packed))) <= len(before) and process.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.05)
        time.sleep(moments.uniform(0, 0.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        now = dict(files(packed))
        assert before.items() <= now.items(), "packed files are not rewritten"
        before = {name: changed for name, changed in now.items() if name.endswith(".zip")}
    code, output, _ = finish(start(*command(tmp_path, "--discard")))
    assert code == 0
    assert output.splitlines()[0].startswith(f"1 entry, 6 runs: {len(before)} done, 0 failed, {6 - len(before)} to do")
    assert before.items() <= dict(files(packed)).items()
    found = {path.stem: path for path in packed.glob("*.zip")}
    expected = {path.stem: path for path in (whole / "packed").glob("*.zip")}
    assert found.keys() == expected.keys()
    assert len(found) == 6
    for name, path in expected.items():
        one, other = Run(path), Run(found[name])
        assert untimed(one) == untimed(other)
        assert one.result["test"] == other.result["test"]
