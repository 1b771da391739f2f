"""A short training run on the device, in each of its precisions."""

from __future__ import annotations

import tempfile

from favorit.selftest.devices import CPU, Device
from favorit.selftest.inputs import TooFarError
from favorit.training import train
from favorit.training.events import Event, Step

# Two steps, so that the loss of the second step depends on the update of the first. The model has every position and
# four mixers. Training redraws random features, clips gradients and averages the weights.
CONFIG = {
    "model": dict(
        image_size=8,
        stem="patch(4)",
        dim=16,
        heads=2,
        mlp_dim=16,
        layout="softmax|favor(m=8)|relu(m=8)|linformer(k=4)",
        position="learned+sincos2d+rope2d+irpe_gate+string_gate",
    ),
    "data": dict(name="synthetic(size=8, classes=3, train=32, test=16)", validation=0),
    "train": dict(epochs=1, batch_size=16, lr=0.01, clip=1.0, ema=0.9, redraw=1, select="last", monitor="loss"),
}
# The largest relative difference from the losses in fp32 on the CPU.
HALF_TOLERANCE = 0.05


def step_losses(precision: str, device: Device) -> list[float]:
    """The mean loss up to each step of a run on this device."""
    losses: list[float] = []

    def listen(event: Event, config: object) -> None:
        if isinstance(event, Step):
            losses.append(event.loss)

    config = {**CONFIG, "train": {**CONFIG["train"], "precision": precision}}
    with tempfile.TemporaryDirectory() as folder:
        train(config, out=folder, accelerator=device.type, listen=listen, progress=False)
    return losses


def trains_as_in_fp32(precision: str, device: Device = CPU) -> None:
    """A run in this precision on this device has the losses of fp32 on the CPU up to a tolerance."""
    tolerance = device.golden if precision == "32" else HALF_TOLERANCE
    expected = step_losses("32", CPU)
    found = step_losses(precision, device)
    worst = max(abs(loss / right - 1) for loss, right in zip(found, expected, strict=True))
    if not worst <= tolerance:
        raise TooFarError(worst, tolerance, "of the loss in fp32 on the CPU")
