"""Charts: one declarative definition (Vega-Lite through Altair) for the page and for printed files."""
