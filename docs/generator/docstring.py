"""The parts of a component's docstring, as Markdown.

phi(x) = exp(W x~ - |x~|^2 / 2), x~ = x / D^(1/4): words; O(N M D).      formula, words and cost

Any number of paragraphs.

Source: Choromanski et al. 2021, Rethinking Attention with Performers, arXiv 2009.14794.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from generator.formula import is_formula, to_latex, typeset

COST = re.compile(r"O\((?:[^()]|\([^()]*\))*\)")
ENDS = re.compile(r"(?<=[\w)\]'`])([:;.](?: |$))")
ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")


@dataclass(frozen=True)
class Described:
    """The parts of a docstring, each as Markdown."""

    formulas: tuple[str, ...]
    words: str
    cost: str
    body: tuple[str, ...]
    source: str


def describe(docstring: str) -> Described:
    """The parts of a component's docstring; a missing part is empty."""
    first, *rest = (" ".join(part.split()) for part in inspect.cleandoc(docstring).split("\n\n"))
    pieces = ENDS.split(first)[::2]
    formulas = tuple(to_latex(piece) for piece in pieces if is_formula(piece))
    costs = [piece for piece in pieces if COST.match(piece)]
    words = [piece for piece in pieces if piece and piece not in costs and not is_formula(piece)]
    sources = [part.removeprefix("Source: ") for part in rest if part.startswith("Source: ")]
    return Described(
        formulas,
        _sentence("; ".join(markdown(piece) for piece in words)),
        "; ".join(_cost(piece) for piece in costs),
        tuple(markdown(part) for part in rest if not part.startswith("Source: ")),
        " ".join(ARXIV.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", markdown(part)) for part in sources),
    )


def markdown(text: str) -> str:
    """The text with its formulas typeset. Code in backticks stays unchanged, and prose is escaped for Markdown."""
    parts = text.split("`")
    return "".join(f"`{part}`" if index % 2 else _prose(part) for index, part in enumerate(parts))


def _prose(text: str) -> str:
    pieces = ENDS.split(text)
    return "".join(f"${to_latex(piece)}$" if is_formula(piece) else typeset(piece) for piece in pieces)


def _cost(text: str) -> str:
    found = COST.findall(text)
    return "".join(
        f"{typeset(before)}{f'${to_latex(cost)}$' if cost else ''}"
        for before, cost in zip(COST.split(text), [*found, ""], strict=True)
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
