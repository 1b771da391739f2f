"""The cluster driver with a fake Ray: deaths, invalid messages, other runners, deadlines."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError, WorkerCrashedError

from favorit import FavoritError, RunConfig
from favorit.study import cluster as driver
from favorit.study import join
from favorit.study.node import Failed, Message
from favorit.study.tasks import Began, Ended, EpochDone, Task, TaskEvent, Unfinished
from favorit.training import Begin, Checkpoint, End, Epoch
from favorit.training.folder import RunFolder
from saved_data import RESULT

EPOCH = Epoch(0, 1.0, 0.5, 1.0, 0.5, 0.1, 1.0, 0.1, True)
CONTENT = json.dumps({"schema": 1, **RESULT}).encode()
BEGUN, ENDED = Message("a", Begin("", 0), {}), Message("a", End({}), {"result.json": CONTENT})


class Stream:
    """The messages of one attempt. An exception among them is the death of its worker."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages = iter(messages)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        return next(self.messages)

    def completed(self) -> Stream:
        return self


class Ray:
    """A fake Ray. Each task has a list of attempts, used one by one. `sent` has the files sent to each attempt."""

    def __init__(self, attempts: dict[str, list[list[Any]]], resources: dict[str, float] | None = None) -> None:
        self.attempts, self.resources = attempts, resources or {"CPU": 1.0}
        self.sent: list[tuple[str, dict[str, bytes]]] = []
        self.cancelled = 0
        self.most = 0

    def nodes(self) -> list[dict[str, Any]]:
        alive = dict(
            NodeID="a", Alive=True, NodeName="10.0.0.1", NodeManagerAddress="10.0.0.1", NodeManagerHostname="amber"
        )
        return [
            {**alive, "Resources": self.resources},
            {**alive, "NodeID": "b", "Alive": False, "Resources": {"CPU": 64.0}},
        ]

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, **options: Any) -> Any:
        self.options = options
        return lambda function: self.Remote(self)

    class Remote:
        def __init__(self, ray: Ray) -> None:
            self.ray = ray

        def remote(self, task: Task, contents: dict[str, bytes], order: Any) -> Stream:
            self.ray.sent.append((task.name, contents))
            return Stream(self.ray.attempts[task.name].pop(0))

    def wait(self, streams: list[Stream], num_returns: int, timeout: float) -> tuple[list[Stream], list[Stream]]:
        self.most = max(self.most, len(streams))
        return streams[:num_returns], streams[num_returns:]

    def get(self, message: Any) -> Any:
        if isinstance(message, Exception):
            raise message
        return message

    def cancel(self, stream: Stream, force: bool = False) -> None:
        self.cancelled += 1


