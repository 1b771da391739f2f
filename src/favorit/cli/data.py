"""`favorit data`: what data sets there are, their files, and what they look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from favorit.errors import FavoritError

app = typer.Typer(help="Data sets: list, fetch, show.", no_args_is_help=True, rich_markup_mode="rich")

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Where data files are kept; else FAVORIT_DATA, else the user's cache directory.",
        metavar="DIR",
    ),
]


@app.command("list")
def list_(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the data sets: classes, size, licence, and whether their files are there.

    Example: [bold]favorit data list[/bold]
    """
    from rich.console import Console
    from rich.table import Table

    from favorit.data.datasets import CARDS
    from favorit.data.sources import SOURCES, data_directory, present

    root = data_directory(data_dir)
    there = {name: present(name, root) if name in SOURCES else None for name in CARDS}
    if as_json:
        rows = {
            name: {
                "classes": len(card.classes) or None,
                "shape": card.shape,
                "licence": card.licence,
                "citation": card.citation,
            }
            for name, card in CARDS.items()
        }
        typer.echo(json.dumps({name: row | {"present": there[name] is not False} for name, row in rows.items()}))
        return
    table = Table(title=f"data directory: {root}", title_justify="left")
    for column in ("name", "classes", "size", "images", "licence", "files"):
        table.add_column(column, justify="right" if column in ("classes", "size", "images") else "left")
    words = {True: "present", False: "absent", None: "not needed"}
    for name, card in CARDS.items():
        written = {"folder": "folder:PATH", "synthetic": "synthetic(...)"}.get(name, name)
        table.add_row(
            written, str(len(card.classes) or "any"), card.shape, card.images, card.licence, words[there[name]]
        )
    Console().print(table, markup=False)


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="A data set of 'favorit data list'.", metavar="NAME")],
    data_dir: DataDir = None,
) -> None:
    """Fetch the files of a data set into the data directory, each verified by its checksum.

    Examples: [bold]favorit data fetch cifar10[/bold], [bold]favorit data fetch mnist --data-dir data[/bold]
    """
    from favorit.data.datasets import load_dataset
    from favorit.data.sources import SOURCES, data_directory

    dataset = load_dataset(name, data_dir)
    where = f"in {data_directory(data_dir)}" if name in SOURCES else "no download needed"
    typer.echo(f"{dataset.name}: {len(dataset.train):,} training and {len(dataset.test):,} test images, {where}")


@app.command("show")
def show(
    name: Annotated[
        str,
        typer.Argument(help="A data set, for instance digits, 'synthetic(size=64)' or folder:PATH.", metavar="NAME"),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The picture to write; NAME.png without it.", metavar="FILE.png")
    ] = None,
    augment: Annotated[
        str | None, typer.Option("--augment", help="The steps to show, such as 'crop(4)|flip'.", metavar="STEPS")
    ] = None,
    patch: Annotated[int | None, typer.Option("--patch", min=1, help="The side of a patch in pixels.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Which samples are drawn.")] = 0,
    data_dir: DataDir = None,
) -> None:
    """Write a picture: samples by class, the steps of augmentation on one image, the same image normalised (black is
    -2, white 2) and channel by channel, channel histograms, patches.

    Example: [bold]favorit data show cifar10 --out cifar10.png --augment "crop(4)|flip|rotate(5)"[/bold]
    """
    from favorit.data.datasets import load_dataset
    from favorit.data.show_figure import save_picture

    dataset = load_dataset(name, data_dir)
    plain = "folder" if name.startswith("folder:") else name.partition("(")[0]
    target = out or Path(f"{plain}.png")
    if not target.suffix:
        raise FavoritError(f"--out {target}: its ending says the format, write for example {target}.png")
    save_picture(dataset, target, augment, patch, seed)
    typer.echo(str(target))
