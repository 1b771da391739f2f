"""`favorit`: finds the verb, and turns a user's mistake into one line and exit status 2."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from favorit import __version__
from favorit.cli import components, data, evaluate, predict, runs, show, train
from favorit.errors import FavoritError

app = typer.Typer(
    name="favorit",
    help="Efficient attention for Vision Transformers: which one, where in the stack, and does it pay on this hardware.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("list")(components.list_)
app.command("show")(show.show)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("runs")(runs.runs)
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"favorit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and exit."),
) -> None:
    pass


def main() -> None:
    """The entry point of the command."""
    try:
        app()
    except FavoritError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"favorit: {error}", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("favorit: interrupted; what was complete is kept, and the same command goes on from there", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        typer.echo(f"favorit: {what}; what was complete is kept, and the same command goes on once this is mended", err=True)
        sys.exit(1)
