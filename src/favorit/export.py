"""Writes tables and figures. If the process is killed, the path holds the previous file or the whole new one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorit.errors import FavoritError
from favorit.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_csv(rows: Sequence[Any], path: Path) -> None:
    """Writes one row per dataclass or dict. Columns are all fields in order of appearance. None is an empty cell."""
    import pandas

    _write(path, lambda temporary: pandas.DataFrame(rows).to_csv(temporary, index=False))


def save_figure(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Writes a figure in the format of the path's suffix."""
    _write(path, lambda temporary: figure.savefig(temporary, format=path.suffix.removeprefix(".").lower(), dpi=dpi))


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    try:
        write_atomically(path, write)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise FavoritError(f"cannot write {path}: {reason}".partition("\n")[0]) from None
