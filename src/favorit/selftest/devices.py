"""The devices that `favorit selftest` supports, and the tolerances of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from favorit.errors import FavoritError, unknown
from favorit.selftest.inputs import Build, assert_close, tensors

HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Device:
    """A device on which the checks run.

    `slack` multiplies the tolerances of the checks, because other devices sum in another order. `golden` is the
    relative tolerance of the golden losses. `half` lists the half-precision dtypes of autocast, and `precisions` those
    of training runs.
    """

    type: str = "cpu"
    slack: float = 1.0
    golden: float = 1e-3
    has_fp64: bool = True
    half: tuple[torch.dtype, ...] = HALF
    precisions: tuple[str, ...] = ("32", "bf16")

    @property
    def tolerances(self) -> dict[torch.dtype, float]:
        """The tolerance between two implementations of the same formula, for each precision of the device."""
        return {**({torch.float64: 1e-11} if self.has_fp64 else {}), torch.float32: 2e-5}

    @property
    def widest(self) -> torch.dtype:
        """The highest precision."""
        return torch.float64 if self.has_fp64 else torch.float32

    def tensors(
        self, n: int, d: int, n_keys: int | None = None, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Standard normal q, k, v that require gradients. Their values are the same on all devices."""
        return tensors(n, d, n_keys=n_keys, dtype=dtype, device=self.type)

    def assert_close(self, actual: Tensor, expected: Tensor, tolerance: float) -> None:
        """`assert_close` with the tolerance of this device."""
        assert_close(actual, expected, self.slack * tolerance)

    def moved(self, build: Build) -> Build:
        """A builder for the same mixers on this device."""
        return lambda **shape: build(**shape).to(self.type)


CPU = Device()


def _cuda() -> Device | None:
    if not torch.cuda.is_available():
        return None
    if torch.cuda.is_bf16_supported():
        return Device("cuda", slack=10, golden=1e-2, precisions=("32", "bf16", "fp16"))
    return Device("cuda", slack=10, golden=1e-2, half=(torch.float16,), precisions=("32", "fp16"))


def _mps() -> Device | None:
    if not torch.backends.mps.is_available():
        return None
    if torch.backends.mps.is_macos_or_newer(14, 0):  # older systems have no bf16
        return Device("mps", slack=10, golden=1e-2, has_fp64=False, precisions=("32", "bf16", "fp16"))
    half = (torch.float16,)
    return Device("mps", slack=10, golden=1e-2, has_fp64=False, half=half, precisions=("32", "fp16"))


# Each function returns None if this computer or this build of torch does not have the device.
DEVICES: dict[str, Callable[[], Device | None]] = {"cpu": lambda: CPU, "cuda": _cuda, "mps": _mps}


def find_device(name: str) -> Device:
    """The device of this name. Raises a one-line error if it is not available."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    device = DEVICES[name]()
    if device is None:
        present = ", ".join(known for known, find in DEVICES.items() if find() is not None)
        raise FavoritError(f"device {name} is not available to torch {torch.__version__} here; available: {present}")
    return device
