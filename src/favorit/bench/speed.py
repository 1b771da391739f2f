"""How fast mixers and models are here: forward, forward and backward, memory, and the share of the machine's matrix-product limit.

Calls are timed in turn, so that whatever slows the machine slows them alike; `--explain` says which path each mixer took.
Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from favorit import measure
from favorit.attention import Mixer, build_mixer
from favorit.config import ModelConfig
from favorit.errors import FavoritError
from favorit.model import LAYOUTS, create_model
from favorit.training.folder import write_atomically
from favorit.training.optim import adamw


@dataclass(frozen=True)
class Size:
    """The size of an attention problem."""

    batch: int
    heads: int
    tokens: int
    head_dim: int


@dataclass(frozen=True)
class Cost:
    """Milliseconds (median and quartiles), the most bytes of tensors alive at once, and the share of the matrix-product limit."""

    name: str
    what: str
    median: float
    low: float
    high: float
    memory: int
    gemm_share: float | None = None
    path: str = ""


def mixer_costs(specs: Iterable[str], size: Size, *, repeats: int = 11) -> list[Cost]:
    """Forward and forward+backward of mixers, each first checked against its explicit weights; a wrong one is not timed."""
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    paths: dict[tuple[str, str], str] = {}
    _check_memory(size)
    shape = (size.batch, size.tokens, size.heads, size.head_dim)
    q, k, v = (torch.randn(shape).transpose(1, 2).requires_grad_() for _ in range(3))
    grad = torch.randn(shape).transpose(1, 2)
    for spec in specs:
        mixer = build_mixer(spec, heads=size.heads, head_dim=size.head_dim, tokens=size.tokens, seed=0)
        check(spec, mixer, q[:1], k[:1], v[:1])
        calls[spec, "forward"] = partial(_forward, mixer, q, k, v)
        calls[spec, "forward+backward"] = partial(_both, mixer, q, k, v, grad)
        paths[spec, "forward+backward"] = mixer.explain(q, k, v)
        with torch.no_grad():
            paths[spec, "forward"] = mixer.explain(q, k, v)
    return [replace(cost, path=paths[cost.name, cost.what]) for cost in _costs(calls, repeats)]


def _check_memory(size: Size) -> None:
    """An error before anything is allocated: q, k, v, the output and their gradients must fit in what is free."""
    of_one_token = 8 * 4 * size.batch * size.heads * size.head_dim
    free = measure.free_memory()
    if free is not None and of_one_token * size.tokens > free:
        raise FavoritError(
            f"tokens={size.tokens} needs {of_one_token * size.tokens / 2**30:.1f} GiB and {free / 2**30:.1f} are free: "
            f"at this batch, heads and head width at most {free // of_one_token} tokens fit"
        )


def check(spec: str, mixer: Mixer, q: Tensor, k: Tensor, v: Tensor, most_tokens: int = 512) -> None:
    """weights @ v == forward on (at most `most_tokens` of) these tokens, unless the mixer is built for their number alone."""
    if q.shape[-2] > most_tokens:
        q, k, v = (x[..., :most_tokens, :] for x in (q, k, v))
    with torch.no_grad():
        try:
            error = (mixer(q, k, v) - mixer.weights(q, k) @ v).abs().max().item()
        except FavoritError:  # a mixer of fixed length
            return
    if not error < 1e-4:
        raise FavoritError(f"{spec} differs from its explicit weights by {error:.1e}: no speed is reported for it")


def model_costs(models: dict[str, ModelConfig], batch: int, *, repeats: int = 7) -> list[Cost]:
    """A whole training step (loss, backward, AdamW) and inference of models."""
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    flops: dict[tuple[str, str], int] = {}
    for name, config in models.items():
        model = create_model(config, seed=0)
        images = torch.randn(batch, config.channels, *config.image_size)
        labels = torch.randint(config.classes, (batch,))
        (optimizer,) = adamw(model, lr=1e-6, weight_decay=0.0)
        calls[name, "training step"] = partial(_step, model, optimizer, images, labels)
        calls[name, "inference"] = partial(_forward, model, images)
        once = batch * measure.flops(model, images[:1])[""]
        flops[name, "training step"], flops[name, "inference"] = 3 * once, once
    return _costs(calls, repeats, flops)


def all_layouts(models: dict[str, ModelConfig]) -> dict[str, ModelConfig]:
    """Each model with softmax everywhere, then in the four layouts that have Performers, with relu and with favor."""
    found = {}
    for name, config in models.items():
        found[f"{name} all_standard"] = config.replace(layout="all_standard")
        for layout in (layout for layout in LAYOUTS if layout != "all_standard"):
            for kernel in ("relu(m=128)", "favor(m=128)"):
                found[f"{name} {layout} {kernel}"] = config.replace(layout=layout, performer=kernel)
    return found


def write_csv(costs: list[Cost], path: Path) -> None:
    """The costs as a table, one row each."""
    import pandas

    write_atomically(path, lambda temporary: pandas.DataFrame(costs).to_csv(temporary, index=False))


def _costs(calls: dict[tuple[str, str], Callable[[], Any]], repeats: int, flops: dict[tuple[str, str], int] | None = None) -> list[Cost]:
    limit = measure.gemm_limit() if flops else 1.0
    times = measure.time_interleaved({"\n".join(key): call for key, call in calls.items()}, repeats)
    found = []
    for key, call in calls.items():
        timing = times["\n".join(key)]
        share = flops[key] / timing.median / limit if flops else None
        milliseconds = (1e3 * timing.median, 1e3 * timing.low, 1e3 * timing.high)
        found.append(Cost(*key, *milliseconds, peak_bytes(call), share))
    return found


def _forward(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return function(*inputs)


def _both(mixer: Mixer, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> None:
    torch.autograd.grad(mixer(q, k, v), (q, k, v), grad, allow_unused=True)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most bytes of tensor storage that a call has alive at once beyond what was there before."""
    with _Storage() as storage:
        call()
    return storage.peak


class _Storage(TorchDispatchMode):
    """Counts storages as operations return them, and forgets them as they die."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.total = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import weakref

        given = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            if storage._cdata not in given and storage._cdata not in self.alive:
                self.alive[storage._cdata] = storage.nbytes()
                self.total += storage.nbytes()
                self.peak = max(self.peak, self.total)
                weakref.finalize(storage, self._forget, storage._cdata)
        return out

    def _forget(self, key: int) -> None:
        self.total -= self.alive.pop(key, 0)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
