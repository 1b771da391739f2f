"""The report as one HTML page that works offline: text and tables first, figures drawn as they scroll into view."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any

from favorit.reports.contents import Answer, Column, Document, Figure, Gap, Section, Table

# The page loads nothing from anywhere: scripts, styles and data are inside it.
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"


def page(document: Document) -> str:
    """The whole page. All text from runs is escaped; figures are JSON that only the chart library reads."""
    import vl_convert

    # Vega, Vega-Lite and vega-embed, which the page calls as `vegaEmbed`.
    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    static = files("favorit.reports") / "static"
    sections = "".join(_section(section) for section in document.sections)
    links = "".join(f'<a href="#{escape(each.name)}">{escape(each.title)}</a>' for each in document.sections)
    facts = " · ".join(f"{escape(name)} {escape(value)}" for name, value in document.facts.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(document.title)}</title>
<style>{(static / "page.css").read_text()}</style>
</head>
<body>
<header><h1>{escape(document.title)}</h1><span class="muted">{facts}</span>
<button id="theme" type="button">light / dark</button></header>
<nav>{links}<a href="#runs-section">all runs</a></nav>
{sections}
{_runs_section(document)}
<dialog id="details"><div class="content"></div><form method="dialog"><button>close</button></form></dialog>
<script type="application/json" id="runs">{embedded_json([asdict(run) for run in document.runs])}</script>
<script>{bundle}</script>
<script>{(static / "page.js").read_text()}</script>
</body>
</html>
"""


def embedded_json(value: object) -> str:
    """JSON that is safe inside a script element: no text in it can end the element. Non-finite numbers become null."""
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


def _section(section: Section) -> str:
    parts = [
        f"<h2>{escape(section.title)}</h2>",
        f"<p>{escape(section.question)}</p>" if section.question else "",
        f'<p class="glance">{escape(section.glance)}</p>' if section.glance else "",
        f'<p class="muted">{escape(section.source)}</p>' if section.source else "",
        *(_answer(answer) for answer in section.answers),
        *(_table(section, table) for table in section.tables),
        *(_figure(section, figure) for figure in section.figures),
        _flags(section.flags),
        _gaps(section.gaps),
    ]
    return f'<section id="{escape(section.name)}">{"".join(parts)}</section>'


def _answer(answer: Answer) -> str:
    sentences = " ".join(map(escape, answer.sentences))
    undecided = "" if answer.is_decided else ' <span class="undecided">Undecided.</span>'
    notes = "".join(f'<p class="muted">{escape(text)}</p>' for text in (answer.missing, answer.published) if text)
    return f'<div class="answer"><b>{escape(answer.question)}</b>{sentences}{undecided}{notes}</div>'


def _table(section: Section, table: Table) -> str:
    name = f"{section.name}-{table.name}"
    head = "".join(_title(column) for column in table.columns)
    rows = "".join(_row(table, number, texts, section.flags) for number, texts in enumerate(table.texts()))
    notes = "".join(f'<p class="notes">{escape(note)}</p>' for note in table.notes)
    return f"""<h3>{escape(table.title)}</h3>
<div class="tools"><input type="search" data-table="{escape(name)}" placeholder="filter rows"
 aria-label="filter rows"></div>
<div class="table"><table id="{escape(name)}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{notes}
"""


def _title(column: Column) -> str:
    title = escape(column.title)
    shown = f'<abbr title="{escape(column.explain)}">{title}</abbr>' if column.explain else title
    return f'<th class="{_kind(column)}" aria-sort="none" tabindex="0" scope="col">{shown}</th>'


def _kind(column: Column) -> str:
    return "number" if column.is_number else "text"


def _row(table: Table, number: int, texts: Iterable[str], flags: Mapping[str, str]) -> str:
    runs = f' data-runs="{escape(" ".join(table.runs[number]))}"' if table.runs else ""
    cells = []
    for column, text in zip(table.columns, texts, strict=True):
        marks = table.marks.get((number, column.key), ())
        classes = [_kind(column), *(["best"] if "best" in marks else ["marked"] if marks else [])]
        value = table.rows[number].get(column.key)
        attributes = f' data-value="{"" if value is None else value}"' if _is_sortable(column, value) else ""
        attributes += f' title="{escape(", ".join(marks))}"' if marks else ""
        cells.append(f'<td class="{" ".join(classes)}"{attributes}>{_explained(text, flags)}</td>')
    return f"<tr{runs}>{''.join(cells)}</tr>"


def _is_sortable(column: Column, value: Any) -> bool:
    return column.is_number and (value is None or (isinstance(value, int | float) and math.isfinite(value)))


def _explained(text: str, flags: Mapping[str, str]) -> str:
    """The text escaped, with the meaning of each flag in it shown on hover."""
    if not any(flag in text for flag in flags):
        return escape(text)
    return " ".join(
        f'<abbr title="{escape(flags[word])}">{escape(word)}</abbr>' if word in flags else escape(word)
        for word in text.split(" ")
    )


def _figure(section: Section, figure: Figure) -> str:
    content = embedded_json(figure.specification)
    return f"""<figure id="{escape(f"{section.name}-{figure.name}")}"><figcaption><b>{escape(figure.title)}</b>
<p>{escape(figure.caption)}</p></figcaption><div class="chart"></div>
<script type="application/json">{content}</script></figure>
"""


def _flags(flags: Mapping[str, str]) -> str:
    lines = "".join(f"<li><b>{escape(flag)}</b>: {escape(meaning)}</li>" for flag, meaning in flags.items())
    return f'<div class="notes"><h3>Flags</h3><ul>{lines}</ul></div>' if flags else ""


def _gaps(gaps: Iterable[Gap]) -> str:
    lines = []
    for command, own in groupby(gaps, key=lambda gap: gap.command):
        texts = "<br>".join(escape(f"{gap.what}: {gap.why}") for gap in own)
        lines.append(f"<li>{texts}{f'<br><code>{escape(command)}</code>' if command else ''}</li>")
    return (
        f"<details><summary>Missing parts ({len(lines)})</summary><ul>{''.join(lines)}</ul></details>" if lines else ""
    )


def _runs_section(document: Document) -> str:
    return f"""<section id="runs-section"><h2>All runs</h2>
<div class="tools"><input id="runs-filter" type="search" placeholder="filter runs" aria-label="filter runs">
<span class="muted">{len(document.runs):,} runs; click a row for its configuration and command</span></div>
<div class="table"><table id="all-runs"><thead><tr><th class="text" aria-sort="none" tabindex="0">run</th>
<th class="text" aria-sort="none" tabindex="0">status</th><th class="text" aria-sort="none" tabindex="0">variant</th>
<th class="number" aria-sort="none" tabindex="0">test accuracy</th>
<th class="text" aria-sort="none" tabindex="0">error</th></tr></thead>
<tbody></tbody></table></div><p><button id="runs-more" type="button" hidden>show more</button></p></section>
"""
