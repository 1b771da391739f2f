"""`--tensorboard`: the curves of runs, each under its identifier in one folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorit.errors import FavoritError

if TYPE_CHECKING:
    from favorit.study.tasks import TaskEvent


@dataclass
class _Open:
    """The curves of a run under way: the last step of each curve in the files from before, the last epoch, validation
    losses so far.
    """

    writer: Any
    written: dict[str, int]
    epoch: int = -1
    losses: list[float] = field(default_factory=list)


class Curves:
    """Writes records of epochs for TensorBoard. An epoch is written once, whenever its run is killed and resumed.

    Epochs that were trained before, also without TensorBoard, are read from the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise FavoritError(
                "--tensorboard needs the package tensorboard: pip install 'favorit[tensorboard]'"
            ) from None
        self._folder, self._open = folder, dict[str, _Open]()
        self._writer, self._reader = SummaryWriter, EventAccumulator

    def begin(self, run: Path) -> None:
        """Opens the curves of a run and adds the epochs in its folder that they lack."""
        from favorit.training.folder import RunFolder

        self.end(run.name)
        folder = self._folder / run.name
        folder.mkdir(parents=True, exist_ok=True)
        found = self._reader(str(folder)).Reload()
        written = {tag: found.Scalars(tag)[-1].step for tag in found.Tags()["scalars"]}
        self._open[run.name] = _Open(self._writer(str(folder)), written)
        for record in RunFolder(run).epochs():
            self.add(run.name, record)

    def add(self, name: str, record: dict[str, Any]) -> None:
        """Writes an epoch (a line of epochs.jsonl) of an open run."""
        run = self._open[name]
        # A worker may have finished an epoch before its runner opens the curves: the record is in the folder, and comes
        # as an event too.
        if record["epoch"] <= run.epoch:
            return
        run.epoch = record["epoch"]
        if record["validation_loss"] is not None:
            run.losses.append(record["validation_loss"])
        step = run.epoch + 1
        for tag, value in _scalars(record, run.losses).items():
            if step > run.written.get(tag, 0):
                run.writer.add_scalar(tag, value, step)
        run.writer.flush()

    def hear(self, event: TaskEvent, out: Path) -> None:
        """Enters an event of a study whose runs are in `out`."""
        from favorit.study.tasks import Began, Trained

        if isinstance(event, Began):
            self.begin(out / event.task.id)
        elif isinstance(event, Trained):
            self.add(event.task.id, event.record)
        else:
            self.end(event.task.id)

    def end(self, name: str) -> None:
        """Closes the curves of a run, if they are open."""
        if name in self._open:
            self._open.pop(name).writer.close()

    def close(self) -> None:
        for name in list(self._open):
            self.end(name)


def _scalars(record: dict[str, Any], losses: list[float]) -> dict[str, float]:
    """The values of an epoch by the names of their curves; `losses` are the validation losses up to it."""
    from favorit.curves import smooth

    found = {"lr": record["lr"], **record["scalars"]}
    for key, value in record.items():
        part, _, quantity = key.rpartition("_")
        if quantity in ("loss", "accuracy") and value is not None:
            found[f"{quantity}/{part}"] = value
    if "loss/validation" in found:
        found["loss/validation_smoothed"] = smooth(losses)[-1]
    return found
