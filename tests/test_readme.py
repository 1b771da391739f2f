"""The README is true: its Python lines run, its links and pictures exist. `tests/docs` checks its commands."""

from __future__ import annotations

import re
from pathlib import Path

from favorit.study.load import built_in

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# Two screens of about 60 lines.
MOST_LINES = 130


def test_five_lines_of_python_run() -> None:
    block = re.search(r"## Five lines of Python\n.*?```python\n(.*?)```", README, re.S)
    assert block is not None
    names: dict[str, object] = {}
    exec(block[1], names)
    assert names["logits"].shape == (8, 10)  # type: ignore[attr-defined]
    assert names["tokens"].shape == (8, 55, 64)  # type: ignore[attr-defined]


def test_links_and_pictures_exist() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    assert not [target for target in targets if not (ROOT / target).exists()]


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`?make (\w+)", README))
    assert {"demo", "test"} <= targets
    assert not [target for target in targets if not re.search(rf"^{target}:", makefile, re.M)]


def test_every_report_is_named_with_its_study() -> None:
    named = re.findall(r"^\| `([\w-]+)` \|", README, re.M)
    assert set(named) == set(built_in()) - {"quickstart"}


def test_readme_fits_two_screens() -> None:
    assert len(README.splitlines()) <= MOST_LINES
