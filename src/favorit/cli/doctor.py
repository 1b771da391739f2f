"""`favorit doctor`: statistics of the attention of a trained model, and which mixer could replace it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from favorit.bench.doctor.layer_stats import Finding


def doctor(
    run: Annotated[Path, typer.Argument(help="Folder of a run, such as runs/0123456789abcdef.", metavar="RUN")],
    images: Annotated[
        int, typer.Option(help="Number of validation images (test images if the run has no validation set).")
    ] = 64,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data directory. Default: FAVORIT_DATA, else the user's cache directory.")
    ] = None,
    m: Annotated[str, typer.Option(help="Feature counts to try favor with.", metavar="M,M,...")] = "64,128,256",
    heads: Annotated[bool, typer.Option("--heads", help="Also show a row for each head.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write the statistics of all heads as CSV.", metavar="FILE.csv")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw maps of layers and heads.", metavar="FILE.png")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Analyze the attention of a trained model by layer and head.

    Reports norms of q and k, entropy, effective rank, and the error of linear kernels and of uniform averaging relative
    to softmax, with advice for each layer.

    Examples: [bold]favorit doctor runs/0123456789abcdef[/bold],
    [bold]favorit doctor runs/0123456789abcdef --m 32,64,128 --out heads.csv --figure heads.png[/bold]
    """
    from favorit.bench.doctor.diagnosis import doctor as diagnose
    from favorit.bench.doctor.figure import draw, grids
    from favorit.cli.approximation import parse_counts
    from favorit.cli.console import check_figures, check_outputs, open_console
    from favorit.cli.progress import delayed_bar
    from favorit.export import save_figure, write_csv

    check_outputs(out=out)
    check_figures(figure=figure)
    console = open_console(stderr=as_json)
    with delayed_bar(console, "layers") as listen:
        found = diagnose(run, images=images, data_dir=data_dir, counts=parse_counts("--m", m), listen=listen)
    findings = found.findings
    whole = [finding for finding in findings if finding.head is None]
    for table in _tables(run.name, findings if heads else whole):
        console.print(table, "", markup=False)
    legend = (
        "|q||k|/sqrt(D): upper bound of the logits, mean (95 % quantile). entropy: of the softmax weights, 1 is "
        "uniform. rank, own rank: effective rank of the softmax weights and of the layer's own weights."
    )
    console.print(legend, "", soft_wrap=True, sep="\n")
    for each in found.advice:
        console.print(f"layer {each.layer}: {each.verdict} ({each.reason})", markup=False, soft_wrap=True)
    console.print()
    for line in found.summary:
        console.print(line, markup=False, soft_wrap=True)
    if out is not None:
        write_csv([finding.row() for finding in findings], out)
    if figure is not None:
        save_figure(draw(grids(findings), f"Attention of {run.name} by layer and head"), figure)
    if as_json:
        report = {
            "run": str(run),
            "findings": [asdict(finding) for finding in findings],
            "advice": [asdict(each) for each in found.advice],
            "summary": found.summary,
        }
        typer.echo(json.dumps(report))


def _tables(run: str, findings: Sequence[Finding]) -> Iterator[Table]:
    """A table of statistics and a table of errors. One table of both would not fit on a narrow terminal."""
    from favorit.bench.doctor.layer_stats import OWN
    from favorit.cli.console import open_table

    first = findings[0]
    mixers = dict.fromkeys((OWN, *first.errors))
    by_head = {"head": "right"} if len({finding.head for finding in findings}) > 1 else {}
    columns = dict.fromkeys(("|q|", "|k|", "|q||k|/sqrt(D)", "entropy", "rank", "own_rank"), "right")
    statistics = open_table(
        f"{run}: {first.tokens} tokens, heads of width {first.head_dim}",
        layer="right",
        **by_head,
        mixer="left",
        **columns,
    )
    # Replace the parenthesis with a space, where a narrow terminal can break the line.
    titles = {name.replace("(", " ").rstrip(")"): "right" for name in mixers}
    errors = open_table("error relative to softmax on the same q and k", layer="right", **by_head, **titles)
    for finding in findings:
        label = (str(finding.layer), str(finding.head or "all")) if by_head else (str(finding.layer),)
        norms = (f"{finding.q_norm:.1f}", f"{finding.k_norm:.1f}")
        bound = f"{finding.logit_bound:.1f} ({finding.logit_bound_95:.1f})"
        ranks = (f"{finding.rank:.1f}", f"{finding.own_rank:.1f}")
        statistics.add_row(*label, finding.mixer, *norms, bound, f"{finding.entropy:.2f}", *ranks)
        errors.add_row(*label, *(f"{finding.errors[name]:.3f}" for name in mixers))
    yield statistics
    yield errors
