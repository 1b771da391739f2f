"""`favorit bench peers`: ours against other libraries."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from favorit.bench.comparison import Way
    from favorit.bench.peers import Row

TITLES = (
    *("ours", "peer", "case", "ours ms", "quartiles", "peer ms", "its quartiles"),
    *("ratio", "kept", "plain", "of limit", "handed over", "epoch s", "check"),
)
# What a narrow screen has no room for, the least needed first.
OPTIONAL = ("its quartiles", "quartiles", "handed over", "check", "of limit", "plain", "case", "epoch s", "kept")


def peers(
    case: Annotated[str, typer.Option(help="attention, step, hybrid, or all.")] = "all",
    only: Annotated[str, typer.Option(help="Those comparisons with these words in their names.", metavar="WORDS")] = "",
    batch: Annotated[int, typer.Option(min=1, help="Images of a batch.")] = 128,
    heads: Annotated[int, typer.Option(min=1, help="Heads, for attention and step.")] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens, for attention.")] = 65,
    head_dim: Annotated[int, typer.Option(min=1, help="Head width, for attention and step.")] = 16,
    m: Annotated[int, typer.Option(min=1, help="Features.")] = 128,
    depth: Annotated[int, typer.Option(min=1, help="Layers, for step.")] = 6,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repetitions, in turn.")] = 11,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Also ours through torch.compile, in rows of its own: slow to begin.")
    ] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Also ours in bf16 (autocast), in rows of its own.")] = False,
    data: Annotated[
        str | None, typer.Option(help="What the hybrid reads; cifar10 where its files are, else synthetic images.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data sets are; else FAVORIT_DATA, else the user's cache.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the table as CSV.", metavar="FILE.csv")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Time ours against performer-pytorch, linformer, vit-pytorch, transformers and a re-creation of the published
    hybrid, where installed.

    Each runs in a process of its own with its defaults, in turn. Outputs and gradients are compared first, with the
    peer's weights in ours; what differs is not timed. Examples: [bold]favorit bench peers --case hybrid --only relu
    --bf16[/bold], [bold]favorit bench peers --out peers.csv[/bold]
    """
    from favorit import measure
    from favorit.bench.comparison import Sizes
    from favorit.bench.peers import chosen, compare
    from favorit.bench.speed import write_csv
    from favorit.cli.columns import write_columns
    from favorit.cli.console import check_places, open_console
    from favorit.cli.measuring import alone
    from favorit.cli.progress import long_work
    from favorit.data.datasets import DATASETS
    from favorit.data.sources import data_directory, present

    check_places(out=out)
    console = open_console(stderr=as_json)
    keys = chosen(case, only, m)
    if data is not None:
        DATASETS.canonical(data)  # a mistake in its name shows before anything is timed
    source = data or ("cifar10" if present("cifar10", data_directory(data_dir)) else Sizes.data)
    sizes = Sizes(batch, heads, tokens, head_dim, m, depth, source, None if data_dir is None else str(data_dir))
    ways: list[Way] = ["eager"]
    if compiled:
        ways.append("compiled")
    if bf16:
        ways.append("bf16")
    machine = measure.fingerprint()
    rows: list[Row] = []
    with alone(console) as watch, long_work(console, "comparing") as listen:
        total = len(keys) * len(ways)
        for row in compare(keys, sizes, repeats=repeats, ways=ways):
            rows.append(row)
            listen(len(rows), total)
            if not console.is_terminal:
                console.print(
                    f"{len(rows)} of {total}: {_name(row)} / {row.peer}: {row.check}", markup=False, soft_wrap=True
                )
    heading = f"{machine['threads']} threads, {machine['processor']}, batch {batch}; median of {repeats}, each in its own process, in turn"
    write_columns(TITLES, map(_cells, rows), right=TITLES[1:], optional=OPTIONAL, heading=heading, err=as_json)
    notes = [f"{row.case}, {_name(row)} / {row.peer}: {row.check}" for row in rows if row.ours_ms is None]
    notes += [
        "ratio: the peer with default settings over ours as this command runs it (above 1 ours is faster); kept: large buffers kept and "
        "short spinning on both sides; plain: defaults of glibc and OpenMP on both sides",
        "handed over: how many times as long an operation takes on numbers that another thread wrote; far above 1 without a common cache",
    ]
    if any(row.ours_epoch for row in rows):
        notes.append(f"epoch: extrapolated from one step to 50,000 images; read from {source}")
    for note in notes:
        console.print(note, markup=False, soft_wrap=True)
    if out is not None:
        write_csv(rows, out)
    if as_json:
        shown = [asdict(row) for row in rows]
        typer.echo(
            json.dumps({"environment": machine, "sizes": asdict(sizes), "rows": shown, "foreign_load": watch.json})
        )


def _name(row: Row) -> str:
    return row.ours if row.way == "eager" else f"{row.ours}, {row.way}"


def _cells(row: Row) -> list[str]:
    return [
        _name(row),
        row.peer,
        row.case,
        _figure(row.ours_ms),
        _range(row.ours_low, row.ours_high),
        _figure(row.peer_ms),
        _range(row.peer_low, row.peer_high),
        *(_figure(ratio, "x") for ratio in (row.ratio, row.ratio_kept, row.ratio_plain)),
        _figure(row.gemm_share),
        _figure(row.handing_over, "x"),
        "" if row.ours_epoch is None else f"{row.ours_epoch:.1f} / {row.peer_epoch:.1f}",
        "not timed" if row.ours_ms is None else row.check,
    ]


def _figure(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.2f}{unit}"


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.1f}..{high:.1f}"
