"""The one training loop: a generator of events.

Every random number is a function of (seed, epoch, step): a run that is killed and resumed ends with the same weights,
bit for bit at equal threads, as one that was not.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from favorit import measure, seeds
from favorit.config import RunConfig
from favorit.data import Batch, DataSet, Loader
from favorit.errors import FavoritError
from favorit.files import write_atomically
from favorit.model import ViT
from favorit.training.checkpoint import Progress, load_checkpoint, load_weights, save_checkpoint, save_weights
from favorit.training.diagnosis import diagnose
from favorit.training.evaluation import Evaluation, evaluate, report
from favorit.training.events import Begin, Checkpoint, End, Epoch, Event, Step
from favorit.training.folder import RunFolder
from favorit.training.loaders import class_weights, load_parts
from favorit.training.optim import build_optimizers, learning_rate_factor
from favorit.training.outcome import outcome

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class DivergedError(FavoritError):
    """The loss is no longer a number."""


class Training:
    """Everything that one run holds in memory. `events` is the loop."""

    def __init__(
        self,
        config: RunConfig,
        data: DataSet,
        model: ViT,
        fabric: Fabric,
        folder: RunFolder,
        *,
        compiled: bool,
        every: float,
        workers: int = 1,
    ) -> None:
        self.config, self.fabric, self.folder, self.model, self.every, self.workers = (
            config,
            fabric,
            folder,
            model,
            every,
            workers,
        )
        options = config.train
        parts = load_parts(config, data, fabric.global_rank, fabric.world_size)
        self.loader, self.validation, self.test, self.plain_test = (
            parts.training,
            parts.validation,
            parts.test,
            parts.plain_test,
        )
        forward: nn.Module = torch.compile(model) if compiled else model  # type: ignore[assignment]
        optimizers = build_optimizers(model, options)
        self.forward, *self.optimizers = fabric.setup(forward, *optimizers)
        learning_rate_factor(options, 0, len(self.loader))  # a mistake in the schedule shows before the first step
        self.rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
        average = get_ema_multi_avg_fn(options.ema) if options.ema is not None else None
        self.ema = AveragedModel(model, multi_avg_fn=average) if average is not None else None
        self.class_weights: Tensor | None = None
        if options.class_weights:
            self.class_weights = class_weights(parts.labels, len(data.classes), options.class_weights).to(fabric.device)
        self.progress = Progress()

    @property
    def chosen(self) -> nn.Module:
        """The model that is validated and tested."""
        return self.model if self.ema is None else self.ema.module

    def events(self) -> Generator[Event, bool | None, None]:
        """Trains from the last checkpoint to the end. Sending True after an Epoch prunes the run there."""
        self._resume()
        if self.fabric.is_global_zero:
            yield Begin(str(self.folder.path), self.progress.step)
        pruned = False
        while not (pruned or self._is_over()):
            yield from self._train_epoch()
            epoch = self._finish_epoch()
            asked = None
            if self.fabric.is_global_zero:
                asked = yield epoch
            # The counters of early stopping are the same everywhere; only the listener's wish has to be passed on.
            pruned = bool(self.fabric.broadcast(bool(asked))) and not self._is_over()
        if self.fabric.is_global_zero:
            yield End(self._prune() if pruned else self._finish())

    def _resume(self) -> None:
        if saved := self.folder.checkpoints():
            self.progress = load_checkpoint(saved[-1], self._models(), self._stateful())
        if self.fabric.is_global_zero:
            self.folder.cut_epochs(self.progress.epochs)
        self.fabric.barrier()

    def _train_epoch(self) -> Iterator[Event]:
        progress, options, steps = self.progress, self.config.train, len(self.loader)
        number = progress.epochs
        first = progress.step - number * steps
        if first == 0:
            progress.begin_epoch()
        saved = time.monotonic()
        self.model.train()
        start = time.perf_counter()
        for batch in self.loader.epoch(number, first):
            factor = learning_rate_factor(options, progress.step, steps)
            for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * factor
            self._redraw()
            self._step(batch)
            progress.step += 1
            progress.seconds += time.perf_counter() - start
            if self.fabric.is_global_zero:
                done = progress.step - number * steps
                yield Step(
                    number,
                    done,
                    steps,
                    progress.loss_sum / progress.seen,
                    progress.correct / progress.seen,
                    options.lr * factor,
                )
                if done < steps and time.monotonic() - saved >= self.every:
                    self._save()
                    saved = time.monotonic()
                    yield Checkpoint(progress.step)
            start = time.perf_counter()

    def _step(self, batch: Batch) -> None:
        progress, options, device = self.progress, self.config.train, self.fabric.device
        # Dropout and stochastic depth draw from torch's global generator: a stream for each step and rank.
        torch.manual_seed(seeds.derive(self.config.seed, "step", self.fabric.global_rank, progress.step))
        images, targets = batch.images.to(device), batch.targets.to(device)
        logits = self.forward(images)
        losses = F.cross_entropy(
            logits.float(), targets, self.class_weights, label_smoothing=options.label_smoothing, reduction="sum"
        )
        # Ranks average their gradients: each divides by its share of the whole batch.
        loss = losses * self.fabric.world_size / batch.total
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        truth = targets if targets.ndim == 1 else targets.argmax(-1)
        # Sent before the backward, which hides the wait; looked at after it, as a look waits for the device.
        sums = self._over_ranks(losses.detach(), (logits.argmax(-1) == truth).sum(), torch.tensor(len(images)))
        self.fabric.backward(loss)
        value, correct, seen = sums()
        if not math.isfinite(value):
            raise DivergedError(self._diagnosis(f"the loss became {value}", images))
        if options.clip is not None:
            for optimizer in self.optimizers:
                self.fabric.strategy.precision.unscale_gradients(optimizer)
            # One norm over all parameters, also where several optimisers share them.
            nn.utils.clip_grad_norm_(self.model.parameters(), options.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        progress.loss_sum += value
        progress.correct += int(correct)
        progress.seen += int(seen)

    def _over_ranks(self, *numbers: Tensor) -> Callable[[], list[float]]:
        """The sums over all processes, once they are asked for: each reports the same epoch, stops at the same loss and
        resumes from the same progress.
        """
        if self.fabric.world_size == 1:
            return lambda: [number.item() for number in numbers]
        sums = torch.stack([number.to(self.fabric.device, torch.float64) for number in numbers])
        pending = distributed.all_reduce(sums, async_op=True)

        def wait() -> list[float]:
            pending.wait()
            return sums.tolist()

        return wait

    def _redraw(self) -> None:
        every, step = self.config.train.redraw, self.progress.step
        period = len(self.loader) if every == "epoch" else every
        if isinstance(period, int) and step and step % period == 0:
            self.model.redraw(step // period)

    def _finish_epoch(self) -> Epoch:
        progress, options = self.progress, self.config.train
        loss = accuracy = None
        seconds = 0.0
        if self.validation is not None:
            found = self._evaluate(self.validation)
            seconds = sum(found.seconds)
            # Batch norm keeps statistics of its own in each process: what the first one found decides for all.
            loss, accuracy = self.fabric.broadcast((found.loss, found.accuracy))
            if not math.isfinite(loss):
                raise DivergedError(
                    self._diagnosis(f"the validation loss became {loss}", next(self.validation.epoch(0)).images)
                )
        score = {"accuracy": accuracy, "loss": None if loss is None else -loss}[options.monitor]
        better = options.select == "last" or score is None or progress.best is None or score > progress.best
        if score is not None and (progress.best is None or score > progress.best):
            progress.best, progress.best_epoch = score, progress.epochs
        record = Epoch(
            epoch=progress.epochs,
            train_loss=progress.loss_sum / progress.seen,
            train_accuracy=progress.correct / progress.seen,
            validation_loss=loss,
            validation_accuracy=accuracy,
            lr=self.optimizers[0].param_groups[0]["lr"],
            train_seconds=progress.seconds,
            validation_seconds=seconds,
            best=better,
            **self._watch(),
            scalars=self.model.scalars(),
        )
        progress.epochs += 1
        if self.fabric.is_global_zero:
            self.folder.append_epoch(asdict(record))
            if better:
                write_atomically(self.folder.path / "best.safetensors", lambda path: save_weights(self.model, path))
                if self.ema is not None:
                    write_atomically(
                        self.folder.path / "best-ema.safetensors", lambda path: save_weights(self.chosen, path)
                    )
            self._save()
        self.fabric.barrier()
        return record

    def _watch(self) -> dict[str, Any]:
        """The test fields of an epoch's record. Nothing is chosen by them, and the first process alone writes
        records.
        """
        if self.config.train.watch is None or not self.fabric.is_global_zero:
            return {}
        found = self._evaluate(self.test)
        loss = found.loss if math.isfinite(found.loss) else None  # the loop itself finds out whether the run diverged
        return {"test_loss": loss, "test_accuracy": found.accuracy, "test_seconds": sum(found.seconds)}

    def _evaluate(self, loader: Loader) -> Evaluation:
        return evaluate(self.chosen, loader, self.fabric.device, self.fabric.autocast)

    def _is_over(self) -> bool:
        patience, best, epochs = self.config.train.patience, self.progress.best_epoch, self.progress.epochs
        return epochs >= self.config.train.epochs or (
            patience is not None and best is not None and epochs - 1 - best >= patience
        )

    def _prune(self) -> dict[str, Any]:
        """Records how far the run came; its checkpoint stays."""
        epochs = self.folder.epochs()
        result = {"status": "pruned", "epochs": len(epochs), "validation": _validation(epochs[-1])}
        self.folder.write_result(result)
        return result

    def _finish(self) -> dict[str, Any]:
        """Tests the chosen weights, once, and writes what the run ends with."""
        load_weights(
            self.chosen, self.folder.path / ("best.safetensors" if self.ema is None else "best-ema.safetensors")
        )
        found = self._evaluate(self.test)
        if not found.logits.isfinite().all():  # without validation images the last step is seen here first
            raise DivergedError(
                self._diagnosis("the answers to test images became other than numbers", next(self.test.epoch(0)).images)
            )
        logits, labels = found.logits.numpy(), found.labels.numpy()

        def predictions(path: Any) -> None:
            import numpy as np

            with open(path, "wb") as file:
                np.savez_compressed(file, logits=logits, labels=labels)

        write_atomically(self.folder.path / "predictions.npz", predictions)
        epochs = self.folder.epochs()
        image = torch.zeros(1, self.config.model.channels, *self.config.model.image_size, device=self.fabric.device)
        with self.fabric.autocast():
            paths = self.model.paths(self.config.train.batch_size)
        result = {
            "status": "complete",
            **outcome(epochs),
            "steps": self.progress.step,
            "chosen_epoch": max((record["epoch"] for record in epochs if record["best"]), default=0),
            "validation": next((_validation(record) for record in reversed(epochs) if record["best"]), None),
            **report(self.chosen, found, image),
            **self._plain(),
            "paths": paths,
            "flags": [flag for flag, holds in self._flags().items() if holds],
            "environment": {
                **measure.fingerprint(),
                "device": str(self.fabric.device),
                "processes": self.fabric.world_size,
                "workers": self.workers,
                "nice": os.getpriority(os.PRIO_PROCESS, 0),
            },
        }
        self.folder.write_result(result)
        self.folder.tidy()
        return result

    def _plain(self) -> dict[str, Any]:
        """Accuracy and loss on the test images as they are, where the protocol tests on augmented ones."""
        if self.plain_test is None:
            return {}
        found = self._evaluate(self.plain_test)
        return {"plain_test": {"accuracy": found.accuracy, "loss": found.loss}}

    def _flags(self) -> dict[str, bool]:
        """What a reader of this result must know before comparing it."""
        data = self.config.data
        return {
            "watched": self.config.train.watch is not None,
            "one-token": self.model.tokens == 1,
            "augmented-test": data.augment_test,
            "test-subset": data.test_subset is not None,
        }

    def _models(self) -> dict[str, nn.Module]:
        return {"model": self.model} if self.ema is None else {"model": self.model, "ema": self.ema}

    def _stateful(self) -> list[Any]:
        return [*self.optimizers, self.fabric.strategy.precision]

    def _save(self) -> None:
        self.folder.write_checkpoint(
            self.progress.step, lambda path: save_checkpoint(path, self.progress, self._models(), self._stateful())
        )

    def _diagnosis(self, what: str, images: Tensor) -> str:
        """When it happened, in which layer, and what to try."""
        steps = len(self.loader)
        # A step counts once it is taken; validation comes after the last one of its epoch.
        step = min(self.progress.step - self.progress.epochs * steps + 1, steps)
        found = diagnose(self.chosen, images.to(self.fabric.device), self.fabric.autocast)
        return (
            f"{what} at epoch {min(self.progress.epochs + 1, self.config.train.epochs)}, step {step} of {steps}; {found}. "
            "Try a lower train.lr, train.clip=1.0, train.warmup=5, model.qk_norm=True or train.precision=32"
        )


def _validation(record: dict[str, Any]) -> dict[str, float | None]:
    return {"loss": record["validation_loss"], "accuracy": record["validation_accuracy"]}
