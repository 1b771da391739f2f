"""The command line: one short file for each verb. Nothing here imports torch before a verb needs it."""

from favorit.cli.main import main

__all__ = ["main"]
