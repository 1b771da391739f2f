"""`favorit report`: a page with tables, figures and answers from runs on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from favorit.terminal import echo


def report(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            help="Studies: names from 'favorit study list', names that runs recorded, or Python files with STUDY = ... "
            "Without one: every study that has runs, and the runs of no study.",
            metavar="STUDY",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder with run folders or packed runs.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="The folder for the page, figures and tables.")] = Path("report"),
    scale: Annotated[
        str | None, typer.Option(help="Only runs of this scale: published, smoke, or a scale of the study.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write a report of the runs in a folder: one page that works offline, and its figures and tables as files.

    The page is OUT/index.html. Each figure is also written as PNG, SVG and PDF, each table as CSV, Markdown and LaTeX.
    Parts that the runs do not allow are listed with the command that trains what is missing.

    Examples: [bold]favorit report[/bold], [bold]favorit report hybrids --runs results/runs --out report --open[/bold]
    """
    from favorit.cli.console import check_folders, open_console
    from favorit.display import Display
    from favorit.reports.build import build_report
    from favorit.reports.write import count_files, write_report

    check_folders(out=out)
    with Display(open_console()) as display:
        document = build_report(
            runs, studies or (), scale, listen=lambda done, total: display.bar("read", "reading runs", done, total)
        )
        display.remove("read")
        total = count_files(document)
        files = []
        for path in write_report(document, out):
            files.append(path)
            display.bar("write", "writing files", len(files), total)
    page = files[0]
    echo(f"{len(document.runs)} runs, {total} files")
    echo(str(page))
    if open_:
        import webbrowser

        if not webbrowser.open(page.absolute().as_uri()):
            echo("no browser found: open the file yourself", err=True)
