"""A run from a configuration to its result, and the weights of a finished one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from favorit import seeds
from favorit.attention.local import LOCALS
from favorit.config import DataConfig, ModelConfig, RunConfig, identify
from favorit.data import AUGMENTS, PREPROCESSES, DataSet, Preprocess, build_preprocess, find_images, load_dataset, read_image
from favorit.errors import FavoritError
from favorit.evaluate import metrics
from favorit.model import HEADS, STEMS, ViT, create_model
from favorit.model.layout import layers, shorten
from favorit.position import POSITIONS
from favorit.spec import Registry, parse_pattern, parse_sum
from favorit.training.engine import DivergedError, Training
from favorit.training.events import End, Event
from favorit.training.folder import RunFolder
from favorit.training.optim import OPTIMIZERS, SCHEDULES
from favorit.training.state import load_weights

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def result(self) -> dict[str, Any]:
        """What it ended with: status, test metrics, times, environment."""
        result = RunFolder(self.path).result()
        if result is None:
            raise FavoritError(f"{self.path} is not finished: train it with the same configuration, and it goes on")
        return result

    @property
    def epochs(self) -> list[dict[str, Any]]:
        return RunFolder(self.path).epochs()

    @property
    def config(self) -> RunConfig:
        return RunConfig(**RunFolder(self.path).config()["config"])


def resolve(config: RunConfig, data: DataSet) -> RunConfig:
    """The configuration with what the data decide: image size, channels and classes."""
    size = build_preprocess(config.data.preprocess, data.mean, data.std).output_size(data.image_size)
    model = config.model.replace(image_size=size, channels=data.channels, classes=len(data.classes))
    return config.replace(model=model)


def run_id(config: RunConfig, digest: str) -> str:
    """The identifier of a resolved run: what it means, not how it was written.

    Layers are expanded, specs brought to one form, defaults left out, and the data's content stands for its name.
    """
    model, data, options = config.model, config.data, config.train
    meaning = config.replace(
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
            name=DataConfig().name, augment=_pattern(AUGMENTS, data.augment), preprocess=_pattern(PREPROCESSES, data.preprocess)
        ),
        train=options.replace(optimizer=str(OPTIMIZERS.canonical(options.optimizer)), schedule=str(SCHEDULES.canonical(options.schedule))),
    )
    mixers = [str(spec) for spec in layers(model.layout, model.performer, model.depth)]
    return identify({**meaning.changed(), "layers": mixers, "digest": digest})


def _pattern(registry: Registry, text: str | None) -> str | None:
    """The steps of a pipeline in one form; none at all is None."""
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
    """Trains a configuration, or what is left of it, into `out`/<id>; a finished run is returned as it is.

    `workers` says how many runs share the machine; the result records it beside the times. `read` is for whoever trains many runs and keeps
    their data. `listen` hears every event on the first process; if what it returns after an Epoch is true, the run is pruned: it stops
    there untested, and goes on from there when it is trained again.
    """
    config = RunConfig(**config) if isinstance(config, dict) else config
    data = read(config.data.name, data_dir)
    config = resolve(config, data)
    identifier = run_id(config, data.digest)
    folder = RunFolder(Path(out) / identifier)
    if _ended(finished := folder.result()):
        return _finished(folder, finished)
    model = create_model(config.model, seed=seeds.derive(config.seed, "model"))
    fabric = _launch(accelerator, devices, config.train.precision)
    with _held(folder, fabric.is_global_zero):
        # Another process may have finished it since the first look: models were built and libraries imported.
        if _ended(finished := fabric.broadcast(folder.result() if fabric.is_global_zero else None)):
            return _finished(folder, finished)
        # Whatever is wrong with the configuration shows here, before there is a run to list.
        training = Training(config, data, model, fabric, folder, compiled=compiled, every=checkpoint_seconds, workers=workers)
        if fabric.is_global_zero:
            shown = shorten(layers(config.model.layout, config.model.performer, config.model.depth))
            folder.write_config({"id": identifier, "layers": shown, "config": config.model_dump(mode="json"), "data": _card(data)})
        try:
            _consume(training, config, listen)
        except DivergedError as error:
            if fabric.is_global_zero:
                folder.write_result({"status": "failed", "error": str(error)})
            raise
    fabric.barrier()
    return Run(folder.path)


def _ended(result: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    """Whether nothing is left to do; a pruned run goes on where it was stopped."""
    return result is not None and result["status"] != "pruned"


def _finished(folder: RunFolder, result: dict[str, Any]) -> Run:
    if result["status"] == "failed":
        raise folder.failed_before(result)
    return Run(folder.path)


def _launch(accelerator: str, devices: int, precision: str) -> Any:
    from lightning_fabric import Fabric

    # A mixer that ignores q and k leaves their norms and gates without a gradient.
    strategy = "ddp_find_unused_parameters_true" if devices > 1 else "auto"
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy, precision=PRECISIONS[precision])  # type: ignore[arg-type]
    except (ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise FavoritError(f"accelerator={accelerator!r} with devices={devices} cannot be used here: {reason}") from None
    if precision == "fp16" and fabric.device.type == "cpu":
        raise FavoritError("train.precision=fp16 cannot be used on a CPU: its gradients are scaled on a GPU only; use 32 or bf16")
    fabric.launch()
    return fabric


def _held(folder: RunFolder, first: bool) -> AbstractContextManager[None]:
    return folder.lock() if first else nullcontext()


def _consume(training: Training, config: RunConfig, listen: Callable[[Event, RunConfig], bool | None] | None) -> None:
    events = training.events()
    answer: bool | None = None
    while True:
        try:
            event = events.send(answer)
        except StopIteration:
            return
        answer = listen(event, config) if listen is not None else None
        if isinstance(event, End):
            return


def _card(data: DataSet) -> dict[str, Any]:
    """What predicting needs of the data, so that the data themselves need not be there."""
    return {
        "digest": data.digest,
        "classes": data.classes,
        "mean": data.mean,
        "std": data.std,
        "image_size": data.image_size,
        "channels": data.channels,
    }


@dataclass(frozen=True)
class Loaded:
    """A trained model that takes images as they come; `half` computes as the run did with precision bf16."""

    model: ViT
    classes: tuple[str, ...]
    preprocess: Preprocess
    image_size: tuple[int, int]
    channels: int
    half: bool = False

    def predict(self, images: Tensor) -> Tensor:
        """uint8 (N, C, H, W) of the data set's size -> probabilities (N, classes)."""
        return self._each(lambda part: self.model(part).float().softmax(-1), images)

    def features(self, images: Tensor) -> Tensor:
        """uint8 (N, C, H, W) of the data set's size -> the tokens after the last block (N, tokens, width)."""
        return self._each(self.model.features, images)

    def _each(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        expected = (self.channels, *self.image_size)
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != expected:
            raise FavoritError(
                f"a run takes uint8 images of shape (N, {', '.join(map(str, expected))}), not {images.dtype} {tuple(images.shape)}"
            )
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            return torch.cat([function(self.preprocess(part)) for part in images.split(256)])


def load(run: str | Path | Run) -> Loaded:
    """The weights that validation chose, ready to predict."""
    path = run.path if isinstance(run, Run) else Path(run)
    saved = RunFolder(path).config()
    config, card = RunConfig(**saved["config"]), saved["data"]
    model = create_model(ModelConfig(**saved["config"]["model"]), seed=seeds.derive(config.seed, "model")).eval()
    load_weights(model, path / ("best.safetensors" if config.train.ema is None else "best-ema.safetensors"))
    preprocess = build_preprocess(config.data.preprocess, card["mean"], card["std"])
    return Loaded(model, tuple(card["classes"]), preprocess, tuple(card["image_size"]), card["channels"], config.train.precision == "bf16")


def evaluate_run(path: str | Path, data_dir: str | Path | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The test metrics of a run's weights, computed anew, and the names of the classes."""
    loaded, config = load(path), Run(Path(path)).config
    data = load_dataset(config.data.name, data_dir)
    if data.digest != RunFolder(path).config()["data"]["digest"]:
        raise FavoritError(f"{config.data.name} is not the data that {path} was trained on: its content has changed")
    probabilities = loaded.predict(data.test.images)
    return metrics(probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log(), data.test.labels), loaded.classes


def predict_files(path: str | Path, images: Sequence[Path], top: int = 1) -> dict[Path, list[tuple[str, float]]]:
    """For each image file (of a folder, the images in it) the `top` most probable classes."""
    loaded = load(path)
    files = find_images(images)
    pixels = torch.stack([read_image(file, loaded.image_size, loaded.channels) for file in files])
    values, places = loaded.predict(pixels).topk(min(top, len(loaded.classes)))
    named = zip(files, values.tolist(), places.tolist(), strict=True)
    return {file: [(loaded.classes[place], value) for place, value in zip(places, values, strict=True)] for file, values, places in named}
