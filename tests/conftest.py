"""What all tests need of the process they run in."""

from __future__ import annotations

import signal

from hypothesis import settings

# What is tested is never how long an example takes: a busy machine may stall at any of them.
settings.register_profile("favorit", deadline=None)
settings.load_profile("favorit")


def pytest_configure() -> None:
    """Ctrl-C is tested with real processes, and what a shell starts in the background, and its children, would not hear it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
