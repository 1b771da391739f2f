"""Models: stems, blocks, heads and layouts, and the Vision Transformer they make."""

from favorit.model.head import HEADS
from favorit.model.layout import LAYOUTS
from favorit.model.presets import PRESETS, preset
from favorit.model.stem import STEMS
from favorit.model.vit import ViT, create_model

__all__ = ["HEADS", "LAYOUTS", "PRESETS", "STEMS", "ViT", "create_model", "preset"]
