"""Sphinx configuration: `make docs` builds the site, with warnings as errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "tests")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import favorit  # noqa: E402
from generator import reference  # noqa: E402

reference.write(DOCS / "reference")

project = "favorit"
release = favorit.__version__
copyright = "the favorit authors"
extensions = ["myst_parser", "generator.mathml"]
exclude_patterns = ["generator"]
myst_enable_extensions = ["dollarmath", "fieldlist"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
highlight_language = "none"
html_theme = "furo"
html_title = "favorit"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
