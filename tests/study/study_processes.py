"""A server that forks runners for kill tests: `python study_processes.py` reads JSON jobs and prints a line for each.

The libraries are imported once. A runner is a fork of this process and its workers are forks of the runner, so that
none of them spends seconds on imports. Everything else is the code of `favorit.study.run`: connections, locks,
checkpoints (here after every step) and the handling of deaths.

    {"do": "run", "out": ..., "study": ..., "workers": 2, ...}   starts a runner and prints its process id;
                                                                 its events go to OUT.log
    {"do": "wait", "process": id}                                waits for the process and prints its exit status
    {"do": "train", "out": ..., "study": ...}                    trains every point without workers in a new process,
                                                                 and prints its process id

With "deadly": TEXT a worker is killed when it starts a task whose name contains TEXT.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import lightning_fabric  # noqa: F401  # imported before forking: these imports take most of the time
import sklearn.model_selection  # noqa: F401

import favorit
from favorit import workers
from favorit.study import Options, load_study, local, worker
from favorit.study.tasks import TaskEvent


class Forked:
    """Replaces subprocess.Popen by a fork that closes inherited descriptors, as Popen does. Writes an event to `log` if
    a worker has to be killed because it does not end.
    """

    log: str

    def __init__(self, command: list[str], pass_fds: list[int], stderr: Any, **_: Any) -> None:
        (mine,) = pass_fds
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(stderr.fileno(), 2)
            os.closerange(3, mine)
            os.closerange(mine + 1, 1024)
            with contextlib.suppress(BaseException):
                workers.main(mine)
            os._exit(1)

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (1e9 if timeout is None else timeout)
        while self.status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("worker", timeout or 0)
            else:
                time.sleep(0.002)
        return self.status

    def kill(self) -> None:
        if self.status is None:
            with open(self.log, "a") as log:
                log.write(json.dumps({"event": "killed"}) + "\n")
            os.kill(self.pid, signal.SIGKILL)


def prepare(job: dict[str, Any]) -> None:
    Forked.log = f"{job['out']}.log"
    workers.subprocess = SimpleNamespace(Popen=Forked, DEVNULL=None, TimeoutExpired=subprocess.TimeoutExpired)  # type: ignore[assignment]
    local.local.__kwdefaults__["checkpoint_seconds"] = 0.0
    workers.GRACE = 600.0  # long enough for a slow disk: only a worker that hangs is killed
    attempt = worker._attempt

    def deadly(task: Any, *rest: Any) -> Any:
        if job.get("deadly") and job["deadly"] in task.name:
            os.kill(os.getpid(), signal.SIGKILL)
        return attempt(task, *rest)

    worker._attempt = deadly


def run(job: dict[str, Any]) -> None:
    prepare(job)
    with open(Forked.log, "a", buffering=1) as log:

        def listen(event: TaskEvent) -> None:
            shown = {"runner": os.getpid(), "event": type(event).__name__, "id": event.task.id, "name": event.task.name}
            rest = {
                key: value
                for key in ("step", "elsewhere", "error", "later")
                if (value := getattr(event, key, None)) is not None
            }
            log.write(json.dumps({**shown, **rest}) + "\n")

        options = Options(**job.get("options", {}))
        chosen = {key: job[key] for key in ("workers", "hours") if key in job}
        report = favorit.study.run(
            job["study"], job["out"], options=options, accelerator="cpu", listen=listen, **chosen
        )
    os._exit(len(report.errors))


def train(job: dict[str, Any]) -> None:
    for config in load_study(job["study"]).configs().values():
        favorit.train(config, out=job["out"], accelerator="cpu")
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        if job["do"] == "wait":
            _, status = os.waitpid(job["process"], 0)
            print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
            continue
        process = os.fork()
        if process == 0:
            try:
                {"run": run, "train": train}[job["do"]](job)
            except KeyboardInterrupt:
                os._exit(130)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(99)
        print(json.dumps(process), flush=True)


if __name__ == "__main__":
    main()
