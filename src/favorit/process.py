"""Settings of a process: the allocator keeps large buffers, and OpenMP threads spin for a short time.

The command line and its worker processes use both settings. `import favorit` changes nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from favorit.errors import FavoritError, unknown

ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps")

# Freed buffers up to this size are kept. Without this, glibc returns large buffers to the system, which costs page
# faults in every step.
MAX_KEPT_BUFFER = 1 << 30
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# glibc reads these when a program starts. Other C libraries ignore them.
ALLOCATOR = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
# A waiting thread first spins, then sleeps. Next to a busy process, a thread that spins for long occupies the core of
# the thread that it waits for; without spinning, every operation pays for waking up threads. Measurements: LOG.md,
# 2026-11-18.
SPIN_COUNT = "2000"
# libgomp, which torch's Linux packages contain, reads these when it is loaded. A value set by the user is kept.
SPINNING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def check_accelerator(name: str) -> None:
    """Raises an error if this is not the name of an accelerator. Whether the machine has it is known later."""
    if name not in ACCELERATORS:
        raise unknown("accelerator", name, ACCELERATORS)


def keep_large_buffers() -> bool:
    """Makes glibc keep freed buffers of up to 1 GiB for this process. False with another C library."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MAX_KEPT_BUFFER)) and bool(mallopt(M_TRIM_THRESHOLD, MAX_KEPT_BUFFER))


def share_cores() -> None:
    """Shortens the spinning of OpenMP threads in this process and its children, so that other busy processes slow
    training much less.

    Call it before torch is imported, because torch reads the setting only then. If the environment has GOMP_SPINCOUNT
    or OMP_WAIT_POLICY, nothing changes.
    """
    chosen = spin_settings()
    if "torch" in sys.modules and not chosen.items() <= os.environ.items():
        raise FavoritError(
            "share_cores() has no effect after torch is imported: call it first, or set GOMP_SPINCOUNT=" + SPIN_COUNT
        )
    os.environ.update(chosen)


def spin_settings() -> dict[str, str]:
    """Environment variables of spinning: the user's if any is set, or else favorit's."""
    return {name: os.environ[name] for name in SPINNING if name in os.environ} or {SPINNING[0]: SPIN_COUNT}


def worker_settings() -> dict[str, str]:
    """Environment variables of a worker process: keep large buffers, and `spin_settings`."""
    return {**dict.fromkeys(ALLOCATOR, str(MAX_KEPT_BUFFER)), **spin_settings()}


def default_environment() -> dict[str, str]:
    """The environment of this process with default settings instead of favorit's. The user's own spin settings stay."""
    ours = (SPINNING[0], SPIN_COUNT)
    return {name: value for name, value in os.environ.items() if name not in ALLOCATOR and (name, value) != ours}


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables inside the block, for processes started there, and then restores them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
