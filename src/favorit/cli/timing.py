"""Estimates the remaining time of a study plan from timed training steps, with progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from favorit.study.plan import Plan
    from favorit.study.runner import State
    from favorit.study.tasks import Task


class TimeLeft:
    """The remaining seconds of each unfinished point of a plan with this number of parallel runs, from timed steps.

    Steps that were timed on this machine before are not timed again, except with `again`.
    """

    def __init__(self, plan: Plan, states: list[State], workers: int, again: bool) -> None:
        import torch

        from favorit.study.timings import Timings

        self._images = plan.images
        self._left = {state.name: state for state in states if state.status not in ("complete", "failed")}
        self._tasks = [task for task in plan.tasks if task.name in self._left]
        self._timings = Timings(max(1, torch.get_num_threads() // workers), again=again)

    @property
    def is_known(self) -> bool:
        """True if nothing must be timed."""
        return not self._timings.missing(task.config for task in self._tasks)

    def seconds(self) -> dict[str, float]:
        """The remaining seconds by name. Times the missing steps with a progress bar on stderr."""
        from favorit.cli.console import open_console
        from favorit.display import Display
        from favorit.process import keep_large_buffers
        from favorit.study.estimate import estimate

        keep_large_buffers()
        with Display(open_console(stderr=True)) as display:

            def tell(task: Task, done: int, total: int) -> None:
                display.bar("shapes", f"timing {task.name}", done, total)
                display.piped_line(f"timing model {done + 1} of {total}: {task.name}")

            whole = estimate(self._tasks, self._images, self._timings, tell)
        return {
            task.name: whole[task.name] * (1 - (self._left[task.name].epochs or 0) / task.config.train.epochs)
            for task in self._tasks
        }
