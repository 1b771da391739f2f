"""The training loop: a generator of events.

One step, in `Training._train_epoch`:

    batch           from `Loader.epoch` in data/loader.py; loaders.py decides which images train
    learning rate   from `learning_rate_factor` in optim.py, which also builds the optimizers
    redraw          of the random features, if due
    `_step`         forward, loss, backward, clipping, update of weights and moving average

Every random number is a function of (seed, epoch, step, rank). A run that was killed and resumed therefore ends with
the same weights as an uninterrupted one, bit for bit if the number of threads is equal.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from favorit import seeds
from favorit.config import RunConfig
from favorit.data import Batch, DataSet, Loader
from favorit.data.notes import few_images
from favorit.files import remove
from favorit.model import ViT
from favorit.training.checkpoint import (
    Progress,
    check_progress,
    load_newest,
    load_weights,
    save_checkpoint,
    selected_weights,
    weight_bytes,
)
from favorit.training.diagnosis import DivergedError, diagnose
from favorit.training.digests import digest
from favorit.training.evaluation import Evaluation, evaluate
from favorit.training.events import Begin, Checkpoint, End, Epoch, Event, Step
from favorit.training.folder import RunFolder
from favorit.training.loaders import build_loaders, class_weights
from favorit.training.optim import build_optimizers, learning_rate_factor
from favorit.training.result import complete_result, environment, pruned_result

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Training:
    """The state of one run in memory: model, optimizers, data loaders, progress. `events` is the loop."""

    def __init__(
        self,
        config: RunConfig,
        data: DataSet,
        model: ViT,
        fabric: Fabric,
        folder: RunFolder,
        *,
        compiled: bool,
        checkpoint_seconds: float,
        workers: int = 1,
    ) -> None:
        self.config = config
        self.model = model
        self.fabric = fabric
        self.folder = folder
        self.checkpoint_seconds = checkpoint_seconds
        self.workers = workers
        self.progress = Progress()
        options = config.train
        loaders = build_loaders(config, data, fabric.global_rank, fabric.world_size)
        self.loader = loaders.training
        self.validation = loaders.validation
        self.test = loaders.test
        self.plain_test = loaders.plain_test
        self.notes = (*data.notes, *few_images(loaders.labels, data.classes))
        self.skipped = () if data.files is None else data.files.skipped
        forward: nn.Module = torch.compile(model) if compiled else model  # type: ignore[assignment]
        optimizers = build_optimizers(model, options)
        self.forward, *self.optimizers = fabric.setup(forward, *optimizers)
        learning_rate_factor(options, 0, len(self.loader))  # rejects an invalid schedule before the first step
        self.base_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
        average = get_ema_multi_avg_fn(options.ema) if options.ema is not None else None
        self.ema = AveragedModel(model, multi_avg_fn=average) if average is not None else None
        self.class_weights: Tensor | None = None
        if options.class_weights:
            weights = class_weights(loaders.labels, len(data.classes), options.class_weights)
            self.class_weights = weights.to(fabric.device)

    @property
    def evaluated_model(self) -> ViT:
        """The model to validate and test: the moving average of the weights if `train.ema` is set."""
        return self.model if self.ema is None else cast(ViT, self.ema.module)

    def events(self) -> Generator[Event, bool | None, None]:
        """Trains from the last checkpoint to the end. Send True after an Epoch to prune the run."""
        self._resume()
        if self.fabric.is_global_zero:
            yield Begin(str(self.folder.path), self.progress.step, self.notes)
        pruned = False
        while not (pruned or self._is_over()):
            yield from self._train_epoch()
            epoch = self._finish_epoch()
            stop = None
            if self.fabric.is_global_zero:
                stop = yield epoch
            # Every rank computes the same early stopping; only the listener's request has to be broadcast.
            pruned = bool(self.fabric.broadcast(bool(stop))) and not self._is_over()
        if self.fabric.is_global_zero:
            yield End(self._prune() if pruned else self._finish())

    def _resume(self) -> None:
        saved = self.folder.checkpoints()
        check = partial(check_progress, steps=len(self.loader), epochs=self.config.train.epochs)
        self.progress, unusable = load_newest(saved, self._models(), self._stateful(), check)
        self.fabric.barrier()  # every process has read the checkpoints
        if self.fabric.is_global_zero:
            for path, error in unusable.items():
                warnings.warn(f"{error}; resuming from an earlier checkpoint", stacklevel=2)
                remove(path)
            self.folder.cut_epochs(self.progress.epochs)
            for name, content in self._best().items():  # the checkpoint may have the selected weights
                if self.progress.weights.get(name) == digest(content):
                    self.folder.write_weights(name, content)
        self.fabric.barrier()

    def _train_epoch(self) -> Iterator[Event]:
        progress, options, steps = self.progress, self.config.train, len(self.loader)
        epoch = progress.epochs
        first = progress.step - epoch * steps
        if first == 0:
            progress.begin_epoch()
        saved = time.monotonic()
        self.model.train()
        start = time.perf_counter()
        for batch in self.loader.epoch(epoch, first):
            factor = learning_rate_factor(options, progress.step, steps)
            self._set_learning_rates(factor)
            self._redraw()
            self._step(batch)
            progress.step += 1
            progress.seconds += time.perf_counter() - start
            if self.fabric.is_global_zero:
                done = progress.step - epoch * steps
                yield Step(
                    epoch,
                    done,
                    steps,
                    progress.loss_sum / progress.seen,
                    progress.correct / progress.seen,
                    options.lr * factor,
                )
                if done < steps and time.monotonic() - saved >= self.checkpoint_seconds:
                    self._save()
                    saved = time.monotonic()
                    yield Checkpoint(progress.step)
            start = time.perf_counter()

    def _set_learning_rates(self, factor: float) -> None:
        for optimizer, rates in zip(self.optimizers, self.base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def _redraw(self) -> None:
        """Redraws the random features if they are due at this step."""
        every, step = self.config.train.redraw, self.progress.step
        period = len(self.loader) if every == "epoch" else every
        if isinstance(period, int) and step and step % period == 0:
            self.model.redraw(step // period)

    def _step(self, batch: Batch) -> None:
        """Forward, backward and update on one batch; adds its loss and accuracy to the progress."""
        progress, options, device = self.progress, self.config.train, self.fabric.device
        # Dropout and stochastic depth draw from torch's global generator: one stream for each step and rank.
        torch.manual_seed(seeds.derive(self.config.seed, "step", self.fabric.global_rank, progress.step))
        images, targets = batch.images.to(device), batch.targets.to(device)
        logits = self.forward(images)
        losses = F.cross_entropy(
            logits.float(), targets, self.class_weights, label_smoothing=options.label_smoothing, reduction="sum"
        )
        # DDP averages the gradients of the ranks, so the mean over the whole batch needs this factor.
        loss = losses * self.fabric.world_size / batch.total
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        truth = targets if targets.ndim == 1 else targets.argmax(-1)
        # Reduced during the backward pass and read after it, because reading forces a device sync.
        sums = self._sum_over_ranks(losses.detach(), (logits.argmax(-1) == truth).sum(), torch.tensor(len(images)))
        self.fabric.backward(loss)
        loss_sum, correct, seen = sums()
        if not math.isfinite(loss_sum):
            raise self._diverged(f"the loss became {loss_sum}", images)
        if options.clip is not None:
            for optimizer in self.optimizers:
                self.fabric.strategy.precision.unscale_gradients(optimizer)
            # One norm over all parameters, even if several optimizers update them.
            nn.utils.clip_grad_norm_(self.model.parameters(), options.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        progress.loss_sum += loss_sum
        progress.correct += int(correct)
        progress.seen += int(seen)

    def _sum_over_ranks(self, *values: Tensor) -> Callable[[], list[float]]:
        """Starts an all-reduce; the returned function waits for the sums.

        All processes get the same sums, so they report the same epoch, stop at the same loss and store the same
        progress.
        """
        if self.fabric.world_size == 1:
            return lambda: [value.item() for value in values]
        sums = torch.stack([value.to(self.fabric.device, torch.float64) for value in values])
        pending = distributed.all_reduce(sums, async_op=True)

        def wait() -> list[float]:
            pending.wait()
            return sums.tolist()

        return wait

    def _finish_epoch(self) -> Epoch:
        """Validates, appends the record of the epoch, and saves the checkpoint and the best weights."""
        progress, options = self.progress, self.config.train
        loss = accuracy = None
        seconds = 0.0
        if self.validation is not None:
            evaluation = self._evaluate(self.validation)
            seconds = sum(evaluation.seconds)
            # Batch norm statistics differ between processes: the values of rank 0 decide for all.
            loss, accuracy = self.fabric.broadcast((evaluation.loss, evaluation.accuracy))
            if not math.isfinite(loss):
                raise self._diverged(f"the validation loss became {loss}", next(self.validation.epoch(0)).images)
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
            best = self._best() if better else {}
            progress.weights |= {name: digest(content) for name, content in best.items()}
            self._save()  # first: after a kill, `_resume` writes the files from this checkpoint
            for name, content in best.items():
                self.folder.write_weights(name, content)
        self.fabric.barrier()
        return record

    def _watch(self) -> dict[str, Any]:
        """The test fields of an epoch's record, empty unless `train.watch` is set. They do not affect training.

        Only rank 0 writes records, so only rank 0 evaluates.
        """
        if self.config.train.watch is None or not self.fabric.is_global_zero:
            return {}
        found = self._evaluate(self.test)
        loss = found.loss if math.isfinite(found.loss) else None  # the loop itself checks whether the run diverged
        return {"test_loss": loss, "test_accuracy": found.accuracy, "test_seconds": sum(found.seconds)}

    def _evaluate(self, loader: Loader) -> Evaluation:
        return evaluate(self.evaluated_model, loader, self.fabric.device, self.fabric.autocast)

    def _is_over(self) -> bool:
        patience, best, epochs = self.config.train.patience, self.progress.best_epoch, self.progress.epochs
        return epochs >= self.config.train.epochs or (
            patience is not None and best is not None and epochs - 1 - best >= patience
        )

    def _prune(self) -> dict[str, Any]:
        """Writes the result of a pruned run, and keeps its checkpoint."""
        result = pruned_result(self.folder.epochs())
        self.folder.write_result(result)
        return result

    def _finish(self) -> dict[str, Any]:
        """Tests the selected weights, and writes predictions and result."""
        best = selected_weights(self.config)
        load_weights(self.evaluated_model, self.folder.path / best, self.progress.weights.get(best))
        tested = self._evaluate(self.test)
        if not tested.logits.isfinite().all():  # without validation, not checked since the last update
            raise self._diverged("test logits are not finite", next(self.test.epoch(0)).images)
        self.folder.write_predictions(tested.logits.numpy(), tested.labels.numpy())
        with self.fabric.autocast():
            paths = self.model.attention_implementations(self.config.train.batch_size)
        result = complete_result(
            self.config,
            self.evaluated_model,
            self.folder.epochs(),
            tested,
            None if self.plain_test is None else self._evaluate(self.plain_test),
            steps=self.progress.step,
            weights=self.progress.weights,
            **({"skipped": list(self.skipped)} if self.skipped else {}),
            paths=paths,
            environment=environment(self.fabric.device, self.fabric.world_size, self.workers),
        )
        self.folder.write_result(result)
        self.folder.tidy()
        return result

    def _models(self) -> dict[str, nn.Module]:
        return {"model": self.model} if self.ema is None else {"model": self.model, "ema": self.ema}

    def _best(self) -> dict[str, bytes]:
        """The weights files for the current weights, by name."""
        averaged = {} if self.ema is None else {"best-ema.safetensors": weight_bytes(self.evaluated_model)}
        return {"best.safetensors": weight_bytes(self.model), **averaged}

    def _stateful(self) -> list[Any]:
        return [*self.optimizers, self.fabric.strategy.precision]

    def _save(self) -> None:
        self.folder.write_checkpoint(
            self.progress.step, lambda path: save_checkpoint(path, self.progress, self._models(), self._stateful())
        )

    def _diverged(self, what: str, images: Tensor) -> DivergedError:
        """The error for non-finite values: at which step, in which layer, and what to try."""
        steps = len(self.loader)
        # `progress.step` counts complete steps. Validation comes after the last step of an epoch, hence the minimum.
        step = min(self.progress.step - self.progress.epochs * steps + 1, steps)
        found = diagnose(self.evaluated_model, images.to(self.fabric.device), self.fabric.autocast)
        epoch = min(self.progress.epochs + 1, self.config.train.epochs)
        return DivergedError(
            f"{what} at epoch {epoch}, step {step} of {steps}; {found}. "
            "Try a lower train.lr, train.clip=1.0, train.warmup=5, model.qk_norm=True or train.precision=32"
        )
