"""Settings of the test process: no deadlines, working Ctrl-C, separate folders for locks, state and timings."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

from hypothesis import settings

# No deadline for a hypothesis example, because any example can take long on a busy machine.
settings.register_profile("favorit", deadline=None)
settings.load_profile("favorit")


LOCKS = tempfile.mkdtemp(prefix="favorit-locks-")
STATE = tempfile.mkdtemp(prefix="favorit-state-")
CACHE = tempfile.mkdtemp(prefix="favorit-cache-")


def pytest_unconfigure() -> None:
    shutil.rmtree(LOCKS, ignore_errors=True)
    shutil.rmtree(STATE, ignore_errors=True)
    shutil.rmtree(CACHE, ignore_errors=True)


def pytest_configure() -> None:
    """Restores SIGINT. A shell starts background processes with SIGINT ignored, and their children inherit that, but
    tests of Ctrl-C send SIGINT to real processes.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A separate folder for locks, so that tests and the study workers of this machine never wait for each other.
    os.environ["FAVORIT_LOCKS"] = LOCKS
    os.environ["FAVORIT_STATE"] = STATE  # tests do not write to the state folder of their user
    # Timings of tests, which run on a busy machine, are not the user's.
    os.environ["FAVORIT_CACHE"] = CACHE