def tasks(*names: str) -> list[Task]:
    return [Task(name, RunConfig(), f"{number:016x}") for number, name in enumerate(names)]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs the tasks for which the fake Ray has attempts, and returns the events."""
    monkeypatch.setattr(driver, "POLL", 0.01)

    def run(ray: Ray, **options: Any) -> list[TaskEvent]:
        @contextmanager
        def joined(address: str) -> Iterator[Ray]:
            assert address == "there"
            yield ray

        monkeypatch.setattr(driver, "joined", joined)
        return list(driver.cluster(tasks(*ray.attempts), tmp_path, address="there", **options))

    return run


def shown(events: list[TaskEvent]) -> list[str]:
    return [f"{type(event).__name__} {event.task.name}" for event in events]


def test_task_yields_began_trained_ended(study, tmp_path: Path):
    ray = Ray({"one": [[BEGUN, Message("a", EPOCH, {"config.json": b"{}"}), ENDED]]})
    events = study(ray, cpus=1)
    assert shown(events) == ["Began one", "EpochDone one", "Ended one"]
    began, trained, ended = events
    assert isinstance(began, Began)
    assert (began.step, began.where) == (0, "amber")
    assert isinstance(trained, EpochDone)
    assert trained.record["train_loss"] == 1.0
    assert isinstance(ended, Ended)
    assert (ended.result["status"], ended.elsewhere) == ("complete", False)
    assert (ray.options["num_cpus"], ray.options["num_gpus"], ray.options["max_retries"]) == (1, 0, 0)
    assert not RunFolder(tmp_path / f"{0:016x}").held()


@pytest.mark.parametrize("death", [WorkerCrashedError(), ActorDiedError(), None])
def test_attempt_after_a_death_starts_from_the_received_files(study, death):
    """A stream that ends without a last message counts as a death."""
    first = [BEGUN, Message("a", Checkpoint(7), {"checkpoint-7/state.pt": b"seven"}), *([death] if death else [])]
    ray = Ray({"one": [first, [Message("a", Begin("", 7), {}), ENDED]]})
    assert shown(study(ray)) == ["Began one", "Began one", "Ended one"]
    assert ray.sent == [("one", {}), ("one", {"checkpoint-7/state.pt": b"seven"})]


def test_task_fails_after_three_deaths_and_the_others_continue(study, tmp_path: Path):
    ray = Ray({"one": [[BEGUN, WorkerCrashedError()]] * 9, "two": [[BEGUN, ENDED]]})
    events = study(ray)
    (broke,) = (event for event in events if isinstance(event, Unfinished))
    assert broke.task.name == "one"
    assert broke.error.startswith("its worker died 3 times without progress; the last time: WorkerCrashedError: ")
    assert "\n" not in broke.error
    assert shown(events).count("Began one") == 3
    assert "Ended two" in shown(events)
    assert not RunFolder(tmp_path / f"{0:016x}").held()


def test_deaths_are_counted_only_without_progress(study):
    steps = [
        [BEGUN, Message("a", Checkpoint(step), {f"checkpoint-{step}/state.pt": b""}), WorkerCrashedError()]
        for step in range(1, 9)
    ]
    assert shown(study(Ray({"one": [*steps, [BEGUN, ENDED]]})))[-1] == "Ended one"


def test_failed_run_is_not_retried(study):
    failed = Message(
        "a", Failed("the loss became nan"), {"result.json": b'{"schema": 1, "status": "failed", "error": "nan"}'}
    )
    ray = Ray({"one": [[BEGUN, failed]], "two": [[BEGUN, ENDED]]})
    first = study(ray)
    assert [event.error for event in first if isinstance(event, Unfinished)] == ["on amber: the loss became nan"]
    again = study(Ray({"one": [], "two": []}))
    assert shown(again) == ["Unfinished one", "Ended two"]
    assert isinstance(again[0], Unfinished)
    assert "failed before: nan" in again[0].error
    assert isinstance(again[1], Ended)
    assert again[1].elsewhere


def test_task_fails_on_a_node_that_cannot_run_it(study):
    cause = ModuleNotFoundError("No module named 'favorit'")
    error = RayTaskError("work", f"Traceback\n  somewhere\n{cause!r}", cause)
    events = study(Ray({"one": [[error]], "two": [[ENDED]]}))
    assert sorted(shown(events)) == ["Ended two", "Unfinished one"]
    (broke,) = (event for event in events if isinstance(event, Unfinished))
    assert "No module named 'favorit'" in broke.error
    assert "\n" not in broke.error


def test_messages_with_invalid_file_names_are_not_written(study, tmp_path: Path):
    ray = Ray({"one": [[BEGUN, Message("a", Checkpoint(1), {"../../evil.json": b""})]], "two": [[ENDED]]})
    events = study(ray)
    assert sorted(shown(events)) == ["Began one", "Ended two", "Unfinished one"]
    assert ray.cancelled == 1
    assert not list(tmp_path.parent.rglob("evil.json"))


def test_damaged_run_fails_and_the_others_continue(study, tmp_path: Path):
    (tmp_path / f"{0:016x}").mkdir()
    (tmp_path / f"{0:016x}" / "result.json").write_text("{")
    events = study(Ray({"one": [], "two": [[ENDED]]}))
    assert shown(events) == ["Unfinished one", "Ended two"]
    assert isinstance(events[0], Unfinished)
    assert "is damaged" in events[0].error


def test_run_held_by_another_runner_comes_last_and_is_not_trained_again(study, tmp_path: Path):
    """Other tasks are trained first. The held run is not trained again, because the other runner completes it."""
    folder = RunFolder(tmp_path / f"{0:016x}")
    lock = folder.lock()
    lock.__enter__()
    checks = 0
    held = RunFolder.held

    def release_at_third_check(self: RunFolder) -> bool:
        nonlocal checks
        checks += 1
        if checks == 3:
            (folder.path / "result.json").write_bytes(CONTENT)
            (folder.path / ".best.safetensors.123").write_bytes(b"half")  # left behind by a kill
            lock.__exit__(None, None, None)
        return held(self)

    ray = Ray({"one": [], "two": [[ENDED]]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "held", release_at_third_check)
        events = study(ray)
    assert shown(events) == ["Ended two", "Ended one"]
    assert [event.elsewhere for event in events if isinstance(event, Ended)] == [False, True]
    assert {path.name for path in folder.path.iterdir()} == {"lock", "result.json"}


def test_claimed_runs_are_at_most_the_slots_plus_ahead(study):
    ray = Ray({f"task {number}": [[BEGUN, ENDED]] for number in range(20)}, {"CPU": 4.0})
    assert shown(study(ray, cpus=2)).count("Ended task 7") == 1
    assert ray.most == 4 // 2 + driver.AHEAD


def test_no_run_starts_after_the_deadline(study):
    ray = Ray({"one": [[ENDED]], "two": [[ENDED]]})
    events = study(ray, hours=0)
    assert shown(events) == ["Unfinished one", "Unfinished two"]
    assert all(isinstance(event, Unfinished) and event.later for event in events)
    assert ray.sent == []


def test_running_tasks_stop_at_a_checkpoint_after_the_deadline(study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At the deadline one task is complete, one stops after its epoch, and two have not started."""
    now = [0.0]
    monkeypatch.setattr(driver.time, "monotonic", lambda: now[0])

    class Late(Ray):
        def get(self, message: Any) -> Any:
            now[0] += 1000 * (message is last)
            return super().get(message)

    last = Message("a", EPOCH, {"epochs.jsonl": b"{}\n"})
    ray = Late({"one": [[BEGUN, ENDED]], "two": [[BEGUN, BEGUN, last, ENDED]], "three": [[BEGUN]], "four": [[BEGUN]]})
    monkeypatch.setattr(ray, "wait", lambda streams, num_returns, timeout: (streams[:1], streams[1:]))
    events = study(ray, hours=0.1)
    assert shown(events) == [
        "Began one",
        "Ended one",
        "Began two",
        "Began two",
        "EpochDone two",
        "Unfinished two",
        "Unfinished three",
        "Unfinished four",
    ]
    assert all(event.later for event in events if isinstance(event, Unfinished))
    assert ray.cancelled == 3
    assert (tmp_path / f"{1:016x}" / "epochs.jsonl").exists()


