"""`make demo`: the same as `favorit study run quickstart --out runs/demo`, and then its report."""

from __future__ import annotations

import sys

from favorit.cli import main

COMMANDS = (
    ["study", "run", "quickstart", "--out", "runs/demo"],
    ["report", "quickstart", "--runs", "runs/demo", "--out", "build/demo"],
)


def demo() -> None:
    """Runs the commands; the first that fails ends the program with its status."""
    for arguments in COMMANDS:
        sys.argv[1:] = arguments
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    demo()
