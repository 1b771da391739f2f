"""One random generator for each named stream, so that no part of a run disturbs another.

    state = first 63 bits of sha256("seed/name/name/...")

A stream depends on nothing but its seed and names: not on the device, the rank or what ran before. Two processes, or a
run and its resumption, therefore agree without talking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *names: str | int) -> int:
    """A seed in [0, 2^63) for the stream `names` under `seed`."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator for one stream."""
    return torch.Generator().manual_seed(derive(seed, *names))


def fresh() -> int:
    """A seed drawn from torch's global generator, so that `torch.manual_seed` governs whoever gives no seed."""
    return int(torch.randint(2**62, (), device="cpu").item())


@contextmanager
def global_stream(seed: int, *names: str | int) -> Iterator[None]:
    """Code that draws from torch's global CPU generator draws from the named stream inside, and leaves no trace
    outside.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, *names))
        yield
