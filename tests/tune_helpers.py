"""What the tests of tuning share: a base that learns in a second, a study of it, and processes that tune and are
killed.

`python tune_helpers.py JOBS.json`: each job has a folder (`out`), `options` of the study, and where it dies. Libraries
are imported once; every job is forked before any of them has computed anything. Places: `begun N`, `epoch N`, `told N`
(after so many of these events), `waiting`, `asked` (in the middle of taking a trial), `tell N` (before a study learns
of an end).
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

import lightning_fabric  # noqa: F401  # before the fork: these take most of the time
import optuna
import sklearn.model_selection  # noqa: F401
from torch.utils.flop_counter import FlopCounterMode

import favorit.tuning
from favorit import RunConfig
from favorit.measure import Timing
from favorit.tuning import TuneResult, worker
from favorit.tuning.events import Began, Over, Planned, Trained, TuneEvent

DATA = "synthetic(size=8, classes=3, train=480, test=48)"
# Validation accuracy after an epoch: 0.7 with a learning rate of 0.01, 0.25 with one of 1e-7.
EASY: dict[str, Any] = dict(
    model=dict(stem="patch(4)", dim=16, heads=2, depth=1, mlp_dim=16, head="mean"),
    data=dict(name=DATA, validation=0.25),
    train=dict(epochs=2, batch_size=32),
)
RATES = {"train.lr": "choice(0.03, 0.02, 0.01)"}


def easy(**sections: Any) -> RunConfig:
    """The base with some fields changed."""
    return RunConfig(**{name: {**values, **sections.pop(name, {})} for name, values in EASY.items()}, **sections)


def search(
    out: Path, fields: dict[str, str] | None = None, base: RunConfig | None = None, **options: Any
) -> tuple[TuneResult, list[TuneEvent]]:
    """Tunes in this process: the result and what was said. A journal is made faster than a data base."""
    events: list[TuneEvent] = []
    hear = options.pop("listen", lambda event: None if isinstance(event, Planned) else events.append(event))
    options = {"sampler": "grid", "repeats": 3, "storage": f"journal:{out / 'tune.log'}", **options}
    found = favorit.tuning.tune(fields or RATES, base or easy(), out=out, accelerator="cpu", listen=hear, **options)
    return found, events


def begun(events: list[TuneEvent]) -> list[int]:
    return [event.number for event in events if isinstance(event, Began)]


def outcome(result: TuneResult) -> list[tuple[Any, ...]]:
    """What may not depend on who did it and when."""
    return [(trial.number, trial.state, trial.values, trial.run) for trial in result.trials]


def folders(out: Path) -> set[str]:
    """The runs of a folder."""
    return {path.parent.name for path in out.glob("*/config.json")}


def count_products(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Timing]:
    """In the place of `measure.time_interleaved`: the products of each call for its seconds, which are the same on a
    busy machine.
    """
    found = {}
    for name, call in calls.items():
        with FlopCounterMode(display=False) as counter:
            call()
        found[name] = Timing(*[float(counter.get_total_flops())] * 3, repeats)
    return found


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(place: str) -> Callable[[TuneEvent], None]:
    """Lays the trap; returns the listener that is one, too."""
    kind, _, count = place.partition(" ")
    heard: list[TuneEvent] = []
    if kind == "waiting":  # a trial is made, nobody has it
        optuna.Study.ask = lambda *_: die()  # type: ignore[method-assign]
    elif kind == "asked":  # it is this process's, which has not said so
        worker.Desk._attempt = lambda *_: die()  # type: ignore[assignment,method-assign]
    elif kind == "tell":  # it is over, the study does not know
        tell = optuna.Study.tell
        times: list[int] = []

        def count_tells(*given: Any, **options: Any) -> Any:
            times.append(1)
            return die() if len(times) == int(count) else tell(*given, **options)

        optuna.Study.tell = count_tells  # type: ignore[method-assign]

    def listen(event: TuneEvent) -> None:
        epoch = isinstance(event, Trained) and event.accuracy is not None
        wanted = {"begun": isinstance(event, Began), "epoch": epoch, "told": isinstance(event, Over)}
        heard.extend([event] if wanted.get(kind) else [])
        if heard and len(heard) == int(count):
            die()

    return listen


def _lines(out: str) -> int:
    journal = Path(out) / "tune.log"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def main(jobs: list[dict[str, Any]]) -> None:
    """Each job in a process of its own, killed at its `place`, or once its journal is so many `lines` longer; those
    with `beside` run while the next one does.
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
        while running and not job.get("beside"):
            _, status = os.waitpid(running.pop(), 0)
            print(
                signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else os.WEXITSTATUS(status),
                flush=True,
            )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
