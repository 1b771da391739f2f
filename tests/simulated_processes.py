"""Worker processes with simulated times, in place of `favorit.bench.timed_process.TimedProcess`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from favorit.bench.timed_process import TimedProcess


def simulated(seconds: Callable[[Mapping[str, Any], Mapping[str, str]], float]) -> type[TimedProcess]:
    """A class of processes that take `seconds(request, environment)` for each run of their work."""

    class Simulated(TimedProcess):
        def __init__(self, module: str, request: Mapping[str, Any], environment: Mapping[str, str]) -> None:
            self.request = request
            self.environment = environment

        def __exit__(self, *error: object) -> None:
            pass

        def reply(self) -> str:
            return "warm"

        def seconds(self) -> float:
            return seconds(self.request, self.environment)

    return Simulated
