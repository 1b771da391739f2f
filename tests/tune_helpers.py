"""Helpers for tests of tuning: a base that learns in a second, a search, and processes that die during a search.

`python tune_helpers.py JOBS.json` runs jobs. Each has a folder (`out`), `options` of the search, and the `place` where
it kills itself: at the Nth event of a kind (`started N`, `epoch N`, `finished N`), while claiming a trial (`waiting`,
`claimed`), or before the Nth outcome is stored (`tell N`). Libraries are imported once. Each job is forked before any
computation.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning_fabric  # noqa: F401  # before the fork, because these imports take most of the time
import optuna
import sklearn.model_selection  # noqa: F401
from torch.utils.flop_counter import FlopCounterMode

import favorit.tuning
from favorit import RunConfig
from favorit.measure import Timing
from favorit.tuning import TuneResult, worker
from favorit.tuning.events import StudyStarted, TrialFinished, TrialProgress, TrialStarted, TuneEvent

DATA = "synthetic(size=8, classes=3, train=480, test=48)"
# Validation accuracy after an epoch: 0.7 with a learning rate of 0.01, 0.25 with a learning rate of 1e-7.
EASY: dict[str, Any] = dict(
    model=dict(stem="patch(4)", dim=16, heads=2, depth=1, mlp_dim=16, head="mean"),
    data=dict(name=DATA, validation=0.25),
    train=dict(epochs=2, batch_size=32),
)
RATES = {"train.lr": "choice(0.03, 0.02, 0.01)"}


def easy(**sections: Any) -> RunConfig:
    """`EASY` with some fields changed."""
    return RunConfig(**{name: {**values, **sections.pop(name, {})} for name, values in EASY.items()}, **sections)


def search(
    out: Path, fields: dict[str, str] | None = None, base: RunConfig | None = None, **options: Any
) -> tuple[TuneResult, list[TuneEvent]]:
    """Searches in this process and returns the result and the events of trials.

    The storage is a journal, which is created faster than a database.
    """
    events: list[TuneEvent] = []
    listen = options.pop("listen", lambda event: None if isinstance(event, StudyStarted) else events.append(event))
    options = {"sampler": "grid", "repeats": 3, "storage": f"journal:{out / 'tune.log'}", **options}
    found = favorit.tuning.tune(fields or RATES, base or easy(), out=out, accelerator="cpu", listen=listen, **options)
    return found, events


def started(events: list[TuneEvent]) -> list[int]:
    """The trials that were started, in order."""
    return [event.number for event in events if isinstance(event, TrialStarted)]


def outcome(result: TuneResult) -> list[tuple[Any, ...]]:
    """The part of a result that does not depend on processes and times."""
    return [(trial.number, trial.state, trial.values, trial.run) for trial in result.trials]


def folders(out: Path) -> set[str]:
    """The identifiers of the runs in a folder."""
    return {path.parent.name for path in out.glob("*/config.json")}


def count_products(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Timing]:
    """Replaces `measure.time_interleaved`: counts FLOPs, which do not depend on the load of the machine."""
    found = {}
    for name, call in calls.items():
        with FlopCounterMode(display=False) as counter:
            call()
        found[name] = Timing(*[float(counter.get_total_flops())] * 3, repeats)
    return found


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(place: str) -> Callable[[TuneEvent], None]:
    """Patches the library so that this process dies at `place`. Returns a listener that kills it at an event."""
    kind, _, count = place.partition(" ")
    events: list[TuneEvent] = []
    if kind == "waiting":  # the trial exists and has no owner
        optuna.Study.ask = lambda *_: die()  # type: ignore[method-assign]
    elif kind == "claimed":  # the trial is running, but its owner is not stored
        worker.Worker._attempt = lambda *_: die()  # type: ignore[assignment,method-assign]
    elif kind == "tell":  # the trial has finished, but its outcome is not stored
        tell = optuna.Study.tell
        times: list[int] = []

        def count_tells(*given: Any, **options: Any) -> Any:
            times.append(1)
            return die() if len(times) == int(count) else tell(*given, **options)

        optuna.Study.tell = count_tells  # type: ignore[method-assign]

    def listen(event: TuneEvent) -> None:
        epoch = isinstance(event, TrialProgress) and event.accuracy is not None
        kinds = {
            "started": isinstance(event, TrialStarted),
            "epoch": epoch,
            "finished": isinstance(event, TrialFinished),
        }
        events.extend([event] if kinds.get(kind) else [])
        if events and len(events) == int(count):
            die()

    return listen


def _lines(out: str) -> int:
    journal = Path(out) / "tune.log"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def main(jobs: list[dict[str, Any]]) -> None:
    """Runs each job in its own process, killed at its `place` or once its journal has grown by `lines` lines.

    Jobs with `concurrent` run at the same time as the next job.
    """
    running: list[int] = []
    for job in jobs:
        process = os.fork()
        if process == 0:
            search(Path(job["out"]), base=easy(), listen=arm(job.get("place", "never 0")), **job.get("options", {}))
            os._exit(0)
        running.append(process)
        if "lines" in job:
            longer = _lines(job["out"]) + job["lines"]
            while (
                _lines(job["out"]) < longer
                and os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            ):
                time.sleep(0.002)
            os.kill(process, signal.SIGKILL)
        while running and not job.get("concurrent"):
            _, status = os.waitpid(running.pop(), 0)
            print(
                signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else os.WEXITSTATUS(status),
                flush=True,
            )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
