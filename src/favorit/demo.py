"""`make demo`: the same as `favorit study run quickstart --out runs/demo`."""

from __future__ import annotations

import sys

from favorit.cli import main

if __name__ == "__main__":
    sys.argv[1:] = ["study", "run", "quickstart", "--out", "runs/demo"]
    main()
