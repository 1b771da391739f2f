"""Built-in search spaces: those of the report on kernels behind a convolutional backbone, and a quick one.

In the spaces of the report, a trial trains 10 epochs on the first of five stratified folds (40,000 training and 10,000
validation images). The report leaves some settings open; they are set as follows unless a space says otherwise. Adam
halves its learning rate every 5 epochs and SGD uses the cosine schedule, as section 5.2.2 pairs them. Weight decay is
0, or PyTorch's 0.01 for AdamW. Momentum is 0.9. Precision is fp32; the report's mixed precision is for GPUs (--set
train.precision=fp16).

The report tuned its ViT and its EXP on test images; here trials are compared on validation images. Some combinations of
the report cannot be built (12 heads do not divide 512 or 1024): such a trial fails. Spaces that the report does not
state are marked "Inferred".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from favorit.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from favorit.errors import FavoritError, unknown
from favorit.files import read_yaml
from favorit.model.presets import preset
from favorit.tuning.space import Space

_DATA = DataConfig(name="cifar10", augment="crop(4)|flip", folds=5, fold=0)
_EARLY: dict[str, Any] = dict(monitor="loss", patience=10)
_CYCLE: dict[str, Any] = dict(optimizer="adam", schedule="one_cycle", warmup=5.0, clip=1.0)
_OPTIMIZER = "train.optimizer, train.schedule"
_ADAM_OR_SGD = "choice(('adam', 'step'), ('sgd', 'cosine'))"
_DROPOUT = "model.dropout, model.stem.dropout"  # dropout of the blocks, and of the layer that computes the single token


def _base(model: str, **train: Any) -> RunConfig:
    return RunConfig(model=preset(model), data=_DATA, train=TrainConfig(epochs=10, weight_decay=0.0, **train))


_ALL = [
    # Section 4.1.2: a grid of 256 points.
    Space(
        "kernels-vit",
        {
            "train.lr": "choice(1e-3, 5e-4)",
            _OPTIMIZER: _ADAM_OR_SGD,
            "model.dropout": "choice(0.1, 0.3)",
            "model.depth": "choice(6, 8)",
            "model.heads": "choice(4, 8)",
            "model.stem": "choice('patch(4)', 'patch(8)')",
            "model.dim": "choice(128, 256)",
            "model.mlp_dim": "choice(512, 1024)",
        },
        _base("kernel-vit"),
        "grid",
    ),
    # Section 5.3.
    Space(
        "kernels-relu",
        {
            "train.lr": "log(1e-5, 1e-2)",
            "train.batch_size": "choice(64, 128, 256)",
            _OPTIMIZER: _ADAM_OR_SGD,
            _DROPOUT: "uniform(0.0, 0.5)",
            "model.depth": "choice(1, 2, 3, 4)",
            "model.dim": "choice(576, 768, 960)",
            "model.heads": "choice(12, 16)",
        },
        _base("conv-relu", **_EARLY),
    ),
    # Section 6.1.6: two rounds. The best model of the report has alpha 0.25 ("adjusted per round"), which is in
    # neither of its lists. The second space here contains it.
    Space(
        "kernels-elu-first",
        {
            "train.lr": "choice(5e-4, 1e-4, 5e-5)",
            "train.batch_size": "choice(64, 128, 256)",
            "model.dim": "choice(256)",
            "model.heads": "choice(8)",
            "model.performer.m": "choice(64)",
            "model.depth": "choice(1)",
            _DROPOUT: "choice(0.0, 0.1)",
            "model.performer.alpha": "choice(0.5, 1.0)",
            "train.optimizer": "choice(adam)",
        },
        _base("conv-elu", schedule="step", **_EARLY),
        "grid",
    ),
    Space(
        "kernels-elu",
        {
            "train.lr": "choice(5e-4, 1e-4, 5e-5)",
            "train.batch_size": "choice(64, 128, 256)",
            "model.dim": "choice(512, 768)",
            "model.heads": "choice(8, 12, 16)",
            "model.performer.m": "choice(128, 256)",
            "model.depth": "choice(1, 2, 3, 4)",
            _DROPOUT: "choice(0.0, 0.1, 0.2)",
            "model.performer.alpha": "choice(0.25, 0.5, 1.0)",
            "train.optimizer, train.weight_decay": "choice(('adam', 0.0), ('adamw', 0.01))",
        },
        _base("conv-elu", schedule="step", **_EARLY),
        "grid",
    ),
    # Section 7.2: a grid, then a space for Optuna.
    Space(
        "kernels-exp-grid",
        {
            "train.lr": "choice(2e-3, 1e-3, 5e-4, 1e-4)",
            "train.batch_size": "choice(16, 32, 64, 128, 256)",
            _OPTIMIZER: _ADAM_OR_SGD,
            _DROPOUT: "choice(0.0, 0.1, 0.2)",
            "model.depth": "choice(1, 2, 3, 4, 5)",
            "model.dim": "choice(576, 768, 960)",
            "model.heads": "choice(8, 12, 16)",
        },
        _base("conv-exp", **_EARLY),
        "grid",
    ),
    Space(
        "kernels-exp",
        {
            "train.lr": "log(1e-5, 1e-2)",
            "train.batch_size": "choice(64, 128, 256)",
            "model.dim": "choice(576, 768, 960, 1024)",
            "model.heads": "choice(12, 16)",
            "model.performer.m": "choice(128, 256, 512, 764)",
            "model.depth": "int(1, 5)",
            _DROPOUT: "choice(0.1, 0.2, 0.3)",
            _OPTIMIZER: "choice(('sgd', 'cosine'), ('adam', 'step'))",
        },
        _base("conv-exp", **_EARLY),
    ),
    # Section 6.2: the learning rates of the three stable rounds. The report tuned by hand; all other fields are fixed.
    # Its first round, 5e-4 without clipping and warmup, ended in NaN and is not in this space.
    Space(
        "kernels-gelu-first",
        {"train.lr": "choice(5e-5, 6.25e-5, 1e-4)"},
        _base("conv-gelu", **_CYCLE, **_EARLY),
        "grid",
    ),
    # Inferred: section 6.2 states no ranges. Learning rates range from a fifth of its lowest rate to the rate of its
    # first round. Dim and depth follow its suggestion "higher dimensional and deeper". Batch size, heads and dropout
    # are those of the ReLU model (section 5.3), numbers of features those of section 5.1.
    Space(
        "kernels-gelu",
        {
            "train.lr": "log(1e-5, 5e-4)",
            "train.batch_size": "choice(64, 128, 256)",
            _DROPOUT: "uniform(0.0, 0.5)",
            "model.depth": "choice(1, 2, 3, 4)",
            "model.dim": "choice(768, 960)",
            "model.heads": "choice(12, 16)",
            "model.performer.m": "choice(128, 256, 512)",
        },
        _base("conv-gelu", **_CYCLE, **_EARLY),
    ),
    # Inferred: sections 8.4 to 8.6 name the settings (weight decay, dropout, clipping) and the final model (depth 5, 16
    # heads, dim 768, 512 features, SGD; its dropout of 5.0 is read as 0.5), but no ranges. The ranges here are those of
    # the ReLU model, with depth 5 and the numbers of features of section 5.1; the values of weight decay are ours.
    Space(
        "kernels-ftheta",
        {
            "train.lr": "log(1e-5, 1e-2)",
            "train.batch_size": "choice(64, 128, 256)",
            _OPTIMIZER: _ADAM_OR_SGD,
            "train.weight_decay": "choice(0.0, 1e-4, 1e-3, 1e-2)",
            _DROPOUT: "uniform(0.0, 0.5)",
            "model.depth": "choice(1, 2, 3, 4, 5)",
            "model.dim": "choice(576, 768, 960)",
            "model.heads": "choice(12, 16)",
            "model.performer.m": "choice(128, 256, 512)",
        },
        _base("conv-learned", clip=1.0, **_EARLY),
    ),
    # Not from the report. It needs minutes, and its data set needs no download.
    Space(
        "quickstart",
        {
            "train.lr": "log(3e-4, 3e-2)",
            "train.optimizer": "choice(adamw, muon)",
            "model.layout": "choice('softmax', 'relu(m=32)', 'favor(m=32)')",
            "model.depth": "int(1, 4)",
            "model.dropout": "uniform(0.0, 0.3)",
        },
        RunConfig(
            model=ModelConfig(stem="patch(2)", dim=48, heads=4, mlp_dim=96, head="mean"),
            data=DataConfig(name="digits", validation=0.2),
            train=TrainConfig(epochs=8, batch_size=64),
        ),
    ),
]

SPACES = {space.name: space for space in _ALL}


def read_space(space: str | Path | Mapping[str, str]) -> Space:
    """The built-in space with this name, the space in this YAML file, or a space with these fields."""
    if isinstance(space, Mapping):
        if not all(isinstance(name, str) for name in space):
            raise FavoritError(f"the search space {dict(space)!r} must have names of fields, such as train.lr, as keys")
        return Space("tuning", dict(space))
    if not isinstance(space, str | os.PathLike):
        raise FavoritError(
            f"the search space must be a name, a YAML file or a dictionary such as {{'train.lr': 'log(1e-4, 1e-2)'}}, "
            f"not {space!r}"
        )
    if str(space) in SPACES:
        return SPACES[str(space)]
    file = Path(space)
    if file.suffix not in (".yaml", ".yml"):
        raise unknown("search space (a name, or a file ending in .yaml)", str(space), SPACES)
    return Space(file.stem, _read_fields(file))


def _read_fields(file: Path) -> dict[str, str]:
    fields = read_yaml(file, f"the search space {file}")
    if not isinstance(fields, dict) or not all(isinstance(part, str) for pair in fields.items() for part in pair):
        raise FavoritError(f"the search space {file} must have lines such as train.lr: log(1e-4, 3e-3)")
    return fields
