from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """These tests start servers: they are run where they are asked for by their path, as `make test-system` does, and
    nowhere else.
    """
    asked = any(Path(argument.partition("::")[0]).resolve().is_relative_to(HERE) for argument in config.args)
    return None if asked else True
