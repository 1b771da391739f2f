"""`favorit doctor`: statistics of the attention of a trained model, and which mixer could replace it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from favorit.cli.shared import RUN, DataDir, RunsFolder, TableForm, with_fields
from favorit.terminal import echo

if TYPE_CHECKING:
    from favorit.bench.doctor.layer_stats import Finding


@with_fields
def doctor(
    run: Annotated[Path, typer.Argument(help=RUN, metavar="RUN")],
    images: Annotated[
        int, typer.Option(help="Number of validation images (test images if the run has no validation set).")
    ] = 64,
    data_dir: DataDir = None,
    m: Annotated[str, typer.Option(help="Feature counts to try favor with.", metavar="M,M,...")] = "64,128,256",
    heads: Annotated[bool, typer.Option("--heads", help="Also show a row for each head.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write the statistics of all heads as CSV.", metavar="FILE.csv")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw maps of layers and heads.", metavar="FILE.png")] = None,
    runs: RunsFolder = Path("runs"),
    *,
    form: TableForm,
) -> None:
    """Analyze the attention of a trained model by layer and head.

    Reports norms of q and k, entropy, effective rank, and the error of linear kernels and of uniform averaging relative
    to softmax, with advice for each layer.

    Examples: [bold]favorit doctor 0123[/bold],
    [bold]favorit doctor runs/0123456789abcdef --m 32,64,128 --out heads.csv --figure heads.png[/bold]
    """
    from favorit.bench.doctor.diagnosis import doctor as diagnose
    from favorit.bench.doctor.figure import draw, grids
    from favorit.cli.approximation import parse_counts
    from favorit.cli.console import check_figures, check_outputs
    from favorit.cli.progress import delayed_bar
    from favorit.export import save_figure, write_csv
    from favorit.training.find import open_run

    check_outputs(out=out)
    check_figures(figure=figure)
    run = open_run(run, runs).path
    console = form.open_console()
    with delayed_bar(console, "layers") as listen:
        found = diagnose(run, images=images, data_dir=data_dir, counts=parse_counts("--m", m), listen=listen)
    findings = found.findings
    whole = [finding for finding in findings if finding.head is None]
    _write(form, run.name, findings if heads else whole)
    console.print()
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
    if form.as_json:
        report = {
            "run": str(run),
            "findings": [asdict(finding) for finding in findings],
            "advice": [asdict(each) for each in found.advice],
            "summary": found.summary,
        }
        echo(json.dumps(report))


def _write(form: TableForm, run: str, findings: Sequence[Finding]) -> None:
    """Prints statistics and errors of each finding: as text in two tables, because one would not fit on a narrow
    terminal.
    """
    from favorit.bench.doctor.layer_stats import OTHERS, OWN

    with_heads = len({finding.head for finding in findings}) > 1
    labels = [_label(finding, with_heads) for finding in findings]
    statistics = list(map(_statistics, findings))
    names = dict.fromkeys((OWN, *findings[0].errors))
    errors = [{name: f"{finding.errors[name]:.3f}" for name in names} for finding in findings]
    heading = f"{run}: {findings[0].tokens} tokens, heads of width {findings[0].head_dim}"
    about_errors = "error relative to softmax on the same q and k"
    if form.is_text:
        _write_rows(form, map(or_, labels, statistics), heading)
        form.say()
        # Without parentheses, 8 mixers fit on 80 columns.
        short = [{name.replace("(", " ").rstrip(")"): cell for name, cell in row.items()} for row in errors]
        _write_rows(form, map(or_, labels, short), about_errors, optional=OTHERS)
    else:
        named = [{f"error {name}": cell for name, cell in row.items()} for row in errors]
        _write_rows(form, map(or_, labels, map(or_, statistics, named)), f"{heading}; error: {about_errors}")


def _write_rows(form: TableForm, cells: Iterable[dict[str, str]], heading: str, optional: Sequence[str] = ()) -> None:
    rows = list(cells)
    right = [title for title in rows[0] if title != "mixer"]
    form.write(list(rows[0]), [list(row.values()) for row in rows], right=right, heading=heading, optional=optional)


def _label(finding: Finding, with_heads: bool) -> dict[str, str]:
    return {"layer": str(finding.layer)} | ({"head": str(finding.head or "all")} if with_heads else {})


def _statistics(finding: Finding) -> dict[str, str]:
    return {
        "mixer": finding.mixer,
        "|q|": f"{finding.q_norm:.1f}",
        "|k|": f"{finding.k_norm:.1f}",
        "|q||k|/sqrt(D)": f"{finding.logit_bound:.1f} ({finding.logit_bound_95:.1f})",
        "entropy": f"{finding.entropy:.2f}",
        "rank": f"{finding.rank:.1f}",
        "own rank": f"{finding.own_rank:.1f}",
    }
