"""The loss of a tiny model over 20 steps, and the file that keeps it.

After a change that is meant to move it, run `python tests/golden/regenerate.py` and say why in the commit.
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
    """One softmax, one random-feature, one random ReLU and one learned layer; AdamW on one fixed batch of noise."""
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
    source = torch.Generator().manual_seed(0)
    images, labels = torch.randn(32, 3, 8, 8, generator=source), torch.randint(10, (32,), generator=source)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    found = []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps([round(loss, 6) for loss in losses()], indent=1) + "\n")
    print(f"wrote {FILE}")
