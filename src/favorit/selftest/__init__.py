"""The conformance suite of attention, the golden losses and a short training: for the tests, and for `favorit selftest`
on other devices.
"""
