"""The attention of a trained model on real images, layer by layer and head by head: what a linear kernel would lose of
softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from favorit.attention import Attention
from favorit.bench.doctor_tally import Finding, Tally
from favorit.bench.memory import check_fits
from favorit.errors import positive
from favorit.model.layout import layers
from favorit.training.inference import load, load_data
from favorit.training.loaders import build_loaders
from favorit.training.run import Run

BATCH = 64


def diagnose(
    run: str | Path | Run,
    *,
    images: int = 64,
    data_dir: str | Path | None = None,
    counts: Sequence[int] = (64, 128, 256),
    listen: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """What the attention of a run does on validation images (test images where it set none aside), with favor at
    `counts` features.
    """
    positive(images=images)
    run = run if isinstance(run, Run) else Run(Path(run))
    loaded, config = load(run), run.config
    attentions = [module for module in loaded.model.modules() if isinstance(module, Attention)]
    specs = layers(config.model.layout, config.model.performer, config.model.depth)
    tallies = [
        Tally(layer, str(spec), module, counts)
        for layer, (spec, module) in enumerate(zip(specs, attentions, strict=True), 1)
    ]
    # An image at a time where that is all there is room for: some matrices of weights and of features.
    check_fits("tokens", loaded.model.tokens, lambda n: 4 * 8 * config.model.heads * n * (n + max(counts)))
    loaders = build_loaders(config, load_data(run.path, data_dir), 0, 1)
    chosen = loaders.test if loaders.validation is None else loaders.validation
    # From all over: folders and some data sets are in the order of their classes.
    places = chosen.indices[torch.linspace(0, len(chosen.indices) - 1, min(images, len(chosen.indices))).long()]
    blocks = chosen.images.images[places].split(BATCH)
    with _watched(tallies, len(blocks), listen):
        for block in blocks:
            # All tokens: for its prediction alone, the last layer has no queries but those that the head reads.
            loaded.features(block)
    return [finding for tally in tallies for finding in tally.findings()]


@contextmanager
def _watched(tallies: Sequence[Tally], passes: int, listen: Callable[[int, int], None] | None) -> Iterator[None]:
    """Inside, every tally sees the q, k, v that its mixer gets, one layer at a time."""
    seen = 0

    def hook(tally: Tally) -> Any:
        def see(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            nonlocal seen
            tally.add(*inputs)
            seen += 1
            if listen is not None:
                listen(seen, passes * len(tallies))

        return see

    handles = [tally.mixer.register_forward_pre_hook(hook(tally)) for tally in tallies]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
