"""The report as one HTML page that works offline: text and tables first, figures drawn as they scroll into view."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files

from favorit.charts.save import specification
from favorit.report.contents import Document, Figure, Section, Table


def page(document: Document) -> str:
    """The whole page. All text from runs is escaped; figures are JSON that only the chart library reads."""
    import vl_convert

    static = files("favorit.report") / "static"
    body = "".join(_section(section) for section in document.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(document.title)}</title>
<style>{(static / "page.css").read_text()}</style>
</head>
<body>
<h1>{escape(document.title)}</h1>
{body}
<script>{vl_convert.javascript_bundle()}</script>
<script type="module">{(static / "page.js").read_text()}</script>
</body>
</html>
"""


def _section(section: Section) -> str:
    tables = "".join(map(_table, section.tables))
    figures = "".join(map(_figure, section.figures))
    return f"<section id='{escape(section.name)}'><h2>{escape(section.title)}</h2>{tables}{figures}</section>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column.title)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.texts())
    return f"<h3>{escape(table.title)}</h3><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _figure(figure: Figure) -> str:
    content = embedded_json(specification(figure.chart))
    return (
        f"<figure><figcaption>{escape(figure.title)}</figcaption><div class='chart'></div>"
        f"<script type='application/json'>{content}</script></figure>"
    )


def embedded_json(value: object) -> str:
    """JSON that is safe inside a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
