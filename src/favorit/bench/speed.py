"""How fast mixers are here: forward, forward and backward, memory, time per token.

Calls are timed in turn, so that whatever slows the machine slows them alike; `--explain` says which path each mixer
took. Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from favorit import measure
from favorit.attention import Mixer, build_mixer
from favorit.bench.memory import check_fits, grows_with_square, peak_bytes
from favorit.bench.spread import Spread, interleaved_with_limit
from favorit.errors import FavoritError
from favorit.files import write_atomically

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Key = tuple[str, str, int]

FORWARD, TRAINING = "forward", "forward+backward"
# Explicit weights of a check, for each head.
MOST_CHECKED = 1 << 18
# Token counts at which one image shows how memory grows: above every path of its own for short sequences, and small.
PROBES = (2048, 4096)


@dataclass(frozen=True)
class Size:
    """The size of an attention problem."""

    batch: int
    heads: int
    tokens: int
    head_dim: int


@dataclass(frozen=True)
class Cost:
    """Milliseconds (median, quartiles, mean, deviation), microseconds and bytes of each token, the most bytes of
    tensors alive at once, and the share of the matrix-product limit.
    """

    name: str
    what: str
    tokens: int
    median: float
    low: float
    high: float
    mean: float
    deviation: float
    microseconds_per_token: float
    memory: int
    bytes_per_token: float
    gemm_share: float | None = None
    path: str = ""


@dataclass(frozen=True)
class Scaling:
    """From the first token count to the last: the largest over the smallest time of a token, and its largest memory
    over the first's.

    Memory that grows faster than tokens, as N x N does, is above 1; a part that does not grow at all makes it fall.
    """

    name: str
    what: str
    first: int
    last: int
    time: float
    memory: float


def mixer_costs(specs: Iterable[str], sizes: Sequence[Size], *, repeats: int = 11) -> list[Cost]:
    """Forward and forward+backward of mixers, each first checked against its explicit weights; a wrong one is not
    timed.
    """
    calls: dict[Key, Callable[[], Any]] = {}
    paths: dict[Key, str] = {}
    flops: dict[Key, int] = {}
    specs = list(specs)
    for size in sizes:
        for spec in specs:
            check_memory(spec, size)
    for size in sizes:
        inputs = make_inputs(size)
        for spec in specs:
            mixer = build(spec, size)
            check(spec, mixer, *inputs[:3])
            for what, call in attention_calls(mixer, inputs).items():
                calls[spec, what, size.tokens] = call
            paths[spec, TRAINING, size.tokens] = mixer.explain(*inputs[:3])
            forward_flops = measure.flops(mixer, *inputs[:3])[""]
            flops[spec, FORWARD, size.tokens], flops[spec, TRAINING, size.tokens] = forward_flops, 3 * forward_flops
            with torch.no_grad():
                paths[spec, FORWARD, size.tokens] = mixer.explain(*inputs[:3])
    batches = {size.tokens: size.batch for size in sizes}
    times, limit = interleaved_with_limit(calls, repeats)
    shares = {key: 1e3 * flops[key] / times[key].median / limit for key in calls}
    return [
        replace(cost(key, times[key], call, batches[key[2]], shares[key]), path=paths[key])
        for key, call in calls.items()
    ]


def cost(key: Key, times: Spread, call: Callable[[], Any], batch: int, gemm_share: float | None = None) -> Cost:
    """What was measured of one call, and what that is for each token of the batch."""
    memory, tokens = peak_bytes(call), batch * key[2]
    figures = (times.median, times.low, times.high, times.mean, times.deviation)
    return Cost(*key, *figures, 1e3 * times.median / tokens, memory, memory / tokens, gemm_share)


def scalings(costs: Iterable[Cost]) -> list[Scaling]:
    """How evenly time and memory grow with tokens, for every name that was measured at several counts."""
    groups: dict[tuple[str, str], list[Cost]] = {}
    for one in costs:
        groups.setdefault((one.name, one.what), []).append(one)
    found = []
    for (name, what), group in groups.items():
        group.sort(key=lambda one: one.tokens)
        times, memory = [one.microseconds_per_token for one in group], [one.bytes_per_token for one in group]
        if len(group) > 1:
            growth = max(memory[1:]) / memory[0] if memory[0] else 1.0
            found.append(Scaling(name, what, group[0].tokens, group[-1].tokens, max(times) / min(times), growth))
    return found


def build(spec: str, size: Size) -> Mixer:
    """The mixer of a spec for this size."""
    return build_mixer(spec, heads=size.heads, head_dim=size.head_dim, tokens=size.tokens, seed=0)


def make_inputs(size: Size, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and a gradient of the output (B,H,N,D), in the layout of a packed projection: views of (B,N,H,D)."""
    shape = (size.batch, size.tokens, size.heads, size.head_dim)
    q, k, v = (torch.randn(shape, device=device).transpose(1, 2).requires_grad_() for _ in range(3))
    return q, k, v, torch.randn(shape, device=device).transpose(1, 2)


