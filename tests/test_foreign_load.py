"""The load from other processes, from given texts of /proc and from a real busy process."""

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

from favorit.foreign_load import CpuTimes, ForeignLoad, between, parse_system, read_times, tree_ticks, watching

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not say")

STAT = """cpu  1000 20 300 9000 50 6 7 80 400 10
cpu0 500 10 150 4500 25 3 4 40 200 5
cpu1 500 10 150 4500 25 3 3 40 200 5
intr 12345
"""
BUSY = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


def test_system_times_are_busy_steal_and_cores() -> None:
    """Idle and waiting for disks is not busy, and guests are counted in user time already."""
    assert parse_system(STAT) == (1000 + 20 + 300 + 6 + 7, 80, 2)


@pytest.mark.parametrize(
    "text", ["", "intr 5\n", "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n", "cpu 1 2 3 4\n"]
)
def test_system_times_that_say_nothing_are_none(text: str) -> None:
    assert parse_system(text) is None


def test_own_time_is_that_of_the_process_tree() -> None:
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


def test_load_is_what_others_used_over_the_time_that_passed() -> None:
    before = CpuTimes(busy=100.0, steal=5.0, own=40.0, cores=2, clock=1000.0)
    after = CpuTimes(busy=118.0, steal=6.0, own=49.0, cores=2, clock=1010.0)
    load = between(before, after)
    assert load == ForeignLoad(processes=pytest.approx(0.9), steal=pytest.approx(0.1), cores=2)
    assert between(before, before) is None


@pytest.mark.parametrize(
    ("processes", "steal", "note"),
    [
        (0.09, 0.1, None),
        (0.9, 0.0, "note: other processes used 0.9 of 2 cores while this was measured: times are too long"),
        (
            0.0,
            0.3,
            "note: the host of this virtual machine withheld 0.3 of 2 cores while this was measured: times are too long",
        ),
    ],
)
def test_note_names_load_above_a_tenth_of_a_core(processes: float, steal: float, note: str | None) -> None:
    assert ForeignLoad(processes, steal, 2).note == note


@contextmanager
def orphan() -> Iterator[int]:
    """A busy process that is no descendant of this one."""
    code = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-S', '-c', {BUSY!r}], stdout=subprocess.DEVNULL).pid)"
    number = int(
        subprocess.run([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    )
    try:
        yield number
    finally:
        os.kill(number, signal.SIGKILL)


def used(process: int) -> float:
    """Seconds that a living process used."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK")


def test_busy_process_of_another_is_foreign_load() -> None:
    """About 1 core on a quiet machine; on a busy one, whatever it got, and what others used."""
    with orphan() as process:
        before, start = used(process), time.monotonic()
        with watching() as watch:
            time.sleep(1.0)
        share = (used(process) - before) / (time.monotonic() - start)
    assert watch.load is not None
    assert watch.load.processes >= share - 0.1 > 0.1
    assert watch.load.processes <= watch.load.cores + 0.1
    assert watch.json == {"processes": watch.load.processes, "steal": watch.load.steal, "cores": os.cpu_count()}


def test_busy_child_is_own_load() -> None:
    before = read_times()
    with subprocess.Popen([sys.executable, "-S", "-c", BUSY]) as child:
        time.sleep(0.5)
        alive, share = read_times(), used(child.pid)
        child.kill()
    after = read_times()
    assert before is not None
    assert alive is not None
    assert after is not None
    assert alive.own - before.own >= share - 0.1 > 0, "while it lives"
    assert after.own - before.own >= share - 0.1, "and after it was waited for"
