"""A pool of worker processes, which are new programs, not forks, and end with the process that started them.

A worker calls `target(parent, *arguments)`, where `parent` sends and receives messages. A worker ends at once when its
connection closes, so it never outlives its parent. Its work must tolerate being interrupted at any moment.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import Any

from favorit.errors import FavoritError
from favorit.process import worker_settings

GRACE = 5.0  # seconds from the closing of a worker's connection to SIGKILL

_is_worker = False


@dataclass(frozen=True)
class Exit:
    """How a worker process ended: its exit status (-N after signal N) and the text of its stderr."""

    status: int
    stderr: str

    def __str__(self) -> str:
        last = next((f": {line.strip()}" for line in reversed(self.stderr.split("\n")) if line.strip()), "")
        return f"exit status {self.status}{last}" if self.status >= 0 else f"signal {-self.status}{last}"


class Worker:
    """The parent's handle of a worker process."""

    def __init__(
        self, target: Callable[..., None], arguments: tuple[Any, ...], *, threads: int, imports_main: bool
    ) -> None:
        self.connection, theirs = Pipe()
        self._stderr = TemporaryFile()  # noqa: SIM115  # open until the worker ends
        # Adds favorit's own folder, in case this process found it through a changed sys.path.
        code = f"import sys; sys.path.append({str(Path(__file__).parents[1])!r}); from favorit.workers import main; "
        environment = {
            **os.environ,
            **worker_settings(),
            "OMP_NUM_THREADS": str(threads),
            "PYTHONSAFEPATH": "1",  # import nothing from the current directory
        }
        with theirs:
            # A new program, not a fork: the parent may have threads.
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{code}main({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                env=environment,
            )
        self.send(_preparation() if imports_main else None)
        self.send((target, arguments))

    def send(self, message: object) -> None:
        with suppress(OSError):  # the worker is dead: `receive` returns its Exit
            self.connection.send(message)

    def receive(self) -> Any:
        """The next message, or an Exit if the process has ended."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):  # also after a kill in the middle of a message
            return self._reap()

    def _reap(self) -> Exit:
        status = self._process.wait()
        self._stderr.seek(0)
        stderr = self._stderr.read().decode(errors="replace")
        self.close()
        return Exit(status, stderr)

    def close(self) -> None:
        """Ends the process: closes the connection, and kills the process if it has not ended after GRACE seconds."""
        self.connection.close()
        self._stderr.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._process.kill()
        self._process.wait()


class WorkerPool:
    """Worker processes of `threads` threads each, which end with the `with` block.

    With `imports_main` each worker first imports the script that this process runs, and so registers the script's
    components. Such a script must start workers below `if __name__ == "__main__":`.
    """

    def __init__(self, *, threads: int, imports_main: bool = False) -> None:
        self.threads = threads
        self.imports_main = imports_main
        self.workers: list[Worker] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.connection.close()  # all workers end at the same time
        for worker in self.workers:
            worker.close()

    def start(self, target: Callable[..., None], *arguments: Any) -> Worker:
        """A new worker that calls `target(parent, *arguments)`. Target and arguments must be picklable."""
        if _is_worker:
            raise FavoritError(
                "a worker process cannot start workers: put the call that starts them below "
                "'if __name__ == \"__main__\":' in your script"
            )
        worker = Worker(target, arguments, threads=self.threads, imports_main=self.imports_main)
        self.workers.append(worker)
        return worker

    def messages(self, timeout: float | None = None) -> Iterator[tuple[Worker, Any]]:
        """Waits up to `timeout` seconds, then yields one message of each worker that sent any. An Exit is the last."""
        workers = {worker.connection: worker for worker in self.workers}
        for connection in wait(list(workers), timeout):
            assert isinstance(connection, Connection)
            worker = workers[connection]
            message = worker.receive()
            if isinstance(message, Exit):
                self.workers.remove(worker)
            yield worker, message


class Parent:
    """A worker's connection to the process that started it."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._inbox: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._fill_inbox, daemon=True).start()

    def send(self, message: object) -> None:
        self._connection.send(message)

    def receive(self) -> Any:
        """The next message; waits for it."""
        return pickle.loads(self._inbox.get())

    def _fill_inbox(self) -> None:
        """Ends this process when the connection closes, even in the middle of an import or a training step."""
        with suppress(EOFError, OSError):
            while True:
                self._inbox.put(self._connection.recv_bytes())
        os._exit(1)


def main(descriptor: int) -> None:
    """The entry point of a worker process. `descriptor` is the file descriptor of its end of the connection."""
    global _is_worker
    _is_worker = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the parent stops its workers
    parent = Parent(Connection(descriptor))
    preparation = parent.receive()
    if preparation is not None:
        spawn.prepare(preparation)
    target, arguments = parent.receive()
    target(parent, *arguments)


def _preparation() -> dict[str, Any]:
    """The parent's sys.path and script, as multiprocessing's "spawn" passes them to its processes."""
    preparation = spawn.get_preparation_data("worker")
    del preparation["authkey"]  # can be pickled only inside multiprocessing
    return preparation
