"""The cost of mixers on this machine: time of forward and of forward+backward, memory, and both per token.

Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from favorit import measure
from favorit.attention import Mixer, build_mixer
from favorit.bench.memory import check_fits, fit_quadratic, peak_bytes
from favorit.bench.spread import Ratio, ratio
from favorit.bench.timing import Stats, interleave_with_gemm
from favorit.errors import FavoritError

AttentionFn = Callable[[Tensor, Tensor, Tensor], Tensor]
Key = tuple[str, str, int]
"""(name of a mixer or model, what is timed, tokens)"""

FORWARD, TRAINING = "forward", "forward+backward"
# The largest number of explicit weights per head that a check computes.
MAX_CHECKED_WEIGHTS = 1 << 18
# Token counts for extrapolating memory: small, but too large for the separate implementations of short sequences.
PROBE_TOKENS = (2048, 4096)


@dataclass(frozen=True)
class Size:
    """The size of an attention problem."""

    batch: int
    heads: int
    tokens: int
    head_dim: int


@dataclass(frozen=True)
class Cost:
    """The cost of a timed call.

    `median`, quartiles `low` and `high`, `mean` and `deviation` are milliseconds. `memory` is the peak of tensor
    storage in bytes. Values per token are totals / number of tokens in the batch. `gemm_share` is the achieved share
    of the matrix-product limit. `path` names the implementation. `rounds` are the milliseconds of each round.
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
    rounds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Scaling:
    """How the cost of a token changes between the token counts `first` and `last`.

    `time` is the largest time per token divided by the smallest, with its spread. `memory` is the largest memory per
    token after `first` divided by that at `first`: above 1 if memory grows faster than the tokens, below 1 if a part of
    the memory is constant.
    """

    name: str
    what: str
    first: int
    last: int
    time: Ratio
    memory: float


def mixer_costs(specs: Iterable[str], sizes: Sequence[Size], *, repeats: int = 11) -> list[Cost]:
    """The cost of forward and of forward+backward for each mixer and size. Checks each mixer with `check_weights`."""
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
            check_weights(spec, mixer, *inputs[:3])
            for what, call in attention_calls(mixer, inputs).items():
                calls[spec, what, size.tokens] = call
            paths[spec, TRAINING, size.tokens] = mixer.explain(*inputs[:3])
            forward_flops = measure.flops(mixer, *inputs[:3])[""]
            flops[spec, FORWARD, size.tokens] = forward_flops
            flops[spec, TRAINING, size.tokens] = 3 * forward_flops
            with torch.no_grad():
                paths[spec, FORWARD, size.tokens] = mixer.explain(*inputs[:3])
    batches = {size.tokens: size.batch for size in sizes}
    times, limit = interleave_with_gemm(calls, repeats, pairs_with_first(calls))
    shares = {key: 1e3 * flops[key] / times[key].median / limit for key in calls}
    return [
        replace(cost(key, times[key], call, batches[key[2]], shares[key]), path=paths[key])
        for key, call in calls.items()
    ]


def cost(key: Key, times: Stats, call: Callable[[], Any], batch: int, gemm_share: float | None = None) -> Cost:
    """The cost of a timed call. One more call measures its memory."""
    memory, tokens = peak_bytes(call), batch * key[2]
    milliseconds = (times.median, times.low, times.high, times.mean, times.deviation)
    return Cost(
        *key,
        *milliseconds,
        microseconds_per_token=1e3 * times.median / tokens,
        memory=memory,
        bytes_per_token=memory / tokens,
        gemm_share=gemm_share,
        rounds=times.values,
    )


def pairs_with_first(keys: Iterable[Key]) -> list[tuple[Key, Key]]:
    """Each key, paired with the first key of the same timed call and tokens; the first key itself is left out."""
    first: dict[tuple[str, int], Key] = {}
    return [(key, base) for key in keys if (base := first.setdefault(key[1:], key)) != key]


def ratios_to_first(costs: Sequence[Cost]) -> list[Ratio | None]:
    """The time of each cost relative to the first cost of the same timed call and tokens, None for this first cost.
    Above 1 it is slower.
    """
    rounds = {(each.name, each.what, each.tokens): each.rounds for each in costs}
    first = dict(pairs_with_first(rounds))
    return [ratio(rounds[key], rounds[first[key]]) if key in first else None for key in rounds]


