"""Large buffers are reused in a process that asked for it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import ctypes, resource
from favorit.cli.allocator import keep_large_buffers
kept = keep_large_buffers() if {wanted} else None
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def touch():
    buffer = libc.malloc(1 << 26)
    libc.memset(buffer, 1, 1 << 26)
    libc.free(buffer)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(wanted: bool) -> tuple[str, int]:
    run = subprocess.run([sys.executable, "-c", SCRIPT.format(wanted=wanted)], capture_output=True, text=True, check=True)
    kept, count = run.stdout.split()
    return kept, int(count)


def test_pages_of_large_buffers_are_not_faulted_in_again() -> None:
    kept, with_it = faults(True)
    _, without = faults(False)
    if kept == "True":  # glibc
        assert with_it < 100 < without
    else:
        assert with_it == without
