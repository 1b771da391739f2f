"""CPU time that other processes used during a measurement, from Linux's /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

NOTE_THRESHOLD = 0.1  # cores


@dataclass(frozen=True)
class ForeignLoad:
    """The mean number of cores that other processes used (`processes`) and that the host of a virtual machine withheld
    (`steal`). The machine has `cores`.
    """

    processes: float
    steal: float
    cores: int

    @property
    def note(self) -> str | None:
        """A line for the user; None if neither load is above 0.1 cores."""
        causes = {"other processes used": self.processes, "the host of this virtual machine withheld": self.steal}
        reported = [
            f"{cause} {load:.1f} of {self.cores} cores" for cause, load in causes.items() if load > NOTE_THRESHOLD
        ]
        return (
            f"note: {' and '.join(reported)} during the measurement: times are too long, ratios may be off"
            if reported
            else None
        )


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds since boot: `busy` and `steal` are sums over all cores, `own` is this process with its descendants.

    `clock` is the time of the reading in seconds.
    """

    busy: float
    steal: float
    own: float
    cores: int
    clock: float


@dataclass
class LoadMonitor:
    """`load` is set when `monitor_load` ends. It stays None if the system does not report CPU times."""

    load: ForeignLoad | None = None

    @property
    def json(self) -> dict[str, float] | None:
        """The load as JSON data."""
        return None if self.load is None else asdict(self.load)


@contextmanager
def monitor_load() -> Iterator[LoadMonitor]:
    """Measures the load from other processes during the block. Descendants of this process do not count as others."""
    monitor, before = LoadMonitor(), read_times()
    yield monitor
    after = read_times()
    if before is not None and after is not None:
        monitor.load = load_between(before, after)


def load_between(before: CpuTimes, after: CpuTimes) -> ForeignLoad | None:
    """(busy - own) / elapsed time, and steal / elapsed time; None if no time passed."""
    elapsed = after.clock - before.clock
    if elapsed <= 0:
        return None
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return ForeignLoad(max(0.0, foreign / elapsed), max(0.0, (after.steal - before.steal) / elapsed), after.cores)


def read_times() -> CpuTimes | None:
    """The current CPU times; None if the system does not report them."""
    try:
        system = parse_system(Path("/proc/stat").read_text())
        if system is None:
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        processes = [stat for path in Path("/proc").glob("[0-9]*/stat") if (stat := _read(path)) is not None]
    except (OSError, ValueError):
        return None
    busy, steal, cores = system
    return CpuTimes(busy / ticks, steal / ticks, tree_ticks(processes, os.getpid()) / ticks, cores, time.monotonic())


def parse_system(text: str) -> tuple[int, int, int] | None:
    """(busy ticks, stolen ticks, cores) from /proc/stat; None if all counts are 0, as in some sandboxes."""
    lines = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    total = next((list(map(int, words[1:])) for words in lines if words[0] == "cpu"), [])
    if len(total) < 8 or not any(total):
        return None
    # The guest times that follow are already included in user and nice.
    user, nice, system, _idle, _iowait, irq, softirq, steal = total[:8]
    return user + nice + system + irq + softirq, steal, len(lines) - 1


def tree_ticks(stats: list[str], root: int) -> int:
    """Ticks of a process, its living descendants and the ended children that any of them waited for.

    `stats` are the contents of /proc/PID/stat of all processes.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for text in stats:
        pid, _, rest = text.partition(" ")
        fields = rest.rpartition(")")[2].split()  # the name before it may contain spaces and parentheses
        ticks[int(pid)] = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
        children.setdefault(int(fields[1]), []).append(int(pid))
    total, pending = 0, [root]
    while pending:
        process = pending.pop()
        total += ticks.get(process, 0)
        pending += children.get(process, [])
    return total


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return None
