"""Progress of one run: a line for each epoch, and on a terminal a bar of steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from favorit.display import Display
from favorit.model.layout import layers, write_out
from favorit.training.events import Begin, Epoch, Step

if TYPE_CHECKING:
    from rich.console import Console

    from favorit.config import RunConfig
    from favorit.training.events import Event

STEP_INTERVAL = 30.0  # seconds between two lines about the steps of an epoch, in piped output and notebooks


def is_first_process() -> bool:
    """False in the further processes of a run on several devices, which print nothing."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


@contextmanager
def training_progress(console: Console) -> Iterator[Callable[[Event, RunConfig], None]]:
    """Yields a function for `favorit.train(listen=...)` that prints a line for each epoch and moves a bar of steps.

    Piped output and notebooks have no bar. There, long epochs print a line every `STEP_INTERVAL` seconds.
    """
    last_line: float | None = None
    with Display(console) as display:
        display.bar("run", "starting")

        def on_event(event: Event, config: RunConfig) -> None:
            nonlocal last_line
            last_line = time.monotonic() if last_line is None or isinstance(event, Epoch) else last_line
            if isinstance(event, Begin):
                model = config.model
                mixers = write_out(layers(model.layout, model.performer, model.depth))
                display.line(f"layers 1 to {model.depth}: {mixers}")
                for note in event.notes:
                    display.line(f"note: {note}")
                if event.step:
                    display.line(f"resumed after step {event.step:,}")
            elif isinstance(event, Step):
                epoch = f"epoch {event.epoch + 1}/{config.train.epochs}"
                means = f"loss {event.loss:.3f}  accuracy {event.accuracy:.1%}"
                display.bar(
                    "run",
                    f"{epoch}  {means}",
                    event.epoch * event.steps + event.step,
                    event.steps * config.train.epochs,
                    unit="images",
                    units_per_step=config.train.batch_size,
                )
                if time.monotonic() - last_line >= STEP_INTERVAL:
                    last_line = time.monotonic()
                    display.piped_line(f"{epoch}  step {event.step}/{event.steps}  {means}")
            elif isinstance(event, Epoch):
                display.line(_epoch_line(event, config))

        yield on_event
    if last_line is None:
        console.print("already complete: nothing to train")


def _epoch_line(event: Epoch, config: RunConfig) -> str:
    # With train.select=last the weights of the last epoch are tested, so no epoch is marked as best.
    is_best = event.best and event.validation_accuracy is not None and config.train.select == "best"
    parts = [
        f"epoch {event.epoch + 1:3d}/{config.train.epochs}",
        f"train {event.train_loss:.4f} {event.train_accuracy:7.2%}",
    ]
    if event.validation_accuracy is not None:
        parts.append(f"validation {event.validation_loss:.4f} {event.validation_accuracy:7.2%}")
    if event.test_accuracy is not None:
        parts.append(f"test {event.test_accuracy:7.2%}")
    parts.append(f"{event.train_seconds:.1f} s")
    return "   ".join([*parts, "best"] if is_best else parts)
