"""Fast paths of attention on the CPU. They compute the formulas of `linear.py` and `softmax.py`; `route.py` picks one.

    linear attention     short, blocked, in_parts, few_queries
    softmax attention    explicit_softmax, folded_softmax
    feature maps         block_features (any kernel, by autograd), relu and favor (hand-written backward)
    sizes and dtypes     limits, tiling, precision, threads

Here, phi(k_j) means u_j of `Kernel.keys`: the features of key j are phi(k_j) exp(r_j).

Unless a module says otherwise, its times are from 2 cores of an AMD EPYC (Zen 4, AVX-512) in fp32 with batch 128 and 65
tokens. LOG.md has the measurements.
"""
