"""One contender in a process of its own: `python -m favorit.bench.contender JSON`.

The JSON names a comparison, its sizes and a side. `check` prints whether the sides agree and ends. `ours` and `theirs`
say when they are warm, and from then on, for each line that comes in, do their work once unmeasured and once measured
and print the seconds.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from typing import Any, TextIO

import torch

from favorit.bench.comparison import Comparison, Sizes, agreement
from favorit.bench.peer_attention import ATTENTION
from favorit.bench.peer_models import STEP
from favorit.bench.recreation import HYBRID
from favorit.bench.turns import answer_turns, open_answers, write_answer

COMPARISONS: dict[str, Comparison] = {comparison.key: comparison for comparison in (*ATTENTION, *STEP, *HYBRID)}


def serve(request: dict[str, Any], lines: TextIO, answers: TextIO) -> None:
    """Answers one request, and the lines that come in after it."""

    say = partial(write_answer, answers)
    torch.manual_seed(0)
    comparison, sizes = COMPARISONS[request["comparison"]], Sizes(**request["sizes"])
    if request["side"] == "check":
        say(asdict(agreement(comparison, sizes, request["way"])))
        return
    contender = {"ours": comparison.ours, "theirs": comparison.theirs}[request["side"]]
    work = contender.work(contender.build(sizes).train(), sizes, request["way"])
    answer_turns(work, lines, say)


def main() -> None:
    """Answers the request of the command line."""
    serve(json.loads(sys.argv[1]), sys.stdin, open_answers())


if __name__ == "__main__":
    main()
