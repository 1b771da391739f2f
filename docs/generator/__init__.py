"""Writes the reference of all components and renders formulas, for Sphinx."""
