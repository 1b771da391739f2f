"""MNIST, CIFAR-10 and CIFAR-100 (sorted by class) from the folder beside the repository, for the tests that read
them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data"


def published() -> Path:
    """Where they are. The repository does not hold them: elsewhere a test is skipped, in CI, which has them, that would
    hide a failure.
    """
    if not (SHARED / "unpack").is_file():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("../shared/data is not there")
    return SHARED


def unpacked(place: Path) -> Path:
    """A data directory with these files, checked and laid out."""
    subprocess.run([sys.executable, str(published() / "unpack"), str(place)], check=True, stdout=subprocess.DEVNULL)
    return place
