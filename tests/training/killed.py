"""A process that trains and is killed: `python killed.py JOBS.json`, each job a configuration, a folder and where to
die.

The libraries are imported once; every job is a process of its own, forked before any of them has computed anything, and
ends by SIGKILL. Places: `step N`, `epoch N` (after that event), `weights N` (half a checkpoint of step N), `old N`
(between the new checkpoint and the end of the old one), `line N` (half a record of epoch N), `replace FILE N` (before
FILE takes its place for the Nth time).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import lightning_fabric  # noqa: F401  # before the fork: these take most of the time
import sklearn.model_selection  # noqa: F401

import favorit
from favorit.training import Epoch, Event, Step, checkpoint, engine, folder


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(place: str) -> Any:
    """Lays the trap; returns the listener that is one, too."""
    kind, *rest = place.split()
    number = int(rest[-1])
    if kind == "weights":
        saved = engine.save_checkpoint

        def half(path: Path, progress: Any, models: dict[str, Any], stateful: Any) -> None:
            if progress.step == number:
                checkpoint.save_weights(models["model"], path / "model.safetensors")
                die()
            saved(path, progress, models, stateful)

        engine.save_checkpoint = half
    elif kind == "old":
        removed = folder.shutil.rmtree

        def remove(path: Path, **options: Any) -> None:
            if path.name == f"checkpoint-{number}":
                next(path.iterdir()).unlink()
                die()
            removed(path, **options)

        folder.shutil.rmtree = remove
    elif kind == "line":
        append = folder.RunFolder.append_epoch

        def cut(self: folder.RunFolder, record: dict[str, Any]) -> None:
            if record["epoch"] == number:
                with open(self.path / "epochs.jsonl", "a") as file:
                    file.write(json.dumps(record)[:40])
                die()
            append(self, record)

        folder.RunFolder.append_epoch = cut
    elif kind == "replace":
        replaced, times = folder.os.replace, []

        def replace(source: Path, target: Path) -> None:
            times.extend([1] if Path(target).name == rest[0] else [])
            if len(times) == number:
                die()
            replaced(source, target)

        folder.os.replace = replace
    heard: list[Event] = []

    def listen(event: Event, config: Any) -> None:
        heard.append(event)
        wanted = {"step": Step, "epoch": Epoch}.get(kind)
        if wanted is not None and sum(isinstance(each, wanted) for each in heard) == number:
            die()

    return listen


def main(jobs: list[dict[str, Any]]) -> None:
    for job in jobs:
        process = os.fork()
        if process == 0:
            favorit.train(
                job["config"], out=job["out"], accelerator="cpu", checkpoint_seconds=0, listen=arm(job["place"])
            )
            os._exit(0)
        _, status = os.waitpid(process, 0)
        ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        print(json.dumps({"place": job["place"], "ended": ended}), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
