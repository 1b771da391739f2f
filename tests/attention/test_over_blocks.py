"""Work in blocks on several threads gives what it gives on one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from checks import assert_close, builder, gradients, tensors
from favorit.attention import softmax, streamed
from favorit.attention.blocks import even, over_blocks, slices
from favorit.measure import flops

CPU = torch.device("cpu")


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_blocks(three_threads: None) -> None:
    rooms: list[object] = []
    found = over_blocks(
        lambda block, room: (block, room, threading.current_thread()), range(40), CPU, lambda: rooms.append(object()) or len(rooms)
    )
    assert [block for block, _, _ in found] == list(range(40))
    assert len(rooms) == 3
    assert threading.main_thread() not in {thread for _, _, thread in found}


def test_each_thread_computes_alone_and_without_gradients(three_threads: None) -> None:
    x = torch.ones(3, requires_grad=True)
    found = over_blocks(lambda block, room: (torch.get_num_threads(), (x * 2).requires_grad), range(9), CPU, lambda: None)
    assert set(found) == {(1, False)}
    assert torch.get_num_threads() == 3


def test_an_error_reaches_the_caller(three_threads: None) -> None:
    with pytest.raises(ZeroDivisionError):
        over_blocks(lambda block, room: 1 // block, [1, 0, 2], CPU, lambda: None)


def test_inference_mode_reaches_the_threads(three_threads: None) -> None:
    with torch.inference_mode():
        out = torch.zeros(6)
        over_blocks(lambda block, room: out[block].add_(1), slices(6, 2), CPU, lambda: None)
    assert out.tolist() == [1.0] * 6


def test_a_forked_process_has_threads_of_its_own(three_threads: None) -> None:
    over_blocks(lambda block, room: None, range(3), CPU, lambda: None)
    child = os.fork()
    if child == 0:
        os._exit(0 if over_blocks(lambda block, room: block, range(3), CPU, lambda: None) == [0, 1, 2] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("spec", ["softmax", "relu(m=24)", "favor(m=24)", "learned(m=5)", "relu(m=8, learned=True)"])
def test_threads_change_no_bit(spec: str, three_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks of the same size, values and all gradients are the same on one thread as on three."""
    monkeypatch.setattr(streamed, "FEW_NUMBERS", 0)
    monkeypatch.setattr(streamed, "block_sizes", lambda *sizes: (1, 1, 64))
    monkeypatch.setattr(softmax, "_images", lambda q, k: 1)
    mixer = builder(spec)(head_dim=6, tokens=70)
    q, k, v = tensors(70, 6)
    wanted = (q, k, v, *mixer.parameters())
    found = []
    for threads in (3, 1):
        torch.set_num_threads(threads)
        out = mixer(q, k, v)
        found.append([out, *gradients(out, *wanted)])
    assert all(torch.equal(mine, alone) for mine, alone in zip(*found, strict=True))


def test_what_counts_operations_sees_those_of_all_blocks(three_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of blocks is done in the caller's thread while a mode watches it."""
    monkeypatch.setattr(streamed, "FEW_NUMBERS", 0)
    mixer = builder("relu(m=24)")(head_dim=6, tokens=70)
    counted = flops(mixer, *tensors(70, 6))[""]
    torch.set_num_threads(1)
    assert counted == flops(mixer, *tensors(70, 6))[""] > 0


@given(length=st.integers(1, 400), most=st.integers(0, 300), threads=st.integers(1, 8))
def test_even_pieces_fit_and_leave_no_thread_without(length: int, most: int, threads: int) -> None:
    size = even(length, most, threads)
    pieces = slices(length, size)
    assert 1 <= size <= max(most, 1)
    assert len(pieces) >= min(threads, length) / 2


@pytest.mark.parametrize("spec", ["relu(m=16)", "relu", "favor(m=16)", "learned(m=5)"])
def test_blocks_of_one_image_take_views_of_a_packed_projection(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where q, k and v are views of one product, as in the layer, a block of one image is no copy and not contiguous."""
    monkeypatch.setattr(streamed, "FEW_NUMBERS", 0)
    monkeypatch.setattr(streamed, "BLOCK_NUMBERS", 1)
    mixer = builder(spec)(head_dim=8, tokens=70)
    packed = torch.randn(3, 70, 3, 2, 8, requires_grad=True)
    q, k, v = (part.transpose(1, 2) for part in packed.unbind(2))
    (ours,) = gradients(mixer(q, k, v), packed)
    (twin,) = gradients(mixer.weights(q, k) @ v, packed)
    assert_close(ours, twin, 1e-5)
