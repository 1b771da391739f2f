"""Golden losses: the loss of a tiny model over 20 training steps, recorded in a file.

After an intended change of these losses, run `python tests/golden/regenerate.py` and give the reason in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.nn import functional as F

import favorit

FILE = Path(__file__).with_name("tiny_losses.json")
STEPS = 20


def losses() -> list[float]:
    """The losses of a model with softmax, favor, relu and learned layers; AdamW on one fixed batch of noise."""
    model = favorit.create_model(
        "vit-64",
        seed=0,
        image_size=8,
        stem="patch(2)",
        dim=16,
        heads=2,
        mlp_dim=32,
        layout="softmax|favor(m=16)|relu(m=16)|learned",
        position="learned+rope2d",
    )
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(32, 3, 8, 8, generator=generator), torch.randint(10, (32,), generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    found = []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps([round(loss, 6) for loss in losses()], indent=1) + "\n")
    print(f"wrote {FILE}")
