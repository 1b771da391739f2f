"""The hybrid of Bennouna, Yang, Shao and Souaid (2025), re-created from their report and public code.

The model has dim 64, depth 4, 4 heads, mlp ratio 2, patch 4, a class token, learned positions and no dropout. Softmax
attention is in the naive form, Performer layers are those of performer-pytorch. The optimizer is torch's default AdamW.
A DataLoader in the training process reads images one by one with PIL: flip, rotation by up to 5 degrees (nearest
pixel), conversion to a tensor, normalization.

The code and the hardware are not theirs, and no time is taken from their report. They use torchvision. This module
applies the same operations in the same order to the same types of objects, so torchvision need not be installed.

Our side has the same configuration and the optimizer of `favorit train`. Its last block skips the tokens that the head
does not read. Comparisons "with its input" run both training loops with their loaders; the others repeat one batch.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from favorit.bench.peers.attention import PERFORMERS, fast_attention, without_eps
from favorit.bench.peers.comparison import (
    CLASSES,
    Call,
    Comparison,
    Implementation,
    MakeCall,
    Mode,
    Sizes,
    our_adamw,
    run_in,
    step_call,
)
from favorit.bench.peers.models import packed_attention_weights, plain_weights, random_images
from favorit.bench.peers.plain_vit import Explicit, Packed, PlainViT
from favorit.bench.peers.weight_transfer import load_weights
from favorit.config import DataConfig, RunConfig, TrainConfig
from favorit.data import Images, load_dataset
from favorit.model import ViT, create_model, preset
from favorit.training import Step
from favorit.training.engine import Training
from favorit.training.folder import RunFolder
from favorit.training.identity import resolve
from favorit.training.run import PRECISIONS

DIM, DEPTH, HEADS, MLP_DIM = 64, 4, 4, 128
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
DEGREES = 5.0
LR, WEIGHT_DECAY = 1e-3, 1e-4
EPOCH_IMAGES = 50_000


class PerImageDataset(Dataset[tuple[Tensor, int]]):
    """Augments an image each time it is indexed. `pixels` are (N, rows, columns, channels)."""

    def __init__(self, source: Images) -> None:
        self.pixels = source.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels = source.labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        picture = Image.fromarray(self.pixels[index])
        if torch.rand(1) < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        angle = float(torch.empty(1).uniform_(-DEGREES, DEGREES).item())
        picture = picture.rotate(angle, Image.Resampling.NEAREST, fillcolor=(0, 0, 0))
        values = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().to(torch.float32).div(255)
        mean, std = (torch.as_tensor(channels).view(-1, 1, 1) for channels in (MEAN, STD))
        return values.sub_(mean).div_(std), self.labels[index]


def _performer_attention(generalized: bool, sizes: Sizes) -> nn.Module:
    return fast_attention(DIM // HEADS, sizes.m, generalized)


def _their_model(attention: Callable[[Sizes], nn.Module]) -> Callable[[Sizes], PlainViT]:
    def build(sizes: Sizes) -> PlainViT:
        return PlainViT(lambda: Packed(DIM, HEADS, attention(sizes)), dim=DIM, depth=DEPTH, mlp_dim=MLP_DIM)

    return build


def _their_step(batches: Callable[[Sizes], Iterator[tuple[Tensor, Tensor]]]) -> MakeCall:
    """Returns a `make_call` for one iteration of their loop: next batch, training step, loss and number correct."""

    def make(module: nn.Module, sizes: Sizes, mode: Mode) -> Call:
        forward = run_in(mode, module)
        optimizer = torch.optim.AdamW(module.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        criterion, source = nn.CrossEntropyLoss(), batches(sizes)

        def iteration() -> tuple[float, float]:
            images, labels = next(source)
            optimizer.zero_grad()
            logits = forward(images)
            loss = criterion(logits, labels)
            loss.backward()
            optimizer.step()
            return loss.item() * len(labels), (logits.argmax(dim=1) == labels).sum().item()

        return iteration

    return make


def _repeated_batch(sizes: Sizes) -> Iterator[tuple[Tensor, Tensor]]:
    (images,), labels = random_images(sizes), torch.randint(CLASSES, (sizes.batch,))
    while True:
        yield images, labels


def _dataset_batches(sizes: Sizes) -> Iterator[tuple[Tensor, Tensor]]:
    loader = DataLoader(PerImageDataset(load_dataset(sizes.data, sizes.data_dir).train), sizes.batch, shuffle=True)
    while True:
        yield from loader


def our_config(sizes: Sizes) -> RunConfig:
    """Our configuration of the same training, without a validation split."""
    return RunConfig(
        data=DataConfig(
            name=sizes.data, augment=f"flip|rotate({DEGREES})", preprocess=f"normalise({MEAN}, {STD})", validation=0
        ),
        train=TrainConfig(
            epochs=1000, batch_size=sizes.batch, lr=LR, weight_decay=WEIGHT_DECAY, schedule="constant", select="last"
        ),
    )


def _our_loop(module: nn.Module, sizes: Sizes, mode: Mode) -> Call:
    """Returns a call that runs the loop of `favorit train`, with its loader, to the end of the next step."""
    from lightning_fabric import Fabric

    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    config = our_config(sizes)
    data = load_dataset(config.data.name, sizes.data_dir)
    fabric = Fabric(accelerator="cpu", devices=1, precision=PRECISIONS["bf16" if mode == "bf16" else "32"])  # type: ignore[arg-type]
    fabric.launch()
    training = Training(
        resolve(config, data),
        data,
        module,  # type: ignore[arg-type]
        fabric,
        RunFolder(Path(folder.name)),
        compiled=mode == "compiled",
        checkpoint_seconds=float("inf"),
    )
    events = training.events()

    def next_step() -> None:
        while not isinstance(next(events), Step):
            pass

    return next_step


def _our_model(layout: str) -> Callable[[Sizes], ViT]:
    return lambda sizes: create_model(preset("vit-64").replace(layout=layout.format(m=sizes.m)), seed=0)


# name -> (our layout, required package, their attention function)
_MODELS: dict[str, tuple[str, str | None, Callable[[Sizes], nn.Module]]] = {
    "all_standard": ("softmax", None, lambda sizes: Explicit()),
    **{
        f"all_performer {name}": (name, "performer_pytorch", partial(_performer_attention, generalized))
        for name, generalized in PERFORMERS.items()
    },
}

# suffix of the name -> (our timed call, theirs)
_CALLS = {
    "": (step_call(random_images, our_adamw), _their_step(_repeated_batch)),
    " with its input": (_our_loop, _their_step(_dataset_batches)),
}

HYBRID_COMPARISONS = [
    Comparison(
        case="hybrid",
        name=name + suffix,
        peer="published, re-created",
        package=package,
        ours=Implementation(_our_model(layout), our_call),
        theirs=Implementation(_their_model(attention), their_call),
        inputs=random_images,
        copy_weights=lambda ours, theirs: load_weights(ours, plain_weights(theirs, packed_attention_weights)),
        without_extras=without_eps if package else nullcontext,
        epoch_images=EPOCH_IMAGES,
    )
    for name, (layout, package, attention) in _MODELS.items()
    for suffix, (our_call, their_call) in _CALLS.items()
]
