"""What all tests need of the process they run in."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

from hypothesis import settings

# What is tested is never how long an example takes: a busy machine may stall at any of them.
settings.register_profile("favorit", deadline=None)
settings.load_profile("favorit")


LOCKS = tempfile.mkdtemp(prefix="favorit-locks-")


def pytest_unconfigure() -> None:
    shutil.rmtree(LOCKS, ignore_errors=True)


def pytest_configure() -> None:
    """Ctrl-C is tested with real processes, and what a shell starts in the background, and its children, would not hear
    it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests neither pause the study workers of this machine nor wait for them, or for each other.
    os.environ["FAVORIT_LOCKS"] = LOCKS
