"""What a person sees while a run trains: a bar on a terminal, plain lines elsewhere, curves in TensorBoard where
asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from favorit.config import RunConfig
    from favorit.training import Event

Listener = Callable[["Event", "RunConfig"], None]


@contextmanager
def listener(console: Console, tensorboard: Path | None = None) -> Iterator[Listener]:
    """A function for `favorit.train(listen=...)`; whatever it opened is closed at the end."""
    listeners: list[Listener] = []
    closing: list[Callable[[], Any]] = []
    if tensorboard is not None:
        write, close = _tensorboard(tensorboard)
        listeners.append(write)
        closing.append(close)
    show, close = _bar(console) if console.is_terminal else (_lines(console), lambda: None)
    listeners.append(show)
    closing.append(close)

    heard = False

    def hear(event: Event, config: RunConfig) -> None:
        nonlocal heard
        heard = True
        for each in listeners:
            each(event, config)

    try:
        yield hear
    finally:
        for close in closing:
            close()
    if not heard:
        console.print("complete already: nothing is left to train")


def _sentence(event: Any, config: RunConfig) -> str:
    # With train.select=last every epoch is kept, and none is chosen.
    chosen = event.best and event.validation_accuracy is not None and config.train.select == "best"
    validated = (
        ""
        if event.validation_accuracy is None
        else f"   validation {event.validation_loss:.4f} {event.validation_accuracy:7.2%}"
    )
    watched = "" if event.test_accuracy is None else f"   test {event.test_accuracy:7.2%}"
    return (
        f"epoch {event.epoch + 1:3d}/{config.train.epochs}   train {event.train_loss:.4f} {event.train_accuracy:7.2%}"
        f"{validated}{watched}   {event.train_seconds:.1f} s{'   best' if chosen else ''}"
    )


def _resumed(event: Any) -> str:
    return f"goes on after step {event.step:,}, where it was interrupted"


def _lines(console: Console) -> Listener:
    from favorit.training import Begin, Epoch

    def show(event: Event, config: RunConfig) -> None:
        if isinstance(event, Begin) and event.step:
            console.print(_resumed(event), highlight=False, soft_wrap=True)
        if isinstance(event, Epoch):
            console.print(_sentence(event, config), highlight=False, soft_wrap=True)

    return show


def _bar(console: Console) -> tuple[Listener, Callable[[], Any]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from favorit.training import Begin, Epoch, Step

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task("starting", total=None, rate="")
    progress.start()

    def show(event: Event, config: RunConfig) -> None:
        if isinstance(event, Step):
            total, done = event.steps * config.train.epochs, event.epoch * event.steps + event.step
            speed = progress.tasks[0].speed
            progress.update(
                task,
                total=total,
                completed=done,
                description=f"epoch {event.epoch + 1}/{config.train.epochs}  loss {event.loss:.3f}  accuracy {event.accuracy:.1%}",
                rate=f"{speed * config.train.batch_size:,.0f} images/s" if speed else "",
            )
        elif isinstance(event, Begin) and event.step:
            progress.print(_resumed(event), highlight=False)
        elif isinstance(event, Epoch):
            progress.print(_sentence(event, config), highlight=False)

    return show, progress.stop


def _tensorboard(folder: Path) -> tuple[Listener, Callable[[], Any]]:
    """Curves of each run under its identifier in `folder`."""
    from dataclasses import asdict

    from favorit.cli.curves import Curves
    from favorit.training import Begin, Epoch

    curves = Curves(folder)
    name = ""

    def write(event: Event, config: RunConfig) -> None:
        nonlocal name
        if isinstance(event, Begin):
            run = Path(event.path)
            name = run.name
            curves.begin(run)
        elif isinstance(event, Epoch):
            curves.add(name, asdict(event))

    return write, curves.close
