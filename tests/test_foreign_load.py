"""The load from other processes, from constructed /proc contents and from a real busy process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from favorit.foreign_load import CpuTimes, ForeignLoad, load_between, monitor_load, parse_system, read_times, tree_ticks

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc/stat")

STAT = """cpu  1000 20 300 9000 50 6 7 80 400 10
cpu0 500 10 150 4500 25 3 4 40 200 5
cpu1 500 10 150 4500 25 3 3 40 200 5
intr 12345
"""
BUSY = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


def test_system_times_are_busy_ticks_steal_ticks_and_cores() -> None:
    """Idle time and I/O wait are not busy. Guest time is already part of user time."""
    assert parse_system(STAT) == (1000 + 20 + 300 + 6 + 7, 80, 2)


@pytest.mark.parametrize(
    "text", ["", "intr 5\n", "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n", "cpu 1 2 3 4\n"]
)
def test_system_times_without_counts_are_none(text: str) -> None:
    assert parse_system(text) is None


def test_own_time_includes_descendants_and_ended_children() -> None:
    def stat(pid: int, parent: int, *ticks: int, name: str = "python") -> str:
        return f"{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 {' '.join(map(str, ticks))} 20 0 1 0 5"

    stats = [
        stat(1, 0, 1000, 0, 0, 0),
        stat(10, 1, 1, 2, 3, 4),
        stat(11, 10, 10, 20, 0, 0, name="a (b) c"),
        stat(12, 11, 100, 200, 0, 0),
        stat(13, 1, 5000, 0, 0, 0),
    ]
    assert tree_ticks(stats, 10) == 10 + 30 + 300
    assert tree_ticks(stats, 99) == 0


def test_load_is_foreign_cpu_time_over_elapsed_time() -> None:
    before = CpuTimes(busy=100.0, steal=5.0, own=40.0, cores=2, clock=1000.0)
    after = CpuTimes(busy=118.0, steal=6.0, own=49.0, cores=2, clock=1010.0)
    load = load_between(before, after)
    assert load == ForeignLoad(processes=pytest.approx(0.9), steal=pytest.approx(0.1), cores=2)
    assert load_between(before, before) is None


@pytest.mark.parametrize(
    ("processes", "steal", "note"),
    [
        (0.09, 0.1, None),
        (
            0.9,
            0.0,
            "note: other processes used 0.9 of 2 cores during the measurement: times are too long, ratios may be off",
        ),
        (
            0.0,
            0.3,
            "note: the host of this virtual machine withheld 0.3 of 2 cores during the measurement: "
            "times are too long, ratios may be off",
        ),
    ],
)
def test_note_reports_load_above_a_tenth_of_a_core(processes: float, steal: float, note: str | None) -> None:
    assert ForeignLoad(processes, steal, 2).note == note


@contextmanager
def orphan() -> Iterator[int]:
    """A busy process that is not a descendant of this one."""
    code = (
        "import subprocess, sys\n"
        f"command = [sys.executable, '-S', '-c', {BUSY!r}]\n"
        "print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid)"
    )
    parent = subprocess.run([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    process = int(parent.stdout)
    try:
        yield process
    finally:
        os.kill(process, signal.SIGKILL)


def cpu_seconds(process: int) -> float:
    """CPU seconds of a living process."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK")


def test_busy_orphan_is_foreign_load() -> None:
    """About 1 core on a quiet machine. On a busy one, at least the CPU time that the orphan got."""
    with orphan() as process:
        before, start = cpu_seconds(process), time.monotonic()
        with monitor_load() as monitor:
            time.sleep(1.0)
        share = (cpu_seconds(process) - before) / (time.monotonic() - start)
    assert monitor.load is not None
    assert monitor.load.processes >= share - 0.1 > 0.1
    assert monitor.load.processes <= monitor.load.cores + 0.1
    assert monitor.json == {"processes": monitor.load.processes, "steal": monitor.load.steal, "cores": os.cpu_count()}


def test_busy_child_is_own_load() -> None:
    before = read_times()
    with subprocess.Popen([sys.executable, "-S", "-c", BUSY]) as child:
        while (share := cpu_seconds(child.pid)) < 0.3:  # on a busy machine this takes a while
            time.sleep(0.05)
        alive = read_times()
        child.kill()
    after = read_times()
    assert before is not None
    assert alive is not None
    assert after is not None
    assert alive.own - before.own >= share - 0.1 > 0, "while the child is alive"
    assert after.own - before.own >= share - 0.1, "after the child was waited for"
