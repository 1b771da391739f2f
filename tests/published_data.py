"""MNIST, CIFAR-10 and CIFAR-100 (sorted by class) from the folder next to the repository, for tests that need them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data"


def published() -> Path:
    """The folder of the data files, which are not in the repository. If they are missing, the test is skipped, or fails
    in CI, where they are required.
    """
    if not (SHARED / "unpack").is_file():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("../shared/data is missing")
    return SHARED


def unpacked(place: Path) -> Path:
    """Unpacks the data files into `place`, checks them, and returns `place`."""
    subprocess.run([sys.executable, str(published() / "unpack"), str(place)], check=True, stdout=subprocess.DEVNULL)
    return place
