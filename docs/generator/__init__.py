"""Generates the component reference and renders formulas, for Sphinx."""
