"""favorit: efficient attention for Vision Transformers, with measurements to choose by.

    import favorit
    model = favorit.create_model("vit-64", layout="performer_first", performer="relu(m=128)")

Names are imported when they are first used, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from favorit.lazy import lazy

if TYPE_CHECKING:
    from favorit import study as study
    from favorit.attention import Attention as Attention
    from favorit.attention import build_mixer as build_mixer
    from favorit.bench.doctor.diagnosis import Diagnosis as Diagnosis
    from favorit.bench.doctor.diagnosis import doctor as doctor
    from favorit.catalog import list_components as list_components
    from favorit.config import ModelConfig as ModelConfig
    from favorit.config import RunConfig as RunConfig
    from favorit.data import DataSet as DataSet
    from favorit.data import build_dataset as build_dataset
    from favorit.errors import FavoritError as FavoritError
    from favorit.model import ViT as ViT
    from favorit.model import create_model as create_model
    from favorit.process import share_cores as share_cores
    from favorit.reports.handle import Report as Report
    from favorit.reports.handle import report as report
    from favorit.study.packing import pack as pack
    from favorit.study.statistics import Comparison as Comparison
    from favorit.study.statistics import compare as compare
    from favorit.training import Run as Run
    from favorit.training import load as load
    from favorit.training import train as train
    from favorit.training.inference import evaluate as evaluate
    from favorit.training.inference import predict as predict
    from favorit.training.records import runs as runs
    from favorit.training.trained_model import Prediction as Prediction
    from favorit.training.trained_model import TrainedModel as TrainedModel
    from favorit.tuning import tune as tune

__version__ = "0.1.0"

_HOMES = {
    "Attention": "favorit.attention",
    "Comparison": "favorit.study.statistics",
    "DataSet": "favorit.data",
    "Diagnosis": "favorit.bench.doctor.diagnosis",
    "FavoritError": "favorit.errors",
    "ModelConfig": "favorit.config",
    "Prediction": "favorit.training.trained_model",
    "Report": "favorit.reports.handle",
    "Run": "favorit.training",
    "RunConfig": "favorit.config",
    "TrainedModel": "favorit.training.trained_model",
    "ViT": "favorit.model",
    "build_dataset": "favorit.data",
    "build_mixer": "favorit.attention",
    "compare": "favorit.study.statistics",
    "create_model": "favorit.model",
    "doctor": "favorit.bench.doctor.diagnosis",
    "evaluate": "favorit.training.inference",
    "list_components": "favorit.catalog",
    "load": "favorit.training",
    "pack": "favorit.study.packing",
    "predict": "favorit.training.inference",
    "report": "favorit.reports.handle",
    "runs": "favorit.training.records",
    "share_cores": "favorit.process",
    "study": "favorit.study",
    "train": "favorit.training",
    "tune": "favorit.tuning",
}

__all__ = ["__version__", *_HOMES]


__getattr__ = lazy(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
