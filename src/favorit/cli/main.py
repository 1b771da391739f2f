"""`favorit`: runs a command. A user's mistake prints one line and exits with status 2."""

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
    report,
    runs,
    selftest,
    show,
    study,
    train,
    tune,
)
from favorit.cli.imports import add_import_option
from favorit.cli.shared import PROGRESS
from favorit.cli.usage import build_command, message
from favorit.errors import FavoritError
from favorit.process import spin_settings
from favorit.terminal import echo, one_line

app = typer.Typer(
    name="favorit",
    help="Efficient attention for Vision Transformers: which one, in which layers, and does it pay on this hardware?",
    no_args_is_help=True,
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
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)
app.command("selftest")(selftest.selftest)
app.add_typer(runs.app, name="runs")
app.add_typer(study.app, name="study")
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
add_import_option(app)


def _version(is_given: bool) -> None:
    if is_given:
        echo(f"favorit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """The entry point of the command line."""
    os.environ.update(spin_settings())  # before a command imports torch
    PROGRESS.is_resumable = False
    # Warnings are one line, without the location in the code.
    warnings.formatwarning = lambda message, *_, **__: f"favorit: {one_line(str(message))}\n"
    command = build_command(app)
    try:
        status = command(prog_name="favorit", standalone_mode=False)
        if status == 130:  # typer turns Ctrl-C into this status
            raise KeyboardInterrupt
        sys.exit(status)
    except FavoritError as error:
        # With --devices, all processes raise the same error; only the first one prints it.
        _exit(f"favorit: {one_line(str(error))}" if os.environ.get("LOCAL_RANK", "0") == "0" else "", 2)
    except TyperException as error:
        _exit(message(error, command), 2)
    except ModuleNotFoundError as error:
        _exit(
            f"favorit: this command needs the package {error.name}: pip install 'favorit[train]' "
            "(favorit[tune] for tuning)",
            2,
        )
    except (KeyboardInterrupt, typer.Abort):
        _exit(f"favorit: interrupted{PROGRESS.hint}", 130)
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        _exit(f"favorit: {what}{PROGRESS.hint}", 1)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            _exit("favorit: not enough memory; use a smaller batch, model, image size or data set", 1)
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            _exit(
                f"favorit: torch.compile failed ({reason}): install a C++ compiler, or leave out --compile",
                1,
            )
        raise


def _exit(text: str, status: int) -> NoReturn:
    if text:
        echo(text, err=True)
    sys.exit(status)
