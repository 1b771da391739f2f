"""`python ddp_script.py CONFIG.json OUT DEVICES`: trains, and writes the gradients of the first step to
OUT/first.safetensors.

Fabric starts the same command again for the other processes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

import favorit
from favorit.training.engine import Training


def main(config: str, out: str, devices: str) -> None:
    step = Training._step

    def save_gradients(self: Training, batch: Any) -> None:
        step(self, batch)
        if self.progress.step == 0 and self.fabric.is_global_zero:
            save_file(
                {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None},
                Path(out) / "first.safetensors",
            )

    Training._step = save_gradients  # type: ignore[method-assign]
    favorit.train(json.loads(Path(config).read_text()), out=out, accelerator="cpu", devices=int(devices))


if __name__ == "__main__":
    main(*sys.argv[1:])
