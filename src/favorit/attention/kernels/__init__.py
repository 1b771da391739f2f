"""Kernels: the feature maps of linear attention, one file per family. Mathematics only; fast paths are in `cpu/`."""
