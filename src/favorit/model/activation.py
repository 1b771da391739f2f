"""Activations by name, for stems and feed-forward networks."""

from __future__ import annotations

from typing import Literal

from torch import nn

Activation = Literal["gelu", "relu", "elu", "silu"]

ACTIVATIONS: dict[Activation, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}


def activation(name: Activation) -> nn.Module:
    """A new module for the named activation."""
    return ACTIVATIONS[name]()
