"""Progress on the terminal: lines that stay, and bars below them. Piped output has the lines only."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from favorit.terminal import visible

if TYPE_CHECKING:
    from rich.progress import Task


class SafeConsole(Console):
    """A console that writes control characters in text as escapes; its own, for colors and bars, are kept."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class Display:
    """Progress bars, each with a key, drawn while the display is open and erased when it closes.

    The bars appear after `delay` seconds. Work that ends earlier shows no bar.
    """

    def __init__(self, console: Console, delay: float = 0.0) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._bars: dict[Hashable, Task] = {}
        self._visible_from = time.monotonic() + delay

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def bar(
        self,
        key: Hashable,
        text: str,
        done: float = 0,
        total: float | None = None,
        *,
        unit: str = "",
        units_per_step: float = 1,
    ) -> None:
        """Draws or redraws the bar `key` on a terminal. Without a total the bar pulses. With a unit it shows a rate."""
        if not self._console.is_terminal:
            return
        if key not in self._bars:
            self._progress.add_task(text, total=total, completed=int(done), count="", rate="")
            self._bars[key] = self._progress.tasks[-1]
        bar = self._bars[key]
        count = "" if total is None else f"{_format(done)}/{_format(total)}"
        rate = f"{bar.speed * units_per_step:,.0f} {unit}/s" if unit and bar.speed else ""
        self._progress.update(bar.id, description=text, completed=done, total=total, count=count, rate=rate)
        if time.monotonic() >= self._visible_from and not self._progress.live.is_started:
            self._progress.start()

    def remove(self, key: Hashable) -> None:
        """Erases the bar `key` if it exists."""
        if key in self._bars:
            self._progress.remove_task(self._bars.pop(key).id)

    def line(self, text: str) -> None:
        """Prints a line. It stays above the bars."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def piped_line(self, text: str) -> None:
        """Prints a line that a bar replaces on a terminal."""
        if not self._console.is_terminal:
            self.line(text)


def _format(count: float) -> str:
    return f"{count:,}" if isinstance(count, int) else f"{count:,.1f}"
