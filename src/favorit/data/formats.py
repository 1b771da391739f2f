"""Readers of the published file formats, from bytes. Errors are one line and name the file.

idx      0 0 8 d | d big-endian uint32 sizes | uint8 values       MNIST and Fashion-MNIST, gzipped or not
CIFAR    (label bytes | 3072 pixel bytes, channel by channel)*    binary version; CIFAR-100 has a coarse, then a
                                                                  fine label
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence

import numpy as np
import torch

from favorit.data.images import Images, check_labels
from favorit.errors import FavoritError

GZIP_MAGIC = b"\x1f\x8b"
CIFAR_SHAPE = (3, 32, 32)


def gunzip(content: bytes, where: str) -> bytes:
    """The content, unpacked if it is gzipped."""
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise FavoritError(
            f"{where}: cannot unpack ({error}): the file is truncated or damaged, fetch it again"
        ) from None


def read_idx(content: bytes, where: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The uint8 array of an idx file."""
    if len(content) < 4 or content[:3] != b"\0\0\x08" or content[3] == 0:
        raise FavoritError(f"{where}: not an idx file of uint8 (it starts with {content[:4].hex() or 'nothing'})")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise FavoritError(f"{where}: truncated in its header ({len(content)} bytes)")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", content[3], 4))
    if len(content) - start != math.prod(shape):
        raise FavoritError(
            f"{where}: {len(content) - start} bytes, but {shape} needs {math.prod(shape)}: "
            "truncated or damaged, fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def idx_images(images: bytes, labels: bytes, classes: int, where: str) -> Images:
    """A pair of idx files, (N, H, W) pixels and (N,) labels, as Images with one channel."""
    pixels = read_idx(gunzip(images, where), where)
    targets = read_idx(gunzip(labels, where), f"{where} (labels)")
    if pixels.ndim != 3 or targets.ndim != 1 or len(pixels) != len(targets):
        raise FavoritError(f"{where}: shapes of pixels {pixels.shape} and labels {targets.shape} do not match")
    result = Images(torch.from_numpy(pixels[:, None].copy()), torch.from_numpy(targets.astype(np.int64)))
    check_labels(result.labels, classes, where)
    return result


def cifar_images(files: Sequence[bytes], classes: int, where: str, label_bytes: int = 1) -> Images:
    """The images of several CIFAR binary files in order; the label is the last of `label_bytes`."""
    record = label_bytes + math.prod(CIFAR_SHAPE)
    for content in files:
        if not content or len(content) % record:
            raise FavoritError(
                f"{where}: {len(content)} bytes are not whole records of {record}: truncated or damaged, fetch it again"
            )
    counts = [len(content) // record for content in files]
    pixels, labels = np.empty((sum(counts), *CIFAR_SHAPE), np.uint8), np.empty(sum(counts), np.int64)
    for end, count, content in zip(np.cumsum(counts), counts, files, strict=True):
        records = np.frombuffer(content, np.uint8).reshape(count, record)
        labels[end - count : end] = records[:, label_bytes - 1]
        pixels[end - count : end] = records[:, label_bytes:].reshape(count, *CIFAR_SHAPE)
    result = Images(torch.from_numpy(pixels), torch.from_numpy(labels))
    check_labels(result.labels, classes, where)
    return result
