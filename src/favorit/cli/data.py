"""`favorit data`: list data sets, fetch their files, draw overviews."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from favorit.cli.shared import DataDir, SkipUnreadable, TableForm, with_fields
from favorit.terminal import echo

app = typer.Typer(help="Data sets: list, fetch, show.", no_args_is_help=True, rich_markup_mode="rich")


@app.command("list")
@with_fields
def list_(
    data_dir: DataDir = None,
    *,
    form: TableForm,
) -> None:
    """List the data sets: classes, size, license, and whether their files are present.

    Example: [bold]favorit data list[/bold]
    """
    from favorit.data.datasets import CARDS
    from favorit.data.sources import SOURCES, data_directory, present

    root = data_directory(data_dir)
    files_present = {name: present(name, root) if name in SOURCES else None for name in CARDS}
    if form.as_json:
        rows = {
            name: {
                "classes": len(card.classes) or None,
                "shape": card.shape,
                "licence": card.licence,
                "citation": card.citation,
            }
            for name, card in CARDS.items()
        }
        echo(json.dumps({name: row | {"present": files_present[name] is not False} for name, row in rows.items()}))
        return
    words = {True: "present", False: "absent", None: "not needed"}
    written = {"folder": "folder:PATH", "synthetic": "synthetic(...)"}
    table = [
        (
            written.get(name, name),
            str(len(card.classes) or "any"),
            card.shape,
            card.images,
            card.licence,
            words[present],
        )
        for (name, card), present in zip(CARDS.items(), files_present.values(), strict=True)
    ]
    titles = ["name", "classes", "size", "images", "license", "files"]
    form.write(titles, table, right=titles[1:4], heading=f"data directory: {root}", wrap="license")


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="A data set from 'favorit data list'.", metavar="NAME")],
    data_dir: DataDir = None,
) -> None:
    """Fetch the files of a data set into the data directory, and verify their checksums.

    Examples: [bold]favorit data fetch cifar10[/bold], [bold]favorit data fetch mnist --data-dir data[/bold]
    """
    from favorit.data.datasets import load_dataset
    from favorit.data.sources import SOURCES, data_directory

    dataset = load_dataset(name, data_dir)
    where = f"in {data_directory(data_dir)}" if name in SOURCES else "no download needed"
    echo(f"{dataset.name}: {len(dataset.train):,} training and {len(dataset.test):,} test images, {where}")


@app.command("show")
def show(
    name: Annotated[
        str,
        typer.Argument(help="A data set, such as digits, 'synthetic(size=64)' or folder:PATH.", metavar="NAME"),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The picture file; default: NAME.png.", metavar="FILE.png")
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option("--augment", help="Augmentation steps to show, such as 'crop(4)|flip'.", metavar="STEPS"),
    ] = None,
    patch: Annotated[int | None, typer.Option("--patch", min=1, help="Side of a patch in pixels.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed for the choice of samples.")] = 0,
    skip_unreadable: SkipUnreadable = False,
    data_dir: DataDir = None,
) -> None:
    """Draw an overview of a data set: samples by class, augmentation steps, normalized image (black is -2, white 2),
    channels, histograms, patches. Of a folder, print how images get their size, unreadable files, copies, and classes
    with few images.

    Example: [bold]favorit data show cifar10 --out cifar10.png --augment "crop(4)|flip|rotate(5)"[/bold]
    """
    from favorit.cli.console import check_figures
    from favorit.data.datasets import load_dataset, with_values
    from favorit.data.show_figure import save_picture
    from favorit.data.show_text import describe

    plain = "folder" if name.startswith("folder:") else name.partition("(")[0]
    target = out or Path(f"{plain}.png")
    check_figures(out=target)
    dataset = load_dataset(with_values(name, skip_unreadable=True) if skip_unreadable else name, data_dir)
    save_picture(dataset, target, augment, patch, seed)
    for line in describe(dataset):
        echo(line)
    echo(str(target))
