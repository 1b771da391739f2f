"""Runs a study on a cluster: `python cluster_driver.py STUDY.json`. The file has the address, folder and tasks.

Prints every event as a line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from favorit import RunConfig
from favorit.study.cluster import cluster
from favorit.study.tasks import Task


def main(study: dict[str, Any]) -> None:
    tasks = [Task(task["name"], RunConfig(**task["config"]), task["id"]) for task in study.pop("tasks")]
    for event in cluster(tasks, **study):
        fields = {key: value for key, value in vars(event).items() if key != "task"}
        print(json.dumps({"kind": type(event).__name__, "name": event.task.name, **fields}), flush=True)


if __name__ == "__main__":
    try:
        main(json.loads(Path(sys.argv[1]).read_text()))
    except KeyboardInterrupt:
        sys.exit(130)
