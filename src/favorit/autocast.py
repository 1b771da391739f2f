"""Autocast on the device of a tensor. Some devices (`meta`) have no autocast, and torch raises an error for them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor


def is_autocast_enabled(x: Tensor) -> bool:
    """True if autocast is on for the device of x."""
    device = "cpu" if x.is_cpu else x.device.type
    return (x.is_cpu or torch.amp.is_autocast_available(device)) and torch.is_autocast_enabled(device)


def without_autocast(x: Tensor) -> Any:
    """A context with autocast off for the device of x."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
