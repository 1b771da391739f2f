"""`train`: from a configuration to a finished run on disk."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from favorit import seeds
from favorit.attention.local import LOCALS
from favorit.config import DataConfig, ModelConfig, RunConfig, identify
from favorit.data import AUGMENTS, PREPROCESSES, DataSet, build_preprocess, load_dataset, with_absolute_path
from favorit.errors import FavoritError
from favorit.model import HEADS, STEMS, ViT, create_model
from favorit.model.layout import layers, shorten
from favorit.model.outline import check_memory
from favorit.position import POSITIONS
from favorit.process import check_accelerator
from favorit.spec import Registry, parse_pattern, parse_sum
from favorit.training.determinism import deterministic
from favorit.training.engine import DivergedError, Training
from favorit.training.events import End, Event
from favorit.training.find import find_run, open_run
from favorit.training.folder import HeldError, RunFolder
from favorit.training.optim import OPTIMIZERS, SCHEDULES
from favorit.training.packed import SUFFIX
from favorit.training.predictions import Predictions
from favorit.training.stored import StoredRun, has_ended

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass(frozen=True)
class Run:
    """A run on disk: a folder or a packed file."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name.removesuffix(SUFFIX)

    @property
    def result(self) -> dict[str, Any]:
        """The result: status, test metrics, times, environment."""
        run = open_run(self.path)
        result = run.result()
        if result is None:
            run.config()  # raises if there is no run at all
            raise FavoritError(f"{self.path} is not finished: train the same configuration again to resume it")
        return result

    @property
    def epochs(self) -> list[dict[str, Any]]:
        return open_run(self.path).epochs()

    @property
    def predictions(self) -> Predictions:
        """Class, confidence and correctness for each test image of a complete run."""
        if (status := self.result["status"]) != "complete":
            raise FavoritError(f"{self.path} is {status}, not complete, so it has no predictions")
        return open_run(self.path).predictions()

    @property
    def config(self) -> RunConfig:
        return RunConfig(**open_run(self.path).config()["config"])


def resolve(config: RunConfig, data: DataSet) -> RunConfig:
    """The configuration with the fields that the data set determines: image size, channels, classes.

    `data.validation` is reset to its default if the data set has its own validation part.
    """
    check_choices(config)
    size = build_preprocess(config.data.preprocess, data.mean, data.std).output_size(data.image_size)
    model = config.model.replace(image_size=size, channels=data.channels, classes=len(data.classes))
    own = data.validation is not None and config.data.folds is None
    return config.replace(
        model=model, data=config.data.replace(validation=DataConfig().validation) if own else config.data
    )


def check_choices(config: RunConfig) -> None:
    """Raises an error for fields that are valid alone, but of which one would be ignored in training.

    This is not a check of `RunConfig`: stored runs with such fields can still be read.
    """
    data, options = config.data, config.train
    if options.warmup > options.epochs:
        raise FavoritError(
            f"train.warmup={options.warmup:g} is longer than train.epochs={options.epochs}: "
            f"set train.warmup to at most {options.epochs}, or more epochs"
        )
    if data.folds is not None and data.validation != DataConfig().validation:
        raise FavoritError(
            f"data.validation={data.validation:g} and data.folds={data.folds} both choose the validation images: "
            "give one of them (--folds sets data.folds)"
        )


def run_id(config: RunConfig, digest: str) -> str:
    """The identifier of a resolved run: a hash that does not depend on how the configuration was written.

    Layouts are expanded, specs made canonical, defaults left out, and the data set's digest replaces its name.
    """
    model, data, options = config.model, config.data, config.train
    canonical = config.replace(
        model=model.replace(
            layout="all_standard",
            performer=ModelConfig().performer,
            stem=str(STEMS.canonical(model.stem)),
            head=str(HEADS.canonical(model.head)),
            position="+".join(str(POSITIONS.canonical(part)) for part in parse_sum(model.position)),
            local=None if model.local is None else str(LOCALS.canonical(model.local)),
            head_dim=None if model.head_dim == model.dim // model.heads else model.head_dim,
        ),
        data=data.replace(
            name=DataConfig().name,
            augment=_canonical_pattern(AUGMENTS, data.augment),
            preprocess=_canonical_pattern(PREPROCESSES, data.preprocess),
        ),
        train=options.replace(
            optimizer=str(OPTIMIZERS.canonical(options.optimizer)), schedule=str(SCHEDULES.canonical(options.schedule))
        ),
    )
    mixers = [str(spec) for spec in layers(model.layout, model.performer, model.depth)]
    return identify({**canonical.changed(), "layers": mixers, "digest": digest})


