"""Kernels: the feature maps of linear attention, one file per family. Mathematics only; fast paths are in `cpu/`.

To add a kernel: one file here, and one case in `selftest/cases.py` (docs/extending.md).
"""
