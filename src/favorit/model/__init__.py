"""Models: stems, blocks, heads, layouts, and the Vision Transformer built from them. Presets do not import torch."""

from typing import TYPE_CHECKING

from favorit.lazy import lazy
from favorit.model.presets import PRESETS, preset

if TYPE_CHECKING:
    from favorit.model.head import HEADS
    from favorit.model.layout import LAYOUTS
    from favorit.model.stem import STEMS
    from favorit.model.vit import ViT, create_model

__all__ = ["HEADS", "LAYOUTS", "PRESETS", "STEMS", "ViT", "create_model", "preset"]

__getattr__ = lazy(
    __name__,
    {
        "HEADS": "favorit.model.head",
        "LAYOUTS": "favorit.model.layout",
        "STEMS": "favorit.model.stem",
        "ViT": "favorit.model.vit",
        "create_model": "favorit.model.vit",
    },
)
