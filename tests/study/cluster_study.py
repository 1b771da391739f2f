"""Runs a study file on a private cluster without access to the file: `python cluster_study.py FILE OUT`.

Removes the file's folder after the study is planned. Prints results and errors by point as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from favorit.study.runner import start


def main(file: Path, out: Path) -> None:
    report, events = start(file, out, ray="local", cpus=1, accelerator="cpu")
    shutil.rmtree(file.parent)
    for _ in events:
        pass
    print(json.dumps({"results": report.results, "errors": report.errors}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
