"""Files with components of a user, and processes that do not know them, for tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from favorit import origins, source
from favorit.attention import KERNELS
from favorit.training.components import KINDS

KERNEL = '''
from torch import Tensor
from favorit.attention.kernels.pointwise import pointwise

@pointwise
def {name}(x: Tensor, width: float = 1.0) -> Tensor:
    """f(x) = 1 + x / (width + |x|)."""
    return 1 + x / (width + x.abs())
'''


def write_kernel(path: Path, name: str, more: str = "") -> Path:
    """A file that registers a kernel and leaves `FILE.ran` behind when it is executed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"{more}\n{KERNEL.format(name=name)}\nwith open(__file__ + '.ran', 'a') as file:\n    file.write('x')\n"
    )
    return path


def executions(path: Path) -> int:
    ran = Path(f"{path}.ran")
    return len(ran.read_text()) if ran.exists() else 0


@contextmanager
def _new_process(folder: Path) -> Iterator[Callable[[], None]]:
    """A function that forgets the components and modules of files in `folder`, as if a new process had started."""
    registries = [KERNELS, *(kind for kind in KINDS.values() if not isinstance(kind, dict))]
    entries = [dict(registry._entries) for registry in registries]
    imported = dict(source._imported)

    def forget() -> None:
        for registry, before in zip(registries, entries, strict=True):
            registry._entries = dict(before)
        for name, module in list(sys.modules.items()):
            if str(vars(module).get("__file__", "")).startswith(str(folder)):
                del sys.modules[name]
        source._imported.clear()
        source._imported.update(imported)
        origins._files.clear()

    files = dict(origins._files)
    origins._files.clear()
    try:
        yield forget
    finally:
        forget()
        origins._files.update(files)


NewProcess = Callable[[], None]


@pytest.fixture
def new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Starts a process that knows only favorit's components, with an empty state folder."""
    monkeypatch.setenv("FAVORIT_STATE", str(tmp_path / "state"))
    with _new_process(tmp_path) as forget:
        yield forget
