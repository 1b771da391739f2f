"""Measures the overhead of studies: `python tests/study/measure_study.py overhead` and `... many [RUNS]`.

overhead   time of a point in a warm worker minus the time of favorit.train in one process, with tiny runs
many       time of `favorit runs` and `favorit study status` with thousands of runs on disk (copies of one real run)
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import favorit
from favorit.study import Options, Study, load_study, product, run
from favorit.study.plan import make_plan, write_index
from favorit.study.tasks import Ended, TaskEvent

BASE: dict[str, Any] = {
    "data.name": "synthetic(size=8, classes=3, train=96, test=48)",
    "model.stem": "patch(4)",
    "model.dim": 8,
    "model.heads": 2,
    "model.depth": 2,
    "model.mlp_dim": 16,
    "train.batch_size": 16,
    "train.epochs": 2,
}
POINTS = 40
WARM = 5  # first points, which are not counted: they include late imports


def overhead() -> None:
    study = Study("overhead", "What does the runner cost?", BASE, product(seed=range(POINTS)))
    with tempfile.TemporaryDirectory() as place:
        seconds = []
        for config in study.configs().values():
            start = time.perf_counter()
            favorit.train(config, out=Path(place, "alone"), accelerator="cpu")
            seconds.append(time.perf_counter() - start)
        ends: list[float] = []

        def listen(event: TaskEvent) -> None:
            if isinstance(event, Ended):
                ends.append(time.perf_counter())

        run(study, Path(place, "study"), accelerator="cpu", listen=listen)
    alone = statistics.median(seconds[WARM:])
    each = statistics.median(after - before for before, after in zip(ends[WARM:], ends[WARM + 1 :], strict=False))
    print(
        f"favorit.train alone {1000 * alone:.1f} ms, a point of a study {1000 * each:.1f} ms: "
        f"overhead {1000 * (each - alone):.1f} ms"
    )


def many(count: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        out, path = Path(place, "runs"), Path(place, "many.py")
        base = {**BASE, "train.epochs": 1}
        path.write_text(
            "from favorit.study import Study, product\n"
            f"STUDY = Study('many', '?', {base!r}, product(seed=range({count})))\n"
        )
        study = load_study(path)
        trained = favorit.train(next(iter(study.configs().values())), out=out, accelerator="cpu")
        config = json.loads((trained.path / "config.json").read_text())
        result, record = (trained.path / "result.json").read_text(), (trained.path / "epochs.jsonl").read_text()
        plan = make_plan(study, Options())
        write_index(plan, out)
        for task in plan.tasks[1:]:
            folder = out / task.id
            folder.mkdir()
            config["id"], config["config"]["seed"] = task.id, task.config.seed
            (folder / "config.json").write_text(json.dumps(config, indent=1))
            (folder / "lock").touch()
            (folder / "epochs.jsonl").write_text(record * 50)
            if task.config.seed % 10:
                (folder / "result.json").write_text(result)
        commands = {
            "favorit runs": ["from favorit.cli import main; main()", "runs", out],
            "favorit study status": ["from favorit.cli.study import app; app()", "status", path, "--out", out],
        }
        for name, command in commands.items():
            seconds = []
            for _ in range(5):
                start = time.perf_counter()
                output = subprocess.run(
                    [sys.executable, "-c", *map(str, command)], capture_output=True, text=True, check=True
                ).stdout
                seconds.append(time.perf_counter() - start)
            assert output.count("\n") >= count
            print(
                f"{name} with {count} runs: {statistics.median(seconds):.2f} s "
                f"(of {len(seconds)}: {min(seconds):.2f}..{max(seconds):.2f})"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["overhead"]:
        overhead()
    else:
        many(int(sys.argv[2]) if len(sys.argv) > 2 else 5000)
