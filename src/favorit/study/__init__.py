"""Studies: lists of configurations that answer a question, and the runner that trains the missing ones.

Example:
    layouts = product({"model.layout": ["softmax", "uniform"]})
    STUDY = Study("mixers", "Does attention matter?", {"data.name": "digits"}, layouts)
    run(STUDY, out="runs", workers=2)
"""

from favorit.study.load import load_study
from favorit.study.points import Points, product, zipped
from favorit.study.points import zipped as zip
from favorit.study.references import Published
from favorit.study.runner import Report, State, run, status
from favorit.study.study import Options, Scale, Study

__all__ = [
    "Options",
    "Points",
    "Published",
    "Report",
    "Scale",
    "State",
    "Study",
    "load_study",
    "product",
    "run",
    "status",
    "zip",
    "zipped",
]
