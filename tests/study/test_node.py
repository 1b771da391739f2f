"""The messages of a node that trains a task, without a cluster."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from favorit.study.node import Failed, Order, work
from favorit.study.tasks import Task
from favorit.study.transfer import write_contents
from favorit.training import Begin, Checkpoint, End, Epoch, Run
from favorit.training.folder import RunFolder
from favorit.training.identity import run_id
from training_helpers import LIVELY, Outcome, assert_bit_equal, fit, pictures, resolved, tiny

CONFIG = tiny(**LIVELY)  # three epochs of six steps


def task_of(config=CONFIG) -> Task:
    known, data = resolved(config)
    return Task("point", config, run_id(known, data.digest))


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Order]:
    """An order for runs of one thread, on a fake node with three CPUs and its own temporary folder."""
    node = dict(NodeID="here", Alive=True, Resources={"CPU": 3.0})
    context = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context, nodes=lambda: [node]))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Order(
        out="OUT",
        folder=str(tmp_path / "absent"),
        data_dir=None,
        accelerator="cpu",
        wanted={"CPU": 1},
        checkpoint_seconds=1e9,
    )
    torch.set_num_threads(before)


def left(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "temporary").glob("favorit-*"))


def test_epoch_message_has_the_current_files(order: Order, tmp_path: Path):
    reference, _ = fit(tmp_path / "reference", CONFIG)
    received = RunFolder(tmp_path / "received" / reference.id)
    received.path.mkdir(parents=True)
    kinds = []
    for message in work(task_of(), {}, order):
        kinds.append(type(message.event))
        if message.contents:
            write_contents(message.contents, received)
        if isinstance(message.event, Epoch):
            assert received.epochs()[-1]["epoch"] == message.event.epoch
            assert [path.name for path in received.checkpoints()] == [f"checkpoint-{6 * (message.event.epoch + 1)}"]
        if isinstance(message.event, End):
            assert left(tmp_path) == [], "the last message comes after the cleanup"
    assert kinds == [Begin, Epoch, Epoch, Epoch, End]
    assert_bit_equal(Outcome.of(Run(received.path)), Outcome.of(reference))
    environment = Run(received.path).result["environment"]
    assert (environment["threads"], environment["workers"]) == (1, 3)


def test_checkpoints_within_an_epoch_are_sent_and_can_be_resumed(order: Order, tmp_path: Path):
    messages = work(task_of(), {}, replace(order, checkpoint_seconds=0))
    half = next(message for message in messages if isinstance(message.event, Checkpoint) and message.event.step == 9)
    assert {name.split("/")[0] for name in half.contents if "/" in name} == {"checkpoint-9"}
    messages.close()
    assert left(tmp_path) == []
    first, *_, last = work(task_of(), half.contents, order)
    assert isinstance(first.event, Begin)
    assert first.event.step == 9
    assert isinstance(last.event, End)


def test_closing_the_messages_ends_training(order: Order, tmp_path: Path):
    threads = threading.active_count()
    messages = work(task_of(), {}, order)
    assert isinstance(next(messages).event, Begin)
    assert len(left(tmp_path)) == 1
    assert threading.active_count() == threads + 1
    messages.close()
    assert threading.active_count() == threads
    assert left(tmp_path) == []


def failure(task: Task, order: Order, contents: dict[str, bytes] | None = None) -> Failed:
    *_, last = work(task, contents or {}, order)
    assert isinstance(last.event, Failed)
    assert "\n" not in last.event.error
    return last.event


@pytest.mark.parametrize("change", ["data", "version"])
def test_run_with_another_identifier_on_the_node_is_rejected(order: Order, change):
    task = replace(task_of(), id="0" * 16) if change == "data" else task_of()
    order = replace(order, version="0.0.1") if change == "version" else order
    (message,) = work(task, {}, order)
    assert isinstance(message.event, Failed)
    assert f"but {task.id} with favorit {order.version} on the driver" in message.event.error
    assert message.contents == {}


def test_diverging_run_sends_its_failed_result(order: Order):
    *_, last = work(task_of(tiny(train=dict(optimizer="sgd", lr=1e18))), {}, order)
    assert isinstance(last.event, Failed)
    assert last.event.error.startswith("the loss became nan")
    assert b'"failed"' in last.contents["result.json"]


def test_error_message_names_the_folder_of_the_driver(order: Order, tmp_path: Path):
    messages = work(task_of(), {}, order)
    epoch = next(message for message in messages if isinstance(message.event, Epoch))
    messages.close()
    damaged = {**epoch.contents, "checkpoint-6/state.pt": b"damaged"}
    error = failure(task_of(), order, damaged).error
    assert error.startswith(f"OUT/{task_of().id}/checkpoint-6/state.pt is damaged")
    assert str(tmp_path) not in error


def test_node_rejects_invalid_file_names(order: Order, tmp_path: Path):
    assert "is not the name of a file of a run" in failure(task_of(), order, {"../evil.json": b""}).error
    assert not list(tmp_path.rglob("evil.json"))


def test_relative_data_paths_are_resolved_in_the_folder_of_the_driver(
    order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pictures(tmp_path / "mine" / "photos", {"cat": 30, "dog": 30})
    monkeypatch.chdir(tmp_path / "mine")
    task = task_of(tiny(data=dict(name="folder:photos"), train=dict(epochs=1)))
    monkeypatch.chdir(tmp_path)
    assert "photos" in failure(task, order).error
    *_, last = work(task, {}, replace(order, folder=str(tmp_path / "mine")))
    assert isinstance(last.event, End)
