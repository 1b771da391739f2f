"""Interleaved timing of work in separate processes, each with its own environment."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from favorit.bench.spread import all_decided, measure_rounds
from favorit.bench.timing import Stats, describe
from favorit.process import default_environment
from favorit.training.components import sources


class WorkerError(Exception):
    """A worker process ended without a reply. The message is the last line of its standard error."""


class TimedProcess:
    """A running worker: `python -m MODULE REQUEST` in the given environment. It serves timings with `timing_worker`.

    It first imports the files that registered components in this process.
    """

    def __init__(self, module: str, request: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by __exit__)
        text = json.dumps({"import": [source.path for source in sources()], "request": request})
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, text],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment,
        )  # fmt: skip

    def reply(self) -> Any:
        """Waits for the next reply of the worker."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            errors = self._errors.read().strip().splitlines()
            raise WorkerError(errors[-1] if errors else f"the process ended with status {self._process.returncode}")
        return json.loads(line)

    def seconds(self) -> float:
        """Runs the work once and returns its time."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self.reply())

    def __enter__(self) -> TimedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()  # closes its standard input, which ends the worker
        self._errors.close()


def single_reply(module: str, request: Mapping[str, Any]) -> Any:
    """The only reply to a request, from a new worker with default settings."""
    with TimedProcess(module, request, default_environment()) as process:
        return process.reply()


def interleave_processes(
    module: str,
    requests: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str]]],
    repeats: int,
    pairs: Collection[tuple[str, str]] = (),
) -> dict[str, Stats]:
    """Milliseconds of each process, timed in rounds a b c a b c .... `requests`: name -> (request, environment).

    Rounds continue as in `measure_rounds` until the ratio of each pair is decided.
    """
    with ExitStack() as stack:
        processes = {name: stack.enter_context(TimedProcess(module, *request)) for name, request in requests.items()}
        for process in processes.values():  # wait until all have finished their warm-up
            process.reply()
        rounds = measure_rounds(
            lambda: {name: 1e3 * process.seconds() for name, process in processes.items()}, repeats, all_decided(pairs)
        )
    return {name: describe(values) for name, values in rounds.items()}
