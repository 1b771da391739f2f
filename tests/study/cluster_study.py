"""A study file on a private cluster that has neither it nor what lies beside it: `python cluster_study.py FILE OUT`.

Their folder is removed once the study is planned. Prints the results and errors by point (JSON).
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
