"""How much CPU other processes used while something was measured, from Linux's /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

WORTH_SAYING = 0.1  # cores


@dataclass(frozen=True)
class ForeignLoad:
    """Cores that other processes used (`processes`) and that the host of a virtual machine withheld (`steal`), of
    `cores`, on average.
    """

    processes: float
    steal: float
    cores: int

    @property
    def note(self) -> str | None:
        """A line for the user, or None if the load is too small to matter."""
        parts = {"other processes used": self.processes, "the host of this virtual machine withheld": self.steal}
        said = [f"{what} {value:.1f} of {self.cores} cores" for what, value in parts.items() if value > WORTH_SAYING]
        return f"note: {' and '.join(said)} while this was measured: times are too long" if said else None


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since the system started: `busy` and `steal` of all cores together, `own` of this process and its
    descendants.
    """

    busy: float
    steal: float
    own: float
    cores: int
    clock: float


@dataclass
class Watch:
    """`load` is set at the end of `watching`; it stays None where the system does not say. `json` is the same as plain
    values.
    """

    load: ForeignLoad | None = None

    @property
    def json(self) -> dict[str, float] | None:
        return None if self.load is None else asdict(self.load)


@contextmanager
def watching() -> Iterator[Watch]:
    """Measures the load from other processes during the block. Descendants of this process are its own."""
    watch, before = Watch(), read_times()
    yield watch
    after = read_times()
    if before is not None and after is not None:
        watch.load = between(before, after)


def between(before: CpuTimes, after: CpuTimes) -> ForeignLoad | None:
    """(busy - own) / elapsed time, and steal / elapsed time; None if no time passed."""
    elapsed = after.clock - before.clock
    if elapsed <= 0:
        return None
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return ForeignLoad(max(0.0, foreign / elapsed), max(0.0, (after.steal - before.steal) / elapsed), after.cores)


def read_times() -> CpuTimes | None:
    """The CPU times of now; None where the system does not say."""
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
    """(busy ticks, stolen ticks, cores) from /proc/stat; None if it counts nothing, as in some sandboxes."""
    lines = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    total = next((list(map(int, words[1:])) for words in lines if words[0] == "cpu"), [])
    if len(total) < 8 or not any(total):
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = total[
        :8
    ]  # guests, which follow, are in user and nice already
    return user + nice + system + irq + softirq, steal, len(lines) - 1


def tree_ticks(stats: list[str], root: int) -> int:
    """Ticks of a process, its living descendants and all children that they waited for, from the texts of
    /proc/PID/stat.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for text in stats:
        number, _, rest = text.partition(" ")
        words = rest.rpartition(")")[2].split()  # a name may contain spaces and brackets
        ticks[int(number)] = sum(map(int, words[11:15]))  # utime, stime, cutime, cstime
        children.setdefault(int(words[1]), []).append(int(number))
    found, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        found += ticks.get(process, 0)
        waiting += children.get(process, [])
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return None
