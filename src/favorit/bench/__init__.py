"""Benchmarks: what a machine does, measured on it."""
