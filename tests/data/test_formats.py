from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch

from favorit.data.formats import cifar_images, gunzip, idx_images, read_idx
from favorit.errors import FavoritError


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def some_pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_idx_files_are_read_plain_or_gzipped() -> None:
    pixels, labels = some_pixels(5, 4, 3), np.arange(5)
    for pack in (bytes, gzip.compress):
        images = idx_images(pack(idx(pixels)), pack(idx(labels)), 5, "x")
        assert images.images.shape == (5, 1, 4, 3)
        assert np.array_equal(images.images[:, 0].numpy(), pixels)
        assert images.labels.tolist() == [0, 1, 2, 3, 4]
        assert images.images.is_contiguous()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"PNG, perhaps", "not an idx file"),
        (b"\0\0\x0d\x01\0\0\0\1abcd", "not an idx file"),
        (idx(np.zeros((3, 2, 2)))[:9], "truncated in its header"),
        (idx(np.zeros((3, 2, 2)))[:-1], "11 bytes, but .3, 2, 2. needs 12"),
        (idx(np.zeros((3, 2, 2))) + b"x", "13 bytes, but"),
    ],
)
def test_damaged_idx_file_is_named(content: bytes, message: str) -> None:
    with pytest.raises(FavoritError, match=f"^some/file: .*{message}"):
        read_idx(content, "some/file")


def test_damaged_gzip_is_named() -> None:
    whole = gzip.compress(some_pixels(1000).tobytes())
    broken = whole[:200] + bytes(50) + whole[250:]
    for content in (whole[:-20], whole[:30], broken):
        with pytest.raises(FavoritError, match=r"^some/file: cannot unpack"):
            gunzip(content, "some/file")


def test_mismatched_images_and_labels_are_rejected() -> None:
    pixels = idx(some_pixels(5, 4, 3))
    with pytest.raises(FavoritError, match="do not match"):
        idx_images(pixels, idx(np.arange(4)), 5, "x")
    with pytest.raises(FavoritError, match="do not match"):
        idx_images(idx(np.arange(5)), idx(np.arange(5)), 5, "x")
    with pytest.raises(FavoritError, match=r"x: image 4 has the label 4, outside 0\.\.3"):
        idx_images(pixels, idx(np.arange(5)), 4, "x")


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_records_are_read_in_order(label_bytes: int) -> None:
    pixels, fine = some_pixels(7, 3, 32, 32), np.arange(7, dtype=np.uint8)
    labels = np.stack([np.full(7, 99, np.uint8), fine], 1)[:, 2 - label_bytes :]
    records = np.concatenate([labels, pixels.reshape(7, -1)], 1)
    images = cifar_images([records[:4].tobytes(), records[4:].tobytes()], 7, "x", label_bytes)
    assert torch.equal(images.images, torch.from_numpy(pixels))
    assert images.labels.tolist() == fine.tolist()


def test_damaged_cifar_file_is_named() -> None:
    record = bytes(3073)
    for content in (b"", record[:-1], record * 2 + b"x"):
        with pytest.raises(FavoritError, match=r"^cifar: .* not whole records of 3073"):
            cifar_images([record, content], 10, "cifar")
    with pytest.raises(FavoritError, match="image 1 has the label 10, outside"):
        cifar_images([record, b"\x0a" + bytes(3072)], 10, "cifar")
