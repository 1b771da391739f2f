"""One random generator for each named stream, so that parts of a run do not affect each other.

    state = first 63 bits of sha256("seed/name/name/...")

A stream depends only on its seed and names, not on the device, the rank or earlier draws. Two processes therefore draw
the same numbers without communication, and so does a resumed run.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from favorit.errors import FavoritError


def derive(seed: int, *names: str | int) -> int:
    """A seed in [0, 2^63) for the stream `names` under `seed`."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """The CPU generator of a stream."""
    return torch.Generator().manual_seed(derive(seed, *names))


def fresh() -> int:
    """A seed for callers that were given none, drawn from torch's global generator: `torch.manual_seed` controls it."""
    return int(torch.randint(2**62, (), device="cpu").item())


def chosen(seed: int | None) -> int:
    """The given seed, or a fresh one for None. Raises an error unless it is an integer of at least 0."""
    if seed is None:
        return fresh()
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or seed < 0:
        raise FavoritError(f"seed={seed!r} is not valid: an integer of at least 0, or None for a random one")
    return operator.index(seed)


@contextmanager
def global_stream(seed: int, *names: str | int) -> Iterator[None]:
    """Replaces torch's global CPU generator by the named stream inside the block, and restores it after."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, *names))
        yield
