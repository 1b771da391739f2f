"""`favorit`: finds the verb, and turns a user's mistake into one line and exit status 2."""

from __future__ import annotations

import os
import sys
import warnings
from typing import NoReturn

import typer
from typer.exceptions import TyperException

from favorit import __version__
from favorit.cli import (
    bench,
    compare,
    components,
    data,
    doctor,
    evaluate,
    predict,
    runs,
    selftest,
    show,
    study,
    train,
    tune,
)
from favorit.errors import FavoritError
from favorit.process import spin_settings

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
app.command("compare")(compare.compare)
app.command("tune")(tune.tune)
app.command("doctor")(doctor.doctor)
app.command("selftest")(selftest.selftest)
app.add_typer(runs.app, name="runs")
app.add_typer(study.app, name="study")
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"favorit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """The entry point of the command."""
    os.environ.update(spin_settings())  # before a verb imports torch
    # One line: a user of the command has no use for the place in the code.
    warnings.formatwarning = lambda message, *_, **__: f"favorit: {message}\n"
    try:
        status = app(standalone_mode=False)
        if status == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.exit(status)
    except FavoritError as error:
        # Of several processes each of which finds the same mistake, one says so.
        _end(f"favorit: {error}" if os.environ.get("LOCAL_RANK", "0") == "0" else "", 2)
    except TyperException as error:
        # A command or option that does not exist is one line; a group without a command shows its help, which is many.
        message = (error.format_message() if hasattr(error, "format_message") else str(error)).strip()
        _end(
            message if "\n" in message or not message else f"favorit: {message} (favorit --help names what there is)", 2
        )
    except ModuleNotFoundError as error:
        _end(
            f"favorit: this command needs the package {error.name}: pip install 'favorit[train]' (favorit[tune] for tuning)",
            2,
        )
    except (KeyboardInterrupt, typer.Abort):
        _end(
            "favorit: interrupted; runs, studies and searches keep what was complete, and the same command goes on from there",
            130,
        )
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        _end(f"favorit: {what}; what was complete is kept, and the same command goes on once this is mended", 1)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            _end("favorit: not enough memory for this; a smaller batch, model, image size or data set fits", 1)
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            _end(
                f"favorit: torch.compile failed ({reason}): it needs a C++ compiler; without --compile none is needed",
                1,
            )
        raise


def _end(message: str, status: int) -> NoReturn:
    if message:
        typer.echo(message, err=True)
    sys.exit(status)
