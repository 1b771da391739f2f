"""Estimates the remaining time of a study plan from timed training steps, with progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from favorit.study.plan import Plan
    from favorit.study.runner import State
    from favorit.study.tasks import Task


def time_plan(plan: Plan, states: list[State], workers: int, again: bool = False) -> dict[str, float]:
    """The estimated remaining seconds of each unfinished point, by name."""
    import torch

    from favorit.cli.console import open_console
    from favorit.display import Display
    from favorit.process import keep_large_buffers
    from favorit.study.estimate import estimate

    keep_large_buffers()
    left = {state.name: state for state in states if state.status not in ("complete", "failed")}
    tasks = [task for task in plan.tasks if task.name in left]
    with Display(open_console(stderr=True)) as display:

        def tell(task: Task, done: int, total: int) -> None:
            display.bar("shapes", f"timing {task.name}", done, total)
            display.piped_line(f"timing model {done + 1} of {total}: {task.name}")

        threads = max(1, torch.get_num_threads() // workers)
        seconds = estimate(tasks, plan.images, threads=threads, again=again, tell=tell)
    return {
        task.name: seconds[task.name] * (1 - (left[task.name].epochs or 0) / task.config.train.epochs) for task in tasks
    }
