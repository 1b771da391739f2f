"""Attention: mixers, the kernels of the linear one, and the layer that a model sees.

Importing this package fills the registries.
"""

from favorit.attention import controls, favor, learned, linformer, pointwise, softmax  # noqa: F401
from favorit.attention.kernel import Kernel
from favorit.attention.layer import Attention
from favorit.attention.linear import KERNELS, Linear
from favorit.attention.mixer import MIXERS, Mixer, build_mixer

__all__ = ["KERNELS", "MIXERS", "Attention", "Kernel", "Linear", "Mixer", "build_mixer"]
