"""Attention: mixers, the kernels of the linear one, and the layer that a model sees.

Importing this package fills the registries.
"""

from favorit.attention import controls, favor, fourier, learned, linformer, pointwise, softmax  # noqa: F401
from favorit.attention.kernel import Kernel
from favorit.attention.layer import Attention
from favorit.attention.linear import KERNELS, Linear
from favorit.attention.local import LOCALS
from favorit.attention.mixer import MIXERS, Mixer, build_mixer

__all__ = ["KERNELS", "LOCALS", "MIXERS", "Attention", "Kernel", "Linear", "Mixer", "build_mixer"]
