"""The C library's allocator, told to keep large buffers: glibc gives each one back and faults its pages in again at every step."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 1 << 30


def keep_large_buffers() -> bool:
    """Raises glibc's thresholds for this process; False where the C library is another. Commands call it, `import favorit` never does."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST))
