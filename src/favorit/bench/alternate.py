"""Contenders in processes of their own, timed in turn."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from favorit.bench.spread import Spread, spread
from favorit.process import as_shipped

CONTENDER = "favorit.bench.contender"


class ContenderError(Exception):
    """A contender's process ended before it answered; the message is the last thing it said."""


class Process:
    """A running contender: `python -m MODULE REQUEST` with the given environment."""

    def __init__(self, request: Mapping[str, Any], environment: Mapping[str, str], module: str = CONTENDER) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by __exit__)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(request)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment,
        )  # fmt: skip

    def answer(self) -> Any:
        """The next thing it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()
            raise ContenderError(said[-1] if said else f"it ended with status {self._process.returncode}")
        return json.loads(line)

    def seconds(self) -> float:
        """One turn."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self.answer())

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()  # closes its input, at which it ends
        self._errors.close()


def ask(request: Mapping[str, Any]) -> Any:
    """The one answer to a request that needs no turns."""
    with Process(request, as_shipped()) as process:
        return process.answer()


def take_turns(requests: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str]]], repeats: int) -> dict[str, Spread]:
    """Milliseconds of contenders, each a request and its environment, that take turns: a b c a b c ..."""
    with ExitStack() as stack:
        processes = {name: stack.enter_context(Process(*request)) for name, request in requests.items()}
        for process in processes.values():  # all of them warm, before the first turn
            process.answer()
        milliseconds: dict[str, list[float]] = {name: [] for name in processes}
        for _ in range(repeats):
            for name, process in processes.items():
                milliseconds[name].append(1e3 * process.seconds())
    return {name: spread(values) for name, values in milliseconds.items()}
