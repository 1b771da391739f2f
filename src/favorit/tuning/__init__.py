"""Hyperparameter search with Optuna. Every trial is an ordinary run."""

from favorit.errors import FavoritError

try:
    import optuna  # noqa: F401
except ModuleNotFoundError:
    raise FavoritError("tuning needs the package optuna: pip install 'favorit[tune]'") from None

from favorit.tuning.result import TuneResult
from favorit.tuning.search import tune
from favorit.tuning.space import Space
from favorit.tuning.spaces import read_space

__all__ = ["Space", "TuneResult", "read_space", "tune"]
