from __future__ import annotations

from pathlib import Path

import pytest
import torch

from published_data import unpacked


@pytest.fixture(autouse=True)
def _no_data_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's data directory."""
    monkeypatch.setenv("FAVORIT_DATA", str(tmp_path / "data"))


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with MNIST, CIFAR-10 and CIFAR-100 (sorted by class)."""
    return unpacked(tmp_path_factory.mktemp("real"))


@pytest.fixture
def pixels() -> torch.Tensor:
    """Images whose pixels are all different within a channel, so that every displacement shows; no pixel is black."""
    generator = torch.Generator().manual_seed(0)
    flat = torch.stack([torch.randperm(255, generator=generator)[: 15 * 17] + 1 for _ in range(12 * 3)])
    return flat.to(torch.uint8).view(12, 3, 15, 17)
