"""`favorit bench`: benchmarks on this machine."""

from __future__ import annotations

import typer

from favorit.cli.approximation import approximation
from favorit.cli.busy import busy
from favorit.cli.crossover import crossover
from favorit.cli.epoch import epoch
from favorit.cli.peers import peers
from favorit.cli.speed import speed

app = typer.Typer(help="Benchmarks on this machine.", no_args_is_help=True, rich_markup_mode="rich")
app.command("speed")(speed)
app.command("epoch")(epoch)
app.command("peers")(peers)
app.command("crossover")(crossover)
app.command("approximation")(approximation)
app.command("busy")(busy)
