"""When the CPU computes attention in bf16 instead of fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from favorit.attention.cpu.limits import Limits
from favorit.attention.dtypes import HALF, output_dtype
from favorit.autocast import is_autocast_enabled

# The dtypes that autocast converts to its own dtype.
AUTOCAST = {torch.float32, *HALF}


def is_bf16_product(q: Tensor, k: Tensor, v: Tensor, limits: Limits) -> bool:
    """True if q, k and v are bf16 or autocast converts them to bf16, and the CPU has instructions for bf16 products."""
    if output_dtype(v) != torch.bfloat16:
        return False
    dtypes = {x.dtype for x in (q, k, v)}
    is_uniform = dtypes == {torch.bfloat16} or (is_autocast_enabled(q) and dtypes <= AUTOCAST)
    return is_uniform and limits.multiplies_bf16
