"""A module that the study file in this folder imports."""

from __future__ import annotations

WIDTH = 2.0
