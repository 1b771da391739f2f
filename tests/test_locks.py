"""File locks: exclusive and shared, waiting or not, and released when their holder dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from favorit.locks import acquire, hold, is_held, release, try_hold
from training_helpers import PATIENCE, finish, start

HOLDER = """
import sys, time
from pathlib import Path
from favorit.locks import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@contextmanager
def reading(lock: Path) -> Iterator[None]:
    """Holds the lock shared."""
    lock.touch()
    with open(lock) as file:
        acquire(file, shared=True)
        yield


def test_hold_is_exclusive_and_ends_with_its_block(lock: Path) -> None:
    with hold(lock):
        assert is_held(lock)
        with try_hold(lock) as is_ours:
            assert not is_ours
    assert not is_held(lock)
    with try_hold(lock) as is_ours:
        assert is_ours
        assert is_held(lock)
    assert not is_held(lock)


def test_lock_is_released_when_its_holder_is_killed(lock: Path) -> None:
    process = start("-c", HOLDER, str(lock))
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert is_held(lock)
    process.kill()
    finish(process)
    assert not is_held(lock)


def test_is_held_without_a_file_raises_and_creates_none(lock: Path) -> None:
    with pytest.raises(FileNotFoundError):
        is_held(lock)
    assert not lock.exists()


def test_shared_lock_does_not_count_as_held(lock: Path) -> None:
    with reading(lock):
        assert not is_held(lock)


@pytest.mark.parametrize("other", ["exclusive", "shared"])
def test_hold_waits_for_other_holders(lock: Path, other: str) -> None:
    held = threading.Event()

    def wait() -> None:
        with hold(lock):
            held.set()

    waiting = threading.Thread(target=wait, daemon=True)
    with hold(lock) if other == "exclusive" else reading(lock):
        waiting.start()
        assert not held.wait(0.1)
    waiting.join(PATIENCE)
    assert held.is_set()


def test_try_hold_waits_for_shared_locks_only(lock: Path) -> None:
    with open(lock, "w") as file:
        acquire(file, shared=True)
        threading.Timer(0.2, release, [file]).start()
        start = time.monotonic()
        with try_hold(lock) as is_ours:
            assert is_ours
        assert time.monotonic() - start >= 0.2


@pytest.mark.parametrize(
    ("first", "second", "compatible"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_acquire_without_waiting_fails_unless_both_are_shared(
    lock: Path, first: bool, second: bool, compatible: bool
) -> None:
    with open(lock, "w") as one, open(lock) as other:
        assert acquire(one, shared=first)
        assert acquire(other, shared=second, wait=False) is compatible
        release(one)
        assert acquire(other, shared=second, wait=False)
