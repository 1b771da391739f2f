"""`python ddp_script.py CONFIG.json OUT DEVICES`: trains, and keeps the checkpoint of the first step in OUT/first. Fabric starts it anew for
the other processes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import favorit
from favorit.training import Checkpoint, Event


def main(config: str, out: str, devices: str) -> None:
    def listen(event: Event, _: Any) -> None:
        if isinstance(event, Checkpoint) and event.step == 1:
            (checkpoint,) = Path(out).glob("*/checkpoint-1")
            shutil.copytree(checkpoint, Path(out) / "first")

    favorit.train(
        json.loads(Path(config).read_text()), out=out, accelerator="cpu", devices=int(devices), checkpoint_seconds=0, listen=listen
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
