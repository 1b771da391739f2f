"""Work cut into blocks that stay in cache: each block on one thread, as many at once as torch has threads.

Torch splits every operation between its threads and waits for all of them at its end; on operations of a tenth of a millisecond the
second thread is then worth a sixth of its time (LOG.md). Blocks that need nothing from each other wait once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

Block = TypeVar("Block")
Room = TypeVar("Room")
Result = TypeVar("Result")


def slices(length: int, size: int) -> list[slice]:
    """0..length in pieces of `size`, the last one shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def even(length: int, most: int, threads: int) -> int:
    """The size of pieces of 0..length, at most `most`: as many pieces for each thread, as even as can be."""
    rounds = -(-length // (max(most, 1) * threads))
    return -(-length // (rounds * threads))


def over_blocks(
    work: Callable[[Block, Room], Result], blocks: Sequence[Block], device: torch.device, room: Callable[[], Room]
) -> list[Result]:
    """[work(block, room()) for block in blocks], without gradients; on a CPU, blocks at once. `room` makes the memory that a thread reuses.

    Which thread takes which block changes no number as long as blocks write to different places.
    """
    threads = min(torch.get_num_threads(), len(blocks))
    todo = deque(enumerate(blocks))
    done: dict[int, Result] = {}

    def take() -> None:
        with torch.no_grad():
            own = room()
            while todo:
                try:
                    index, block = todo.popleft()
                except IndexError:  # another thread took the last one
                    return
                done[index] = work(block, own)

    if threads == 1 or device.type != "cpu" or is_watched():
        take()
    else:
        at_once([take] * threads)
    return [done[index] for index in range(len(blocks))]


def is_watched() -> bool:
    """Whether a mode follows the operations (counting FLOPs or memory): it sees those of its own thread only."""
    return _get_current_dispatch_mode() is not None


def at_once(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """[call() for call in calls], each on a thread that computes alone, under the modes of this one (gradients, inference, autocast)."""
    inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def under_modes(call: Callable[[], Result]) -> Result:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad), torch.autocast("cpu", dtype, enabled=autocast):
            return call()

    futures = [_pool(len(calls), os.getpid()).submit(under_modes, call) for call in calls]
    wait(futures)  # also where one fails: what the others still write to must not be reused
    return [future.result() for future in futures]


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that compute alone. A forked child has its parent's pool without its threads: pools belong to a process."""
    wanted = torch.get_num_threads()
    ready = Barrier(threads + 1)

    def alone() -> None:
        torch.get_num_threads()  # a new thread takes over the process's number at its first look, so the first look comes first
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(threads, "favorit-block", initializer=alone)
    for _ in range(threads):
        pool.submit(bool)
    ready.wait()
    torch.set_num_threads(wanted)  # the last call is what threads born later start with
    return pool