def attention_calls(attend: Attend, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> dict[str, Callable[[], Any]]:
    """What is timed of one attention: forward without gradients, and forward with backward."""
    return {FORWARD: partial(forward, attend, *inputs[:3]), TRAINING: partial(_both, attend, *inputs)}


def check_memory(spec: str, size: Size) -> None:
    """An error before anything large is allocated, from what one image of few tokens needs to be trained and to be
    checked.
    """
    small, large = PROBES if size.tokens > PROBES[-1] else (-(-size.tokens // 2), size.tokens)

    def of_one_image(tokens: int) -> tuple[float, int]:
        # Of two images: what a mixer copies for each image of a batch, it does not copy for a single one.
        few = replace(size, batch=min(size.batch, 2), tokens=tokens)
        inputs, mixer = make_inputs(few), build(spec, few)
        training = 4 * inputs[0].nbytes + peak_bytes(attention_calls(mixer, inputs)[TRAINING])
        return training / few.batch, peak_bytes(partial(check, spec, mixer, *(x[:1] for x in inputs[:3])))

    training, checking = (
        grows_with_square(small, at_small, large, at_large)
        for at_small, at_large in zip(of_one_image(small), of_one_image(large), strict=True)
    )
    # All images are trained at once; explicit weights are made for one.
    check_fits("tokens", size.tokens, lambda tokens: max(size.batch * training(tokens), checking(tokens)))


def check(spec: str, mixer: Mixer, q: Tensor, k: Tensor, v: Tensor) -> None:
    """weights @ v == forward for the first image and as many of its queries as keep the weights small.

    Of the whole batch, with gradients and without: that is what is timed, and a smaller one may take another path.
    """
    few = q[:1, :, : max(1, MOST_CHECKED // k.shape[-2])]
    with torch.no_grad():
        exact = mixer.weights(few, k[:1]) @ v[:1]
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            error = (mixer(q, k, v)[:1, :, : few.shape[-2]] - exact).abs().max().item()
        if not error < 1e-4:
            raise FavoritError(f"{spec} differs from its explicit weights by {error:.1e}: no speed is reported for it")


def write_csv(rows: Sequence[Any], path: Path) -> None:
    """Dataclasses of one kind as a table, one row each."""
    import pandas

    write_atomically(path, lambda temporary: pandas.DataFrame(rows).to_csv(temporary, index=False))


def forward(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """One call without gradients."""
    with torch.no_grad():
        function(*inputs)
    wait(inputs[0])


def _both(attend: Attend, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> None:
    torch.autograd.grad(attend(q, k, v), (q, k, v), grad, allow_unused=True)
    wait(q)


def wait(x: Tensor) -> None:
    """Returns when the device of x has done all that it was asked to; a CPU always has."""
    if x.device.type != "cpu":
        torch.accelerator.synchronize()
