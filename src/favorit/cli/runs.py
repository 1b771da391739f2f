"""`favorit runs` lists runs; `favorit runs pack` packs each into one small file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from favorit.cli.shared import TableForm, with_fields
from favorit.errors import FavoritError, unknown
from favorit.terminal import echo
from favorit.training.filters import Row, find_field, matches, select, sort_rows

DEFAULT = Path("runs")  # the folder of runs; it may not exist yet

# Field of a run -> (column title, format of a value).
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "id": ("run", str),
    "status": ("status", str),
    "study": ("study", str),
    "name": ("name", str),
    "date": ("date", lambda date: date[:10]),
    "data.name": ("data", str),
    "layers": ("layers", str),
    "model.position": ("position", str),
    "seed": ("seed", "{:,}".format),
    "data.fold": ("fold", lambda fold: f"{fold + 1}"),
    "epochs": ("epochs", "{:,}".format),
    "test.accuracy": ("test", "{:.2%}".format),
    "train_seconds_per_epoch": ("s/epoch", "{:.1f}".format),
    "parameters": ("parameters", "{:,}".format),
    "best_test.accuracy": ("best test (test-selected)", "{:.2%}".format),
    "scale": ("scale", str),
    "flags": ("flags", str),
}

# Columns to drop on a narrow terminal, the least important first.
OPTIONAL = (
    *("position", "parameters", "s/epoch", "best test (test-selected)", "data", "scale", "layers", "seed", "fold"),
    *("flags", "epochs", "date", "study"),
)
NAME_WIDTH = 32  # a name is cut to this width before columns are dropped


class _ListByDefault(TyperGroup):
    """A command group that runs `list` by default: `favorit runs FOLDER` lists the runs of a folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        has_command = args[:1] in (["--help"], *([name] for name in self.commands))
        return super().parse_args(ctx, args if has_command else ["list", *args])


app = typer.Typer(cls=_ListByDefault, rich_markup_mode="rich")


@app.callback()
def _runs() -> None:
    """List the runs of a folder, or pack them. [bold]favorit runs FOLDER[/bold] is short for [bold]runs list
    FOLDER[/bold]; [bold]favorit runs list --help[/bold] shows how to select and sort.
    """


@app.command("list")
@with_fields
def list_(
    folder: Annotated[Path, typer.Argument(help="The folder of runs.")] = DEFAULT,
    study: Annotated[
        str | None, typer.Option(help="Only runs of this study; * and ? match any text.", metavar="NAME")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Only runs with this value, such as data=cifar10, 'layers=relu*', train.lr>0.001 or 'test>=60%'. "
            "Signs: = != > >= < <=. Repeatable.",
            metavar="FIELD=VALUE",
        ),
    ] = None,
    sort: Annotated[
        str | None, typer.Option(help="Sort by a field or column, such as test or train.lr.", metavar="FIELD")
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="With --sort: largest first.")] = False,
    *,
    form: TableForm,
) -> None:
    """List the runs of a folder with their status, study, name, date, configuration and result.

    A field is written as in --json, such as train.lr, or as its last part (lr), or as the title of a column. --json
    prints a line for each run.

    Examples: [bold]favorit runs[/bold], [bold]favorit runs elsewhere --json[/bold],
    [bold]favorit runs --study hybrids --where data=cifar10 --sort test --reverse[/bold]
    """
    from favorit.training.records import rows

    stored = rows(folder) if folder != DEFAULT or folder.exists() else []
    fields = {title: field for field, (title, _) in COLUMNS.items()}
    found = select(stored, [*_of_study(study, stored), *(where or [])], fields)
    if sort is not None:
        found = sort_rows(found, find_field(sort, stored, fields), reverse)
    elif reverse:
        raise FavoritError("--reverse needs --sort FIELD: it reverses the order of that field")
    if form.as_json:
        every = dict.fromkeys(column for row in found for column in row)
        for row in found:
            echo(json.dumps({column: row.get(column) for column in every}))
        return
    if stored and not found:
        form.say(f"none of the {len(stored)} runs in {folder} meets the conditions")
        return
    if not found:
        form.say(f"no runs in {folder}: 'favorit train --out {folder}' trains one")
        return
    found = [row if row.get("had_machine_alone", True) else {**row, "train_seconds_per_epoch": None} for row in found]
    # Leaves out columns that are empty for all runs, for example the fold.
    columns = {key: column for key, column in COLUMNS.items() if any(row.get(key) not in (None, "") for row in found)}
    titles = [title for title, _ in columns.values()]
    right = [title for title, written in columns.values() if written is not str]
    rows_of_text = ([_format(row.get(key), write) for key, (_, write) in columns.items()] for row in found)
    form.write(titles, rows_of_text, right=right, optional=OPTIONAL, min_width=NAME_WIDTH)
    for row in found:
        if row.get("error"):
            form.say(f"{row['id']}: {row['error']}")


def _of_study(study: str | None, rows: Sequence[Row]) -> list[str]:
    """The condition of --study; raises an error for a study that no run belongs to."""
    if study is None:
        return []
    if not any(matches(row.get("study"), study) for row in rows):
        raise unknown("study of these runs", study, {row["study"] for row in rows if row.get("study")})
    return [f"study={study}"]


def _format(value: Any, write: Callable[[Any], str]) -> str:
    return "" if value is None else write(value)


@app.command("pack")
def pack(
    folder: Annotated[Path, typer.Argument(help="The folder of runs.")] = Path("runs"),
    *,
    to: Annotated[Path, typer.Option(help="The folder for packed runs; it may be the same.", metavar="FOLDER")],
) -> None:
    """Pack each complete or failed run into one file with its configuration, epochs, result and predictions, but no
    weights.

    Packed runs are listed and compared like run folders, and count as done. The exit status is 1 if a run is damaged.

    Example: [bold]favorit runs pack runs --to results/runs[/bold]
    """
    from collections import Counter

    from favorit.cli.console import check_folders
    from favorit.errors import FavoritError
    from favorit.study.packing import pack_all

    if not folder.is_dir():
        raise FavoritError(f"{folder} is not a folder of runs")
    check_folders(to=to)
    counts: Counter[str] = Counter()
    for each in pack_all(folder, to):
        counts[each.outcome] += 1
        if each.outcome != "present":
            echo(f"{each.outcome}: {each.note}")
    words = {"packed": "packed", "present": "packed before", "unfinished": "unfinished", "broken": "broken"}
    summary = ", ".join(f"{counts[outcome]} {word}" for outcome, word in words.items())
    echo(f"{summary}: {folder} to {to}")
    if counts["broken"]:
        raise typer.Exit(1)
