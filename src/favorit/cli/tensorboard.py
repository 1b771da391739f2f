"""`--tensorboard`: curves of runs, each run in its own folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from favorit.errors import FavoritError

if TYPE_CHECKING:
    from favorit.study.tasks import TaskEvent
    from favorit.training import Event


@dataclass
class _OpenRun:
    """A run whose curves are open: the last step of each curve on disk, the last epoch, the validation losses."""

    writer: Any
    last_steps: dict[str, int]
    epoch: int = -1
    losses: list[float] = field(default_factory=list)


class Curves:
    """Writes the records of epochs for TensorBoard, each epoch once even if its run is killed and resumed.

    Epochs trained before, with or without `--tensorboard`, are added from the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise FavoritError(
                "--tensorboard needs the package tensorboard: pip install 'favorit[tensorboard]'"
            ) from None
        self._folder, self._open = folder, dict[str, _OpenRun]()
        self._writer, self._reader = SummaryWriter, EventAccumulator
        self._current = ""

    def begin(self, run: Path) -> None:
        """Opens the curves of a run and adds the missing epochs from its folder."""
        from favorit.training.folder import RunFolder

        self.end(run.name)
        folder = self._folder / run.name
        folder.mkdir(parents=True, exist_ok=True)
        reader = self._reader(str(folder)).Reload()
        last_steps = {tag: reader.Scalars(tag)[-1].step for tag in reader.Tags()["scalars"]}
        self._open[run.name] = _OpenRun(self._writer(str(folder)), last_steps)
        for record in RunFolder(run).epochs():
            self.add(run.name, record)

    def add(self, name: str, record: dict[str, Any]) -> None:
        """Writes an epoch (a line of epochs.jsonl) of an open run."""
        run = self._open[name]
        # If a worker finishes an epoch before `begin`, its record is both in the folder and in a later event.
        if record["epoch"] <= run.epoch:
            return
        run.epoch = record["epoch"]
        if record["validation_loss"] is not None:
            run.losses.append(record["validation_loss"])
        step = run.epoch + 1
        for tag, value in _scalars(record, run.losses).items():
            if step > run.last_steps.get(tag, 0):
                run.writer.add_scalar(tag, value, step)
        run.writer.flush()

    def on_event(self, event: Event) -> None:
        """Writes an event of `favorit.train`."""
        from favorit.training import Begin, Epoch

        if isinstance(event, Begin):
            self._current = Path(event.path).name
            self.begin(Path(event.path))
        elif isinstance(event, Epoch):
            self.add(self._current, asdict(event))

    def on_task_event(self, event: TaskEvent, out: Path) -> None:
        """Writes an event of a study whose runs are in `out`."""
        from favorit.study.tasks import Began, EpochDone

        if isinstance(event, Began):
            self.begin(out / event.task.id)
        elif isinstance(event, EpochDone):
            self.add(event.task.id, event.record)
        else:
            self.end(event.task.id)

    def end(self, name: str) -> None:
        """Closes the curves of a run if they are open."""
        if name in self._open:
            self._open.pop(name).writer.close()

    def close(self) -> None:
        for name in list(self._open):
            self.end(name)


def _scalars(record: dict[str, Any], losses: list[float]) -> dict[str, float]:
    """The values of an epoch by curve. `losses` are the validation losses up to this epoch."""
    from favorit.smoothing import smooth

    found = {"lr": record["lr"], **record["scalars"]}
    for key, value in record.items():
        part, _, quantity = key.rpartition("_")
        if quantity in ("loss", "accuracy") and value is not None:
            found[f"{quantity}/{part}"] = value
    if "loss/validation" in found:
        found["loss/validation_smoothed"] = smooth(losses)[-1]
    return found
