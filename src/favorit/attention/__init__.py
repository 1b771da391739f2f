"""Attention: mixers, the kernels of linear attention, and the layer that a model uses.

Importing this package fills the registries. It imports every module of `kernels/`, so a new kernel file is registered
without an edit here.
"""

import importlib
import pkgutil

from favorit.attention import controls, kernels, linformer, softmax  # noqa: F401 (importing them registers mixers)
from favorit.attention.kernels.contract import Kernel
from favorit.attention.kernels.registry import KERNELS
from favorit.attention.layer import Attention
from favorit.attention.linear import Linear
from favorit.attention.local import LOCALS
from favorit.attention.mixer import MIXERS, Mixer, build_mixer

for module in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
    importlib.import_module(module.name)

from favorit.attention.cpu import favor, relu  # noqa: E402, F401 (hand-written features, looked up by kernel class)

__all__ = ["KERNELS", "LOCALS", "MIXERS", "Attention", "Kernel", "Linear", "Mixer", "build_mixer"]
