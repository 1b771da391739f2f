"""The hybrid of Bennouna, Yang, Shao and Souaid (2025) as they published it, re-created from its report and its public
code.

It is: dim 64, depth 4, 4 heads, mlp ratio 2, patch 4, class token, learned positions, no dropout; softmax in the naive
form; Performer layers through performer-pytorch; torch's AdamW as it comes; images read one by one as PIL pictures,
flipped, rotated by up to 5 degrees (nearest pixel), made a tensor, normalised and put together by a DataLoader in the
training process.
It is not: their code, their hardware or their numbers. Of torchvision, which they use and which need not be here, the
same steps are taken in the same order on the same kind of objects.

Ours beside it is the loop, loader and optimiser of `favorit train` at the same configuration; its last block leaves out
what the head does not read.
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

from favorit.bench.comparison import (
    CLASSES,
    Call,
    Comparison,
    Contender,
    Sizes,
    Way,
    Work,
    our_adamw,
    run_as,
    work_of_step,
)
from favorit.bench.peer_attention import PERFORMERS, fast_attention, without_eps
from favorit.bench.peer_models import images, packed_attention, plain_parts
from favorit.bench.plain import Explicit, Packed, PlainViT
from favorit.bench.weights import adopt_parts
from favorit.config import DataConfig, RunConfig, TrainConfig
from favorit.data import Images, load_dataset
from favorit.model import ViT, create_model, preset
from favorit.training import Step
from favorit.training.engine import Training
from favorit.training.folder import RunFolder
from favorit.training.run import PRECISIONS, resolve

DIM, DEPTH, HEADS, MLP_DIM = 64, 4, 4, 128
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
DEGREES = 5.0
LR, WEIGHT_DECAY = 1e-3, 1e-4
EPOCH = 50_000


class ImageByImage(Dataset[tuple[Tensor, int]]):
    """Pixels (rows, columns, channels) and labels; each picture is augmented when it is asked for."""

    def __init__(self, source: Images) -> None:
        self.pixels = source.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels = source.labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        from PIL import Image

        picture = Image.fromarray(self.pixels[number])
        if torch.rand(1) < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        angle = float(torch.empty(1).uniform_(-DEGREES, DEGREES).item())
        picture = picture.rotate(angle, Image.Resampling.NEAREST, fillcolor=(0, 0, 0))
        values = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().to(torch.float32).div(255)
        mean, std = (torch.as_tensor(constants).view(-1, 1, 1) for constants in (MEAN, STD))
        return values.sub_(mean).div_(std), self.labels[number]


def _fast(generalized: bool, sizes: Sizes) -> nn.Module:
    return fast_attention(DIM // HEADS, sizes.m, generalized)


def _attention(kernel: Callable[[Sizes], nn.Module]) -> Callable[[Sizes], PlainViT]:
    def build(sizes: Sizes) -> PlainViT:
        return PlainViT(lambda: Packed(DIM, HEADS, kernel(sizes)), dim=DIM, depth=DEPTH, mlp_dim=MLP_DIM)

    return build


def _their_work(batches: Callable[[Sizes], Iterator[tuple[Tensor, Tensor]]]) -> Work:
    """A pass of their training loop: the next batch, a step, and the sums of loss and hits that are printed after the
    epoch.
    """

    def work(module: nn.Module, sizes: Sizes, way: Way) -> Call:
        forward = run_as(way, module)
        optimizer = torch.optim.AdamW(module.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        criterion, source = nn.CrossEntropyLoss(), batches(sizes)

        def one() -> tuple[float, float]:
            pictures, labels = next(source)
            optimizer.zero_grad()
            logits = forward(pictures)
            loss = criterion(logits, labels)
            loss.backward()
            optimizer.step()
            return loss.item() * len(labels), (logits.argmax(dim=1) == labels).sum().item()

        return one

    return work


def _same_batch(sizes: Sizes) -> Iterator[tuple[Tensor, Tensor]]:
    (pictures,), labels = images(sizes), torch.randint(CLASSES, (sizes.batch,))
    while True:
        yield pictures, labels


def _read_batches(sizes: Sizes) -> Iterator[tuple[Tensor, Tensor]]:
    loader = DataLoader(ImageByImage(load_dataset(sizes.data, sizes.data_dir).train), sizes.batch, shuffle=True)
    while True:
        yield from loader


def our_config(sizes: Sizes) -> RunConfig:
    """The same training as a configuration of ours, without a validation part."""
    return RunConfig(
        data=DataConfig(
            name=sizes.data, augment=f"flip|rotate({DEGREES})", preprocess=f"normalise({MEAN}, {STD})", validation=0
        ),
        train=TrainConfig(
            epochs=1000, batch_size=sizes.batch, lr=LR, weight_decay=WEIGHT_DECAY, schedule="constant", select="last"
        ),
    )


def _our_loop(module: nn.Module, sizes: Sizes, way: Way) -> Call:
    """One optimiser step of `favorit train` for each call, with everything that its loop does."""
    from lightning_fabric import Fabric

    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    config = our_config(sizes)
    data = load_dataset(config.data.name, sizes.data_dir)
    fabric = Fabric(accelerator="cpu", devices=1, precision=PRECISIONS["bf16" if way == "bf16" else "32"])  # type: ignore[arg-type]
    fabric.launch()
    run = RunFolder(Path(folder.name))
    training = Training(
        resolve(config, data),
        data,
        module,  # type: ignore[arg-type]
        fabric,
        run,
        compiled=way == "compiled",
        checkpoint_seconds=float("inf"),
    )
    events = training.events()

    def one() -> None:
        while not isinstance(next(events), Step):
            pass

    return one


def _our_model(layout: str) -> Callable[[Sizes], ViT]:
    return lambda sizes: create_model(preset("vit-64").replace(layout=layout.format(m=sizes.m)), seed=0)


# name -> our layout, what must be installed, and the published layer's function of (q, k, v).
_MODELS: dict[str, tuple[str, str | None, Callable[[Sizes], nn.Module]]] = {
    "all_standard": ("softmax", None, lambda sizes: Explicit()),
    **{
        f"all_performer {name}": (name, "performer_pytorch", partial(_fast, generalized))
        for name, generalized in PERFORMERS.items()
    },
}

_WORKS = {
    "": (work_of_step(images, our_adamw), _their_work(_same_batch)),
    " with its input": (_our_loop, _their_work(_read_batches)),
}

HYBRID = [
    Comparison(
        case="hybrid",
        name=name + suffix,
        peer="published, re-created",
        package=package,
        ours=Contender(_our_model(layout), our_work),
        theirs=Contender(_attention(kernel), their_work),
        inputs=images,
        adopt=lambda ours, theirs: adopt_parts(ours, plain_parts(theirs, packed_attention)),
        exactly=without_eps if package else nullcontext,
        epoch=EPOCH,
    )
    for name, (layout, package, kernel) in _MODELS.items()
    for suffix, (our_work, their_work) in _WORKS.items()
]
