"""Golden losses: the losses of a tiny model in 20 training steps, recorded in a file.

After a change that is meant to alter them, run `python -m favorit.selftest.golden` and give the reason in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.nn import functional as F

from favorit.model import create_model
from favorit.selftest.devices import CPU, Device
from favorit.selftest.inputs import TooFarError

FILE = Path(__file__).with_name("tiny_losses.json")
STEPS = 20


def losses(device: Device = CPU) -> list[float]:
    """The losses of a model with softmax, favor, relu and learned layers. AdamW trains on one fixed noise batch."""
    model = create_model(
        "vit-64",
        seed=0,
        image_size=8,
        stem="patch(2)",
        dim=16,
        heads=2,
        mlp_dim=32,
        layout="softmax|favor(m=16)|relu(m=16)|learned",
        position="learned+rope2d",
    ).to(device.type)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(32, 3, 8, 8, generator=generator).to(device.type)
    labels = torch.randint(10, (32,), generator=generator).to(device.type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    measured = []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        measured.append(loss.item())
    return measured


def recorded_losses() -> list[float]:
    """The recorded losses."""
    return json.loads(FILE.read_text())


def losses_are_golden(device: Device = CPU) -> None:
    """Each loss equals the recorded loss within the relative tolerance of the device."""
    worst = max(abs(loss / golden - 1) for loss, golden in zip(losses(device), recorded_losses(), strict=True))
    if not worst <= device.golden:
        raise TooFarError(worst, device.golden, "of a golden loss")


if __name__ == "__main__":
    FILE.write_text(json.dumps([round(loss, 6) for loss in losses()], indent=1) + "\n")
    print(f"wrote {FILE}")
