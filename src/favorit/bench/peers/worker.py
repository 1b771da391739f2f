"""The worker process of a comparison: `python -m favorit.bench.peers.worker JSON`.

The request names a comparison, its sizes, a mode and a side. For the side `check`, the worker replies with the
agreement and ends. For `ours` and `theirs`, it times the work of that side (see `timing_worker`).
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import Any, TextIO

import torch

from favorit.bench.peers.attention import ATTENTION_COMPARISONS
from favorit.bench.peers.comparison import Comparison, Sizes, check_agreement
from favorit.bench.peers.models import STEP_COMPARISONS
from favorit.bench.peers.published_hybrid import HYBRID_COMPARISONS
from favorit.bench.timing_worker import open_replies, read_request, serve_timings, write_reply

COMPARISONS: dict[str, Comparison] = {
    comparison.key: comparison for comparison in (*ATTENTION_COMPARISONS, *STEP_COMPARISONS, *HYBRID_COMPARISONS)
}


def serve(request: dict[str, Any], lines: TextIO, replies: TextIO) -> None:
    """Replies to one request. For a timed side, also replies to each line that follows."""
    reply = partial(write_reply, replies)
    torch.manual_seed(0)
    comparison, sizes = COMPARISONS[request["comparison"]], Sizes(**request["sizes"])
    if request["side"] == "check":
        reply(asdict(check_agreement(comparison, sizes, request["mode"])))
        return
    implementation = {"ours": comparison.ours, "theirs": comparison.theirs}[request["side"]]
    work = implementation.make_call(implementation.build(sizes).train(), sizes, request["mode"])
    serve_timings(work, lines, reply)


def main() -> None:
    """Serves the request of the command line."""
    replies = open_replies()
    serve(read_request(), sys.stdin, replies)


if __name__ == "__main__":
    main()
