"""`favorit bench busy`, and the parts that all benchmarks share: locks, and a note about foreign load."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from favorit import FavoritError, ModelConfig
from favorit.bench import busy
from favorit.bench.busy import BUSY, DEFAULT, ONE, OURS, QUIET, are_met, busy_process, compare, settings, verdict
from favorit.bench.spread import most_rounds, ratio
from favorit.cli.console import open_console
from favorit.cli.machine import reserve_machine
from favorit.cli.main import app, main
from favorit.foreign_load import ForeignLoad, LoadMonitor
from favorit.machine_lock import measuring
from favorit.process import ALLOCATOR, SPIN_COUNT, SPINNING
from simulated_processes import simulated
from training_helpers import PATIENCE, finish, start

SPIN = "GOMP_SPINCOUNT"
TINY = [part for field in ("dim=8", "depth=1", "heads=2", "mlp_dim=8") for part in ("--set", f"model.{field}")]


def test_command_prints_times_ratios_and_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["favorit", "bench", "busy", *TINY, "--batch", "2", "--steps", "1", "--repeats", "1", "--json"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert not end.value.code, printed.err
    report = json.loads(printed.out)
    assert [row["name"] for row in report["settings"]] == [ONE, OURS, DEFAULT]
    one, ours, default = report["settings"]
    for case, name, base in (("quiet", "to_default", default), ("busy", "to_one_thread", one)):
        found = ratio(ours[case]["values"], base[case]["values"])
        assert found.rounds == most_rounds(1)
        assert (ours[name], ours[f"{name}_low"], ours[f"{name}_high"]) == (found.value, found.low, found.high)
    assert set(report["met"]) == {"quiet", "busy"}
    assert report["targets"] == {"quiet": 1.03, "busy": 1.6}
    assert "foreign_load" in report
    assert f"{ours['to_one_thread']:.2f}x (" in printed.err


def rounds(quiet: dict[str, float], busy: dict[str, float], noise: float = 1.0) -> dict[tuple[str, str], list[float]]:
    """Seven rounds. Favorit's times are also multiplied and divided by the noise."""
    factors = [1 / noise, 1.0, noise, 1.0, noise, 1 / noise, 1.0]
    return {
        (case, name): [time * (factor if name == OURS else 1) for factor in factors]
        for case, times in ((QUIET, quiet), (BUSY, busy))
        for name, time in times.items()
    }


STEADY = ({ONE: 100.0, OURS: 62.0, DEFAULT: 60.0}, {ONE: 100.0, OURS: 150.0, DEFAULT: 400.0})


def test_verdict_names_missed_target() -> None:
    assert verdict(compare(rounds(*STEADY))) == (
        "favorit: 1.03x the time of default spinning on a quiet machine (target at most 1.03: missed), "
        "1.50x the time of one thread next to a busy process (target at most 1.6: met)"
    )


def test_verdict_is_undecided_if_the_interval_contains_the_target() -> None:
    found = compare(rounds(*STEADY, noise=1.1))
    assert are_met(found) == {QUIET: None, BUSY: None}
    assert verdict(found) == (
        "favorit: 1.03x (0.94 to 1.14) the time of default spinning on a quiet machine "
        "(target at most 1.03: undecided), "
        "1.50x (1.36 to 1.65) the time of one thread next to a busy process (target at most 1.6: undecided)"
    )


@pytest.mark.parametrize(("noise", "measured"), [(1.0, 6), (1.1, 18)])
def test_rounds_continue_until_both_targets_are_decided(
    noise: float, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With simulated processes."""
    factors = itertools.cycle([1.0, 1.0, noise, noise, 1 / noise, 1 / noise])

    def seconds(request: Mapping[str, Any], environment: Mapping[str, str]) -> float:
        if environment["OMP_NUM_THREADS"] == "1":
            return STEADY[0][ONE]
        return STEADY[0][OURS] * next(factors) if SPIN in environment else STEADY[0][DEFAULT]

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(busy, "TimedProcess", simulated(seconds))
    monkeypatch.setattr(busy, "busy_process", nullcontext)
    found = busy.slowdowns(ModelConfig(), 1, steps=1, repeats=6)
    assert len(found[0].quiet.values) == measured


def test_settings_differ_only_in_threads_and_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SPINNING, *ALLOCATOR):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    one, ours, default = (set(found.items()) for found in (settings()[name] for name in (ONE, OURS, DEFAULT)))
    assert one ^ ours == {("OMP_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "2")}
    assert ours ^ default == {("GOMP_SPINCOUNT", SPIN_COUNT)}


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_busy_process_ends_with_its_block() -> None:
    with pytest.raises(KeyboardInterrupt), busy_process() as process:
        raise KeyboardInterrupt
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_busy_process_ends_when_its_parent_is_killed() -> None:
    code = (
        "import time\nfrom favorit.bench.busy import busy_process\n"
        "with busy_process() as p:\n print(p.pid, flush=True)\n time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        assert is_alive(number)
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while is_alive(number):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_benchmark_waits_for_another_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAVORIT_LOCKS", str(tmp_path))
    sizes = ("--head-dim", "4", "--tokens", "4", "--std", "1", "--draws", "1", "--m", "4", "--kernel", "favor")
    with measuring():
        process = start("-m", "favorit", "bench", "approximation", *sizes)
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting for another benchmark on this machine to finish\n"
        assert process.poll() is None
    status, out, errors = finish(process)
    assert status == 0, errors
    assert "favor" in out


@pytest.mark.parametrize("line", ["approximation --kernel softmax", "crossover --device tpu", "speed --mixer sofmax"])
def test_mistake_is_reported_before_the_machine_is_reserved(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("favorit.cli.machine.reserve_machine", lambda console: pytest.fail("reserved"))
    result = CliRunner().invoke(app, ["bench", *line.split()])
    assert isinstance(result.exception, FavoritError)
    assert line.split()[-1] in str(result.exception)


@pytest.mark.parametrize(
    "load", [ForeignLoad(0.9, 0.0, 2), ForeignLoad(0.05, 0.0, 2), None], ids=["busy", "quiet", "unknown"]
)
def test_benchmark_notes_foreign_load(
    load: ForeignLoad | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def monitor_load() -> Iterator[LoadMonitor]:
        yield LoadMonitor(load)

    monkeypatch.setattr("favorit.foreign_load.monitor_load", monitor_load)
    with reserve_machine(open_console()) as monitor:
        pass
    note = "note: other processes used 0.9 of 2 cores during the measurement: times are too long, ratios may be off\n"
    assert capsys.readouterr().out == (note if load is not None and load.processes > 0.1 else "")
    assert monitor.load == load


def test_second_process_of_benchmark_takes_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with measuring(), reserve_machine(open_console()) as monitor:
        assert monitor.json is None
