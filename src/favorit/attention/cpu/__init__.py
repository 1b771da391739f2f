"""Fast paths of attention on the CPU. They compute the formulas of `linear.py` and `softmax.py`; `route.py` picks one.

Times in these modules are from 2 cores of an AMD EPYC (Zen 4, AVX-512), fp32, batch 128 and 65 tokens unless they say
otherwise. LOG.md has the measurements.
"""
