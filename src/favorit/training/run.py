"""`train`: from a configuration to a finished run on disk."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from favorit import seeds
from favorit.config import RunConfig, as_run_config
from favorit.data import (
    DataSet,
    as_dataset,
    load_dataset,
    read_spec,
    with_absolute_path,
)
from favorit.data.datasets import ARRAYS
from favorit.errors import FavoritError, check_path, check_positive
from favorit.model import ViT, create_model
from favorit.model.layout import layers, shorten
from favorit.model.outline import check_memory
from favorit.process import check_accelerator
from favorit.training.components import own_components, record_components, warn_if_changed
from favorit.training.determinism import deterministic
from favorit.training.diagnosis import DivergedError
from favorit.training.engine import Training
from favorit.training.events import End, Event
from favorit.training.find import find_run
from favorit.training.folder import HeldError, RunFolder
from favorit.training.handle import Run
from favorit.training.identity import resolve, run_id
from favorit.training.names import check_name
from favorit.training.progress import is_first_process, training_progress
from favorit.training.stored import StoredRun, has_ended, utc
from favorit.training.test_files import has_test_files, write_test_files

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def train(
    config: RunConfig | Mapping[str, Any],
    *,
    data: DataSet | Dataset[Any] | tuple[Any, Any] | None = None,
    out: str | Path = "runs",
    name: str | None = None,
    study: str | None = None,
    data_dir: str | Path | None = None,
    accelerator: str = "auto",
    devices: int = 1,
    compiled: bool = False,
    checkpoint_seconds: float = 60.0,
    workers: int = 1,
    read: Callable[[str, str | Path | None], DataSet] = load_dataset,
    listen: Callable[[Event, RunConfig], bool | None] | None = None,
    progress: bool = True,
) -> Run:
    """Trains a configuration into `out`/<id>, or resumes it there. A complete run is returned without training; a
    failed run raises its error again.

    Args:
        config: A RunConfig, or a dictionary with any of the sections `model`, `data` and `train`, and `seed`. Other
            fields keep their defaults.
        data: Images of this script instead of the data set `data.name`: (images, labels), a torch Dataset, or the
            result of `favorit.build_dataset`. The identifier of the run depends on their content.
        out: The folder for runs.
        name: A name that is recorded with the run: `favorit runs` shows it, and commands find the run by it. It does
            not identify the run.
        study: The name of a study that is recorded with the run.
        data_dir: The folder for data sets.
        accelerator: auto, cpu, cuda or mps.
        devices: The number of processes that share each batch.
        compiled: Compile the model with torch.compile.
        checkpoint_seconds: The time between two checkpoints within an epoch.
        workers: The number of runs that share the machine. The result records it with the times.
        read: Loads the data set `data.name`. Pass a caching function to train many runs on the same data.
        listen: Called with every event on rank 0. If it returns True after an Epoch, the run is pruned: it stops
            without a test, and resumes when trained again.
        progress: Print a line for each epoch to stderr, and draw a bar if stderr is a terminal.

    Example:
        run = favorit.train({"data": {"name": "digits"}, "train": {"epochs": 3}})
        run.result["test"]["accuracy"]
    """
    config = as_run_config(config)
    check_accelerator(accelerator)
    check_path("out", out)
    if Path(out).exists() and not Path(out).is_dir():
        raise FavoritError(f"{out} is a file: give a folder for runs, which is created if it does not exist")
    check_positive(devices=devices, workers=workers)
    check_name("name", name)
    check_name("study", study)
    if not isinstance(checkpoint_seconds, int | float):
        raise FavoritError(f"checkpoint_seconds={checkpoint_seconds!r} is not valid: a number of seconds")
    if listen is not None and not callable(listen):
        raise FavoritError(f"listen={listen!r} is not valid: a function of an event and a RunConfig, or None")
    if data is None:
        loaded = read(read_spec(config.data), data_dir)
    else:
        loaded = as_dataset(data)
        config = _on_arrays(config)
    with _shown(progress) as show:

        def on_event(event: Event, own: RunConfig) -> bool | None:
            if show is not None:
                show(event, own)
            return None if listen is None else listen(event, own)

        options: dict[str, Any] = dict(compiled=compiled, checkpoint_seconds=checkpoint_seconds, workers=workers)
        return _train(config, loaded, Path(out), name, study, accelerator, devices, on_event, **options)


def _on_arrays(config: RunConfig) -> RunConfig:
    """The configuration of a run on arrays of a script."""
    if "name" in config.data.model_fields_set and config.data.name != ARRAYS:
        raise FavoritError(f"data=... and data.name={config.data.name!r} are both given: give only one of them")
    return config.replace(data=config.data.replace(name=ARRAYS))


@contextmanager
def _shown(progress: bool) -> Iterator[Callable[[Event, RunConfig], None] | None]:
    """The display of the first process, on stderr; None if there is none."""
    if not (progress and is_first_process()):
        yield None
        return
    from favorit.display import SafeConsole

    with training_progress(SafeConsole(stderr=True, highlight=False)) as show:
        yield show


def _train(
    config: RunConfig,
    data: DataSet,
    out: Path,
    name: str | None,
    study: str | None,
    accelerator: str,
    devices: int,
    listen: Callable[[Event, RunConfig], bool | None],
    **options: Any,
) -> Run:
    config = resolve(config, data)
    identifier = run_id(config, data.digest)
    folder = RunFolder(out / identifier)
    stored = find_run(identifier, out)
    own = own_components(config)
    if own and stored.exists() and is_first_process():
        with suppress(FavoritError):  # damaged: reported where the file is needed
            warn_if_changed(stored.config(), stored.path)
    if has_ended(result := stored.result()):
        return _finished(stored, result)
    check_memory(config.model)
    model = create_model(config.model, seed=seeds.derive(config.seed, "model"))
    fabric = _launch(accelerator, devices, config.train.precision, model)
    # Built before the folder exists, so that an invalid configuration leaves no folder.
    training = Training(config, data, model, fabric, folder, **options)
    with deterministic(config.train.deterministic), _locked(folder, fabric):
        # Another process may have finished the run since the first check, which was seconds ago.
        if has_ended(result := fabric.broadcast(folder.result() if fabric.is_global_zero else None)):
            if fabric.is_global_zero and result["status"] == "complete":
                folder.tidy()
            return _finished(folder, result)
        if fabric.is_global_zero:
            card = {"name": with_absolute_path(read_spec(config.data)), **_card(data)}
            pattern = shorten(layers(config.model.layout, config.model.performer, config.model.depth))
            # A resumed run keeps the record of the files that it was started with.
            components = _saved_config(folder).get("components") or record_components(config)
            folder.write_config(
                {
                    "id": identifier,
                    "layers": pattern,
                    **_labels(folder, name, study),
                    "config": config.model_dump(mode="json"),
                    "data": card,
                    **({"components": components} if components else {}),
                }
            )
            if data.files is not None and not has_test_files(folder.path):
                write_test_files(folder, data.files.test, data.test.images)
        try:
            _consume(training, config, listen)
        except DivergedError as error:
            if fabric.is_global_zero:
                folder.write_result({"status": "failed", "error": str(error)})
            raise
    fabric.barrier()
    return Run(folder.path)


def _finished(run: StoredRun, result: dict[str, Any]) -> Run:
    if result["status"] == "failed":
        raise run.failed_before(result)
    run.tidy_unheld()
    return Run(run.path)


def _launch(accelerator: str, devices: int, precision: str, model: ViT) -> Any:
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # hides startup messages
    strategy = "auto"
    if devices > 1:  # the search for unused parameters costs time at every step, so it is enabled only if needed
        strategy = "ddp" if _all_get_gradients(model) else "ddp_find_unused_parameters_true"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*AMP with fp16 is not supported on CPU")  # rejected below
            fabric = Fabric(
                accelerator=accelerator,
                devices=devices,
                strategy=strategy,
                precision=PRECISIONS[precision],  # type: ignore[arg-type]
            )
    except (ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise FavoritError(f"accelerator={accelerator!r} with devices={devices} is not available: {reason}") from None
    if precision == "fp16" and fabric.device.type == "cpu":
        raise FavoritError("train.precision=fp16 is not valid on a CPU: gradient scaling needs a GPU; use 32 or bf16")
    fabric.launch()
    return fabric


def _all_get_gradients(model: ViT) -> bool:
    """True if each parameter gets a gradient. A mixer that ignores q and k, such as uniform, leaves their norms and
    gates without one.
    """
    training = model.training
    image = torch.zeros(1, model.config.channels, *model.config.image_size)
    model.eval()(image).sum().backward()  # evaluation mode keeps the statistics of batch norm
    found = all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    model.zero_grad()
    model.train(training)
    return found


@contextmanager
def _locked(folder: RunFolder, fabric: Any) -> Iterator[None]:
    """Rank 0 locks the run for all ranks. If it cannot, every rank raises the same error."""
    with ExitStack() as stack:
        refused = ""
        if fabric.is_global_zero:
            try:
                stack.enter_context(folder.lock())
            except HeldError as error:
                refused = str(error)
        if refused := fabric.broadcast(refused):
            raise HeldError(refused)
        yield


def _consume(training: Training, config: RunConfig, listen: Callable[[Event, RunConfig], bool | None]) -> None:
    events = training.events()
    stop: bool | None = None
    while True:
        try:
            event = events.send(stop)
        except StopIteration:
            return
        stop = listen(event, config)
        if isinstance(event, End):
            return


def _saved_config(folder: RunFolder) -> dict[str, Any]:
    """The config.json of a resumed run; empty for a new run, or a damaged file, which is written again."""
    with suppress(FavoritError):
        return folder.config()
    return {}


def _labels(folder: RunFolder, name: str | None, study: str | None) -> dict[str, str]:
    """Name, study and start of the run, which do not identify it. A resumed run keeps those that it has."""
    before = _saved_config(folder)
    labels = {"name": name, "study": study, "started": utc(time.time())}
    return {key: kept for key, value in labels.items() if (kept := before.get(key) or value)}


def _card(data: DataSet) -> dict[str, Any]:
    """The facts about a data set that inference needs, so that it works without the data."""
    return {
        "digest": data.digest,
        "classes": data.classes,
        "mean": data.mean,
        "std": data.std,
        "image_size": data.image_size,
        "channels": data.channels,
        "fit": data.fit,
    }
