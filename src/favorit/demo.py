"""`make demo`: the study `quickstart`, as `favorit study run quickstart --out runs/demo` runs it."""

from __future__ import annotations

import sys

from favorit.cli import main

if __name__ == "__main__":
    sys.argv[1:] = ["study", "run", "quickstart", "--out", "runs/demo"]
    main()
