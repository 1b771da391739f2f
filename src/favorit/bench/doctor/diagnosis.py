"""Statistics of the attention of a trained model on real images, for each layer and head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from favorit.attention import Attention
from favorit.bench.doctor.layer_stats import Finding, LayerStats
from favorit.bench.memory import check_fits
from favorit.errors import check_positive
from favorit.model.layout import layers
from favorit.training.handle import Run
from favorit.training.inference import load, load_data
from favorit.training.loaders import build_loaders

BATCH = 64


def diagnose(
    run: str | Path | Run,
    *,
    images: int = 64,
    data_dir: str | Path | None = None,
    counts: Sequence[int] = (64, 128, 256),
    listen: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """The findings for a run on its validation images, or on test images if it has no validation set.

    favor is tried with each m of `counts`. `listen(done, total)` is called after each layer of each batch.
    """
    check_positive(images=images)
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
    loaders = build_loaders(config, load_data(run.path, data_dir), 0, 1)
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
