"""`favorit doctor`: what the attention of a trained model does, and what could stand in for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from favorit.bench.doctor_tally import Finding


def doctor(
    run: Annotated[Path, typer.Argument(help="A run's folder, such as runs/0123456789abcdef.", metavar="RUN")],
    images: Annotated[
        int, typer.Option(help="Validation images to look at (test images where the run set none aside).")
    ] = 64,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data sets are; else FAVORIT_DATA, else the user's cache.")
    ] = None,
    m: Annotated[str, typer.Option(help="Numbers of features to try favor with.", metavar="M,M,...")] = "64,128,256",
    heads: Annotated[bool, typer.Option("--heads", help="Show a row for each head too.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write the numbers of every head as CSV.", metavar="FILE.csv")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw layers and heads.", metavar="FILE.png")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Look at the attention of a trained model, layer by layer and head by head: lengths of q and k, entropy, effective
    rank, the error of linear kernels to softmax beside uniform averaging, and what to do.

    Examples: [bold]favorit doctor runs/0123456789abcdef[/bold],
    [bold]favorit doctor runs/0123456789abcdef --m 32,64,128 --out heads.csv --figure heads.png[/bold]
    """
    from favorit.bench.approximation_figure import save
    from favorit.bench.doctor import diagnose
    from favorit.bench.doctor_advice import advise, summarise
    from favorit.bench.doctor_figure import draw, grids
    from favorit.bench.speed import write_csv
    from favorit.cli.approximation import numbers
    from favorit.cli.console import check_pictures, check_places, open_console
    from favorit.cli.progress import long_work

    check_places(out=out)
    check_pictures(figure=figure)
    console = open_console(stderr=as_json)
    with long_work(console, "layers") as listen:
        findings = diagnose(run, images=images, data_dir=data_dir, counts=numbers("--m", m), listen=listen)
    whole = [finding for finding in findings if finding.head is None]
    for table in _tables(run.name, findings if heads else whole):
        console.print(table, "", markup=False)
    legend = "|q||k|/sqrt(D) bounds the logits: mean (95 %). Entropy: 1 is uniform. Rank: effective, of softmax and of its own weights."
    console.print(legend, "", soft_wrap=True, sep="\n")
    for each in map(advise, whole):
        console.print(f"layer {each.layer}: {each.verdict} ({each.reason})", markup=False, soft_wrap=True)
    console.print()
    for line in summarise(findings):
        console.print(line, markup=False, soft_wrap=True)
    if out is not None:
        write_csv([finding.row() for finding in findings], out)
    if figure is not None:
        save(draw(grids(findings), f"Attention of {run.name}, layer by layer and head by head"), figure)
    if as_json:
        advice = [asdict(advise(layer)) for layer in whole]
        found = [asdict(finding) for finding in findings]
        typer.echo(json.dumps({"run": str(run), "findings": found, "advice": advice, "summary": summarise(findings)}))


def _tables(run: str, findings: Sequence[Finding]) -> Iterator[Table]:
    """What the weights are like, then the errors: each narrow enough for most screens."""
    from favorit.bench.doctor_tally import OWN
    from favorit.cli.console import open_table

    first = findings[0]
    names = dict.fromkeys((OWN, *first.errors))
    by_head = {"head": "right"} if len({finding.head for finding in findings}) > 1 else {}
    numbers = dict.fromkeys(("|q|", "|k|", "|q||k|/sqrt(D)", "entropy", "rank", "own_rank"), "right")
    state = open_table(
        f"{run}: {first.tokens} tokens, heads of width {first.head_dim}",
        layer="right",
        **by_head,
        mixer="left",
        **numbers,
    )
    # With a space in place of the bracket a narrow screen breaks the name there.
    titles = {name.replace("(", " ").rstrip(")"): "right" for name in names}
    errors = open_table("error to softmax on the same q and k", layer="right", **by_head, **titles)
    for finding in findings:
        place = (str(finding.layer), str(finding.head or "all")) if by_head else (str(finding.layer),)
        norms = (f"{finding.q_norm:.1f}", f"{finding.k_norm:.1f}", f"{finding.length:.1f} ({finding.length_95:.1f})")
        state.add_row(
            *place, finding.mixer, *norms, f"{finding.entropy:.2f}", f"{finding.rank:.1f}", f"{finding.own_rank:.1f}"
        )
        errors.add_row(*place, *(f"{finding.errors[name]:.3f}" for name in names))
    yield state
    yield errors
