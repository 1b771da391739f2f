"""`favorit bench peers`: our speed compared with other libraries."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from favorit.cli.shared import DataDir, Repeats, TableForm, with_fields
from favorit.terminal import echo

if TYPE_CHECKING:
    from favorit.bench.peers.comparison import Mode
    from favorit.bench.peers.table import Row

TITLES = (
    *("ours", "peer", "case", "ours ms", "quartiles", "peer ms", "peer quartiles"),
    *("ratio", "both tuned", "both default", "of limit", "cache penalty", "epoch s", "check"),
)
# Columns that a narrow terminal leaves out, the least important first.
OPTIONAL = (
    *("peer quartiles", "quartiles", "cache penalty", "check", "of limit"),
    *("both default", "case", "epoch s", "both tuned"),
)


@with_fields
def peers(
    case: Annotated[str, typer.Option(help="attention, step, hybrid, or all.")] = "all",
    only: Annotated[str, typer.Option(help="Only comparisons whose name contains this text.", metavar="TEXT")] = "",
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 128,
    heads: Annotated[int, typer.Option(min=1, help="Heads, in the cases attention and step.")] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens, in the case attention.")] = 65,
    head_dim: Annotated[int, typer.Option(min=1, help="Head width, in the cases attention and step.")] = 16,
    m: Annotated[int, typer.Option(min=1, help="Features.")] = 128,
    depth: Annotated[int, typer.Option(min=1, help="Layers, in the case step.")] = 6,
    repeats: Repeats = 11,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Also time ours with torch.compile, in extra rows (compiling is slow).")
    ] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Also time ours in bf16 (autocast), in extra rows.")] = False,
    data: Annotated[
        str | None,
        typer.Option(
            help="Data set of the case hybrid. Default: cifar10 if its files are present, else synthetic images."
        ),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Also write the table as CSV.", metavar="FILE.csv")] = None,
    *,
    form: TableForm,
) -> None:
    """Compare our speed with other libraries.

    The peers are torch, performer-pytorch, linformer, vit-pytorch and transformers, as far as they are installed, and a
    re-creation of the published hybrid. Outputs and gradients are compared first, with the peer's weights in ours; a
    comparison that differs is not timed. Each side runs in separate processes, which are timed interleaved.

    Examples: [bold]favorit bench peers --case hybrid --only relu --bf16[/bold],
    [bold]favorit bench peers --out peers.csv[/bold]
    """
    from favorit import measure
    from favorit.bench.peers.comparison import Sizes
    from favorit.bench.peers.table import columns, measure_rows, select
    from favorit.bench.spread import describe_undecided
    from favorit.cli.console import check_outputs
    from favorit.cli.machine import reserve_machine
    from favorit.cli.progress import delayed_bar
    from favorit.data.datasets import DATASETS
    from favorit.data.sources import data_directory, present
    from favorit.export import write_csv

    check_outputs(out=out)
    console = form.open_console()
    keys = select(case, only, m)
    if data is not None:
        DATASETS.canonical(data)  # an unknown name fails before anything is timed
    source = data or ("cifar10" if present("cifar10", data_directory(data_dir)) else Sizes.data)
    sizes = Sizes(batch, heads, tokens, head_dim, m, depth, source, None if data_dir is None else str(data_dir))
    modes: list[Mode] = ["eager"]
    if compiled:
        modes.append("compiled")
    if bf16:
        modes.append("bf16")
    machine = measure.fingerprint()
    rows: list[Row] = []
    with reserve_machine(console) as monitor, delayed_bar(console, "comparing") as listen:
        total = len(keys) * len(modes)
        for row in measure_rows(keys, sizes, repeats=repeats, modes=modes):
            rows.append(row)
            listen(len(rows), total)
            if not console.is_terminal:
                console.print(
                    f"{len(rows)} of {total}: {_name(row)} / {row.peer}: {row.check}", markup=False, soft_wrap=True
                )
    heading = (
        f"{measure.describe_hardware(machine)}, batch {batch}; "
        f"median of {repeats} rounds or more, separate processes, interleaved; ratios with 95 % interval"
    )
    form.write(TITLES, map(_cells, rows), right=TITLES[1:], optional=OPTIONAL, heading=heading)
    notes = [f"{row.case}, {_name(row)} / {row.peer}: {row.check}" for row in rows if row.ours_ms is None]
    notes += [
        "ratio: peer time / our time, above 1 ours is faster; the peer has the default settings of glibc and OpenMP, "
        "ours has favorit's (large buffers kept, short spinning); both tuned: favorit's settings on both sides; "
        "both default: default settings on both sides",
        "of limit: achieved share of this machine's matrix-product limit",
        "cache penalty: slowdown of an operation when half of its input was written by another core; "
        "far above 1 if the cores share no cache",
    ]
    notes += describe_undecided([row.ratio for row in rows if row.ratio is not None], repeats)
    if any(row.ours_epoch for row in rows):
        notes.append(f"epoch: extrapolated from one step to 50,000 images; images from {source}")
    for note in notes:
        console.print(note, markup=False, soft_wrap=True)
    if out is not None:
        write_csv([columns(row) for row in rows], out)
    if form.as_json:
        report = {
            "environment": machine,
            "sizes": asdict(sizes),
            "rows": [columns(row) for row in rows],
            "foreign_load": monitor.json,
        }
        echo(json.dumps(report))


def _name(row: Row) -> str:
    return row.ours if row.mode == "eager" else f"{row.ours}, {row.mode}"


def _cells(row: Row) -> list[str]:
    return [
        _name(row),
        row.peer,
        row.case,
        _number(row.ours_ms),
        _range(row.ours_low, row.ours_high),
        _number(row.peer_ms),
        _range(row.peer_low, row.peer_high),
        *("" if ratio is None else ratio.verdict for ratio in (row.ratio, row.ratio_tuned, row.ratio_default)),
        _number(row.gemm_share),
        _number(row.cache_penalty, "x"),
        "" if row.ours_epoch is None else f"{row.ours_epoch:.1f} / {row.peer_epoch:.1f}",
        "not timed" if row.ours_ms is None else row.check,
    ]


def _number(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.2f}{unit}"


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.1f} to {high:.1f}"
