"""Statistics of the attention of a trained model on real images, for each layer and head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from favorit.attention import Attention
from favorit.bench.doctor.advice import Advice, advise, summarize
from favorit.bench.doctor.layer_stats import Finding, LayerStats
from favorit.bench.memory import check_fits
from favorit.errors import FavoritError, check_positive
from favorit.model.layout import layers
from favorit.training.find import open_run
from favorit.training.handle import Run
from favorit.training.inference import load, load_data
from favorit.training.loaders import build_loaders

BATCH = 64


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What each layer and head of a run attends to, and which mixer could replace it.

    `findings` has the statistics of each layer, followed by those of its heads.
    """

    run: str
    findings: list[Finding]

    @property
    def advice(self) -> list[Advice]:
        """The advice for each layer."""
        return [advise(finding) for finding in self.findings if finding.head is None]

    @property
    def summary(self) -> list[str]:
        """The verdicts by ranges of layers, and a layout to try."""
        return summarize(self.findings)

    def __repr__(self) -> str:
        layers = [f"layer {each.layer}: {each.verdict} ({each.reason})" for each in self.advice]
        return "\n".join([f"<Diagnosis of {self.run}>", *layers, *self.summary])


def doctor(
    run: str | Path | Run,
    *,
    images: int = 64,
    counts: Sequence[int] = (64, 128, 256),
    data: Any = None,
    data_dir: str | Path | None = None,
    listen: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Analyzes the attention of a run on its validation images, or on test images if it has no validation set.

    Args:
        run: A run or its folder.
        images: The number of images.
        counts: favor is tried with each of these m.
        data: The images of a run on arrays, as given to `favorit.train`.
        data_dir: The folder for data sets.
        listen: Called as `listen(done, total)` after each layer of each batch.

    Example:
        favorit.doctor("runs/0123456789abcdef").summary
    """
    run = run if isinstance(run, Run) else Run(Path(open_run(run).path))
    return Diagnosis(run.id, diagnose(run, images=images, counts=counts, data=data, data_dir=data_dir, listen=listen))


def diagnose(
    run: str | Path | Run,
    *,
    images: int = 64,
    data_dir: str | Path | None = None,
    counts: Sequence[int] = (64, 128, 256),
    data: Any = None,
    listen: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """The findings of `doctor`."""
    check_positive(images=images)
    if not isinstance(counts, list | tuple):
        raise FavoritError(f"counts={counts!r} is not valid: a list of numbers of features, such as [64, 128]")
    for count in counts:
        check_positive(m=count)
    run = run if isinstance(run, Run) else Run(Path(run))
    loaded, config = load(run), run.config
    attentions = [module for module in loaded.model.modules() if isinstance(module, Attention)]
    specs = layers(config.model.layout, config.model.performer, config.model.depth)
    stats = [
        LayerStats(layer, str(spec), module, counts)
        for layer, (spec, module) in enumerate(zip(specs, attentions, strict=True), 1)
    ]
    # At least one image must fit. It needs about eight matrices of weights and of features for each head.
    check_fits("tokens", loaded.model.tokens, lambda n: 4 * 8 * config.model.heads * n * (n + max(counts)))
    loaders = build_loaders(config, load_data(run.path, data_dir, data), 0, 1)
    subset = loaders.test if loaders.validation is None else loaders.validation
    # Evenly spaced, because folders and some data sets are sorted by class.
    indices = subset.indices[torch.linspace(0, len(subset.indices) - 1, min(images, len(subset.indices))).long()]
    batches = subset.images.images[indices].split(BATCH)
    with _recording(stats, len(batches), listen):
        for batch in batches:
            # `features` computes all tokens. For logits, the last layer computes only the queries that the head reads.
            loaded.features(batch)
    return [finding for each in stats for finding in each.findings()]


@contextmanager
def _recording(stats: Sequence[LayerStats], batches: int, listen: Callable[[int, int], None] | None) -> Iterator[None]:
    """Inside the block, each mixer passes its q, k and v to the statistics of its layer."""
    done = 0

    def hook(layer: LayerStats) -> Any:
        def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            nonlocal done
            if not all(each.isfinite().all() for each in inputs):
                raise FavoritError(f"q, k or v of layer {layer.layer} are not finite: train the run again")
            layer.add(*inputs)
            done += 1
            if listen is not None:
                listen(done, batches * len(stats))

        return record

    handles = [layer.mixer.register_forward_pre_hook(hook(layer)) for layer in stats]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
