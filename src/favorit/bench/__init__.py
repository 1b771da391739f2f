"""Benchmarks of this machine, and measurements of attention."""
