"""Work cut into blocks that stay in cache: each block on one thread, as many at once as torch has threads.

Torch splits every operation between its threads and waits for all of them at its end; on operations of a tenth of a millisecond the
second thread is then worth a sixth of its time (LOG.md). Blocks that need nothing from each other wait once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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


def over_blocks(
    work: Callable[[Block, Room], Result], blocks: Sequence[Block], device: torch.device, room: Callable[[], Room]
) -> list[Result]:
    """[work(block, room()) for block in blocks], without gradients; on a CPU, blocks at once. `room` makes the memory that a thread reuses.

    Which thread takes which block changes no number as long as blocks write to different places.
    """
    threads = min(torch.get_num_threads(), len(blocks))
    todo = deque(enumerate(blocks))
    done: dict[int, Result] = {}
    inference = torch.is_inference_mode_enabled()

    def take() -> None:
        with torch.inference_mode(inference), torch.no_grad():
            own = room()
            while todo:
                try:
                    index, block = todo.popleft()
                except IndexError:  # another thread took the last one
                    return
                done[index] = work(block, own)

    # A mode that watches operations (counting FLOPs or memory) sees those of its own thread only.
    if threads == 1 or device.type != "cpu" or _get_current_dispatch_mode() is not None:
        take()
    else:
        for future in [_pool(threads, os.getpid()).submit(take) for _ in range(threads)]:
            future.result()
    return [done[index] for index in range(len(blocks))]


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
