"""The parts of each study's section: its figures, tables and questions."""

from favorit.reports.definitions import Parts
from favorit.reports.parts import general, hybrids

# Parts of every study, then those of single studies by name.
GENERAL: Parts = general.PARTS
PARTS: dict[str, Parts] = {"hybrids": hybrids.PARTS}
