from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignores these tests, which start servers, unless their path is given, as `make test-system` does."""
    is_selected = any(Path(argument.partition("::")[0]).resolve().is_relative_to(HERE) for argument in config.args)
    return None if is_selected else True