def _canonical_pattern(registry: Registry, text: str | None) -> str | None:
    """A pipeline of steps in canonical form; None if it is empty."""
    if text is None or text.strip() in ("", "none"):
        return None
    return "|".join(str(registry.canonical(spec)) for spec in parse_pattern(text))


def train(
    config: RunConfig | dict[str, Any],
    *,
    out: str | Path = "runs",
    data_dir: str | Path | None = None,
    accelerator: str = "auto",
    devices: int = 1,
    compiled: bool = False,
    checkpoint_seconds: float = 60.0,
    workers: int = 1,
    read: Callable[[str, str | Path | None], DataSet] = load_dataset,
    listen: Callable[[Event, RunConfig], bool | None] | None = None,
) -> Run:
    """Trains a configuration into `out`/<id>, or resumes it there. A complete run is returned without training; a
    failed run raises its error again.

    `workers` is the number of runs that share the machine; the result records it with the times. `read` loads the data
    set; pass a caching function to train many runs on the same data. `listen` is called with every event on rank 0. If
    it returns True after an Epoch, the run is pruned: it stops without a test, and resumes when trained again.
    """
    config = RunConfig(**config) if isinstance(config, dict) else config
    check_accelerator(accelerator)
    if Path(out).exists() and not Path(out).is_dir():
        raise FavoritError(f"{out} is a file: give a folder for runs, which is created if it does not exist")
    data = read(config.data.name, data_dir)
    config = resolve(config, data)
    identifier = run_id(config, data.digest)
    folder = RunFolder(Path(out) / identifier)
    stored = find_run(identifier, out)
    if has_ended(result := stored.result()):
        return _finished(stored, result)
    check_memory(config.model)
    model = create_model(config.model, seed=seeds.derive(config.seed, "model"))
    fabric = _launch(accelerator, devices, config.train.precision, model)
    # Built before the folder exists, so that an invalid configuration leaves no folder.
    training = Training(
        config, data, model, fabric, folder, compiled=compiled, checkpoint_seconds=checkpoint_seconds, workers=workers
    )
    with deterministic(config.train.deterministic), _locked(folder, fabric):
        # Another process may have finished the run since the first check, which was seconds ago.
        if has_ended(result := fabric.broadcast(folder.result() if fabric.is_global_zero else None)):
            if fabric.is_global_zero and result["status"] == "complete":
                folder.tidy()
            return _finished(folder, result)
        if fabric.is_global_zero:
            card = {"name": with_absolute_path(config.data.name), **_card(data)}
            pattern = shorten(layers(config.model.layout, config.model.performer, config.model.depth))
            folder.write_config(
                {"id": identifier, "layers": pattern, "config": config.model_dump(mode="json"), "data": card}
            )
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


def _consume(training: Training, config: RunConfig, listen: Callable[[Event, RunConfig], bool | None] | None) -> None:
    events = training.events()
    stop: bool | None = None
    while True:
        try:
            event = events.send(stop)
        except StopIteration:
            return
        stop = listen(event, config) if listen is not None else None
        if isinstance(event, End):
            return


def _card(data: DataSet) -> dict[str, Any]:
    """The facts about a data set that inference needs, so that it works without the data."""
    return {
        "digest": data.digest,
        "classes": data.classes,
        "mean": data.mean,
        "std": data.std,
        "image_size": data.image_size,
        "channels": data.channels,
    }
