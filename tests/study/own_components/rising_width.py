"""What lies beside a study file and is imported by it."""

from __future__ import annotations

WIDTH = 2.0