def test_closing_the_events_cancels_running_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ray = Ray({"one": [[BEGUN, ENDED]], "two": [[BEGUN, ENDED]]})

    @contextmanager
    def joined(address: str) -> Iterator[Ray]:
        yield ray

    monkeypatch.setattr(driver, "joined", joined)
    events = driver.cluster(tasks("one", "two"), tmp_path, address="there")
    assert isinstance(next(iter(events)), Began)
    assert RunFolder(tmp_path / f"{0:016x}").held()
    events.close()
    assert ray.cancelled == 2
    assert not RunFolder(tmp_path / f"{0:016x}").held()


GPUS = {"CPU": 8.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("resources", "options", "wanted"),
    [
        ({"CPU": 8.0}, dict(cpus=2, gpus=None, accelerator="auto"), {"CPU": 2}),
        (GPUS, dict(cpus=2, gpus=None, accelerator="auto"), {"CPU": 2, "GPU": 1}),
        (GPUS, dict(cpus=2, gpus=None, accelerator="cpu"), {"CPU": 2}),
        (GPUS, dict(cpus=1, gpus=0.5, accelerator="cuda"), {"CPU": 1, "GPU": 0.5}),
    ],
)
def test_run_uses_a_gpu_if_the_cluster_has_one_and_the_accelerator_allows_it(resources, options, wanted):
    assert join.resources(Ray({}, resources), **options) == wanted


@pytest.mark.parametrize("options", [dict(cpus=9, gpus=None), dict(cpus=1, gpus=3)])
def test_resources_that_no_node_has_are_rejected_before_the_start(options):
    with pytest.raises(
        FavoritError, match=r"a run needs .*, more than any node of the cluster has: 8 CPU and 2 GPU"
    ) as error:
        join.resources(Ray({}, GPUS), accelerator="auto", **options)
    assert "64" not in str(error.value), "dead nodes do not count"


@pytest.mark.parametrize("cpus", [0, -1, 1.5, True])
def test_cpus_that_are_not_a_positive_integer_are_rejected(tmp_path: Path, cpus):
    with pytest.raises(FavoritError, match="cpus="):
        list(driver.cluster([], tmp_path, address="there", cpus=cpus))


@pytest.mark.parametrize("gpus", [-1, 1.5])
def test_gpus_that_are_neither_integer_nor_fraction_are_rejected(tmp_path: Path, gpus):
    with pytest.raises(
        FavoritError, match=rf"gpus={gpus} is not valid: write an integer, or a fraction below 1 such as 0\.5"
    ):
        list(driver.cluster([], tmp_path, address="there", gpus=gpus))


@pytest.mark.parametrize("address", ["somewhere", ":6379", "host:port", "ray://host:10001", "host:", ""])
def test_invalid_address_is_rejected(address):
    with pytest.raises(FavoritError, match=r"is not valid: HOST:PORT, auto .* or local"), join.joined(address):
        pytest.fail("nothing is joined")


def unreachable(address: str) -> str:
    with pytest.raises(FavoritError) as error, join.joined(address):
        pytest.fail("nothing is joined")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_closed_port_is_reported_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without listening
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        before = time.monotonic()
        assert f"the Ray cluster {address} cannot be joined ([Errno" in unreachable(address)
        assert time.monotonic() - before < join.CONNECT_SECONDS + 1


def test_server_that_is_not_ray_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(join, "JOIN_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert f"the Ray cluster {address} cannot be joined (no answer within 2 s)" in unreachable(address)


def test_error_quotes_the_reason_of_the_cluster(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        join, "_JOIN", "print('much'); raise RuntimeError('first line\\nVersion mismatch: 2.1 and 2.2')"
    )
    assert "the Ray cluster auto cannot be joined (Version mismatch: 2.1 and 2.2)" in unreachable("auto")


def test_missing_ray_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(FavoritError, match=r"needs the package ray: pip install 'favorit\[ray\]'"),
        join.joined("local"),
    ):
        pytest.fail("nothing is joined")
