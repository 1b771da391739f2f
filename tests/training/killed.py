"""`python killed.py JOBS.json`: trains runs, each killed by SIGKILL. A job has a configuration, a folder and a place.

The libraries are imported once; every job is forked from this process before any computation. Places:

    step N, epoch N     after that event
    weights N           in the middle of writing the checkpoint of step N
    old N               in the middle of deleting the checkpoint of step N
    line N              in the middle of writing the record of epoch N
    replace FILE N      before FILE is renamed into place for the Nth time
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import lightning_fabric  # noqa: F401  # imported before the fork, because importing it takes most of the time
import sklearn.model_selection  # noqa: F401

import favorit
from favorit import files
from favorit.training import Epoch, Event, Step, checkpoint, engine, folder


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(place: str) -> Any:
    """Makes this process kill itself at `place`. Returns a listener that must be passed to `train`."""
    kind, *rest = place.split()
    number = int(rest[-1])
    if kind == "weights":
        original = engine.save_checkpoint

        def save_half(path: Path, progress: Any, models: dict[str, Any], stateful: Any) -> None:
            if progress.step == number:
                (path / "model.safetensors").write_bytes(checkpoint.weight_bytes(models["model"]))
                die()
            original(path, progress, models, stateful)

        engine.save_checkpoint = save_half
    elif kind == "old":
        removed = files.shutil.rmtree

        def remove(path: Path, **options: Any) -> None:
            if path.name == f"checkpoint-{number}":
                next(path.iterdir()).unlink()
                die()
            removed(path, **options)

        files.shutil.rmtree = remove
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
    events: list[Event] = []

    def listen(event: Event, config: Any) -> None:
        events.append(event)
        fatal = {"step": Step, "epoch": Epoch}.get(kind)
        if fatal is not None and sum(isinstance(each, fatal) for each in events) == number:
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
