"""The sizes at which one CPU implementation becomes faster than another."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Limits:
    """Measured on 2 cores with 1 MiB of L2 each and 32 MiB of L3 (LOG.md). Set `mixer.limits` to force another choice.

    Feature elements are the features of all tokens and heads of a batch.
    """

    # Below this many elements, torch runs elementwise operations on one thread. Products of this size then run on one
    # thread too; MKL would split them.
    one_thread: int = 1 << 15
    # Up to this many feature elements, computing all of them at once is faster than blocks.
    few_feature_elements: int = 1 << 19
    # Feature elements in one block: 4 MiB of fp32. Blocks of 2^19 and 2^21 take 1.01 and 1.05 times as long.
    block_elements: int = 1 << 20
    # The same for bf16, whose products are faster: blocks of 2^20 take 1.16 times as long.
    bf16_block_elements: int = 1 << 22
    shortest_block: int = 64
    # Softmax in fp32 trains 1.1 to 1.5 times faster with explicit weights up to this many tokens ...
    explicit_tokens: int = 200
    # ... if there are enough weights to outweigh call overhead, and few enough to keep (64 MiB of fp32).
    fewest_weights: int = 1 << 19
    most_weights: int = 1 << 24
    # Up to this many tokens, torch's softmax kernel has a faster backward in fp32 than in half precision: 4x at 65
    # tokens.
    fp32_backward_tokens: int = 512
    # Whether the CPU has instructions for bf16 products. None: detect it.
    bf16_products: bool | None = None

    @property
    def multiplies_bf16(self) -> bool:
        """True if the CPU has instructions for bf16 products, which are twice as fast as fp32 products.

        Other CPUs emulate them, which is slower than fp32.
        """
        if self.bf16_products is not None:
            return self.bf16_products
        capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
        return bool(capabilities.get("avx512_bf16")) and bool(torch.backends.mkldnn.enabled)