def cost_rows(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """The costs as rows of a CSV file: with the number of rounds, and the ratio to the first cost with its spread."""
    return [
        {**asdict(each), "rounds": len(each.rounds), **({} if found is None else found.fields())}
        for each, found in zip(costs, ratios_to_first(costs), strict=True)
    ]


def scalings(costs: Iterable[Cost]) -> list[Scaling]:
    """The scaling of time and memory for each mixer or model that was measured at several token counts."""
    groups: dict[tuple[str, str], list[Cost]] = {}
    for each in costs:
        groups.setdefault((each.name, each.what), []).append(each)
    found = []
    for (name, what), group in groups.items():
        if len(group) > 1:
            group.sort(key=lambda each: each.tokens)
            slowest, fastest = (extreme(group, key=lambda each: each.microseconds_per_token) for extreme in (max, min))
            memory = [each.bytes_per_token for each in group]
            growth = max(memory[1:]) / memory[0] if memory[0] else 1.0
            found.append(Scaling(name, what, group[0].tokens, group[-1].tokens, _per_token(slowest, fastest), growth))
    return found


def _per_token(slowest: Cost, fastest: Cost) -> Ratio:
    """The ratio of times per token, in the same rounds."""
    scale = slowest.microseconds_per_token / slowest.median / (fastest.microseconds_per_token / fastest.median)
    return ratio([scale * value for value in slowest.rounds], fastest.rounds)


def build(spec: str, size: Size) -> Mixer:
    """The mixer of a spec for this size."""
    return build_mixer(spec, heads=size.heads, head_dim=size.head_dim, tokens=size.tokens, seed=0)


def make_inputs(size: Size, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random q, k, v and output gradient (B,H,N,D), as views of (B,N,H,D): the layout of a packed projection."""
    shape = (size.batch, size.tokens, size.heads, size.head_dim)
    q, k, v = (torch.randn(shape, device=device).transpose(1, 2).requires_grad_() for _ in range(3))
    return q, k, v, torch.randn(shape, device=device).transpose(1, 2)


def attention_calls(
    attention: AttentionFn, inputs: tuple[Tensor, Tensor, Tensor, Tensor]
) -> dict[str, Callable[[], Any]]:
    """The timed calls of an attention: forward without gradients, and forward with backward."""
    return {
        FORWARD: partial(run_forward, attention, *inputs[:3]),
        TRAINING: partial(_run_forward_backward, attention, *inputs),
    }


def check_memory(spec: str, size: Size) -> None:
    """Raises an error if the size does not fit, before anything large is allocated. Extrapolates from few tokens."""
    small, large = PROBE_TOKENS if size.tokens > PROBE_TOKENS[-1] else (-(-size.tokens // 2), size.tokens)

    def image_bytes(tokens: int) -> tuple[float, int]:
        """Bytes to train one image, and to check one."""
        # Use two images: with one, a mixer need not copy the tensors that it expands over the batch.
        probe = replace(size, batch=min(size.batch, 2), tokens=tokens)
        inputs, mixer = make_inputs(probe), build(spec, probe)
        training = 4 * inputs[0].nbytes + peak_bytes(attention_calls(mixer, inputs)[TRAINING])
        checking = peak_bytes(partial(check_weights, spec, mixer, *(x[:1] for x in inputs[:3])))
        return training / probe.batch, checking

    training, checking = (
        fit_quadratic(small, at_small, large, at_large)
        for at_small, at_large in zip(image_bytes(small), image_bytes(large), strict=True)
    )
    # The whole batch is trained at once; explicit weights are computed for one image.
    check_fits("tokens", size.tokens, lambda tokens: max(size.batch * training(tokens), checking(tokens)))


def check_weights(spec: str, mixer: Mixer, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises an error unless weights @ v == forward up to rounding.

    Compares the first image only, and few enough queries that their weights are small. The forward runs on the whole
    batch, with and without gradients, as in the timed calls: a smaller batch may use another implementation.
    """
    queries = q[:1, :, : max(1, MAX_CHECKED_WEIGHTS // k.shape[-2])]
    with torch.no_grad():
        exact = mixer.weights(queries, k[:1]) @ v[:1]
    for grad_mode in (torch.no_grad, torch.enable_grad):
        with grad_mode():
            error = (mixer(q, k, v)[:1, :, : queries.shape[-2]] - exact).abs().max().item()
        if not error < 1e-4:
            raise FavoritError(f"{spec} differs from its explicit weights by {error:.1e}: no speed is reported for it")


def run_forward(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """One call without gradients."""
    with torch.no_grad():
        function(*inputs)
    _synchronize(inputs[0])


def _run_forward_backward(attention: AttentionFn, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> None:
    torch.autograd.grad(attention(q, k, v), (q, k, v), grad, allow_unused=True)
    _synchronize(q)


def _synchronize(x: Tensor) -> None:
    """Waits until the device of x has finished. CPU operations are synchronous."""
    if x.device.type != "cpu":
        torch.accelerator.synchronize()
