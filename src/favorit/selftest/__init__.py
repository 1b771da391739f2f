"""The conformance suite of attention, the golden losses and a short training run. The tests use them, and `favorit
selftest` runs them on any device.
"""
