"""Local mixing parallel to attention: a convolution of the values on the token grid.

Shapes: B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from favorit.allocation import within_memory
from favorit.errors import FavoritError
from favorit.grids import Grid
from favorit.spec import PositiveInt, Registry

LOCALS: Registry[nn.Module] = Registry("local operation", context=("heads", "head_dim"), within=within_memory)


@LOCALS.register("dwconv")
class DepthwiseConv(nn.Module):
    """out = attention(q, k, v) + filter(v): one square filter for each channel on the grid; O(N D size^2).

    It adds the locality that linear attention lacks. Outputs of prefix tokens do not change.

    Source: Han et al. 2023, FLatten Transformer, arXiv 2308.00442; parallel to a Performer in Ding et al. (report 1 of
    five).
    """

    def __init__(self, heads: int, head_dim: int, size: PositiveInt = 3) -> None:
        super().__init__()
        if size % 2 == 0:
            raise FavoritError(f"dwconv: size={size} is not valid: size must be odd, so that the filter is centered")
        self.filter = nn.Conv2d(heads * head_dim, heads * head_dim, size, padding=size // 2, groups=heads * head_dim)

    def forward(self, v: Tensor, grid: Grid, prefix: int) -> Tensor:
        patches = v[..., prefix:, :]
        image = patches.mT.reshape(v.shape[0], -1, *grid)
        out = self.filter(image).reshape(*v.shape[:2], v.shape[-1], -1).mT
        return F.pad(out, (0, 0, prefix, 0))
