"""Converts the plain-text formulas of docstrings, `phi(x) = exp(W x~ - |x~|^2 / 2)`, to LaTeX.

Notation: `x~` is a tilde, `x_n` and `x_(l-1)` subscripts, `x^2` and `D^(1/4)` powers, ` . ` a scalar product, `<-` an
assignment, `lambda ~ Beta(a, b)` a distribution, `(a) / (b)` a fraction. Words are set upright; single
letters, also with digits, are italic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

RELATIONS = {"=": "=", "<-": r"\leftarrow ", "->": r"\to ", " ~ ": r"\sim "}
SYMBOLS = {
    " . ": r"\cdot ",
    "+-": r"\pm ",
    "...": r"\dots ",
    "<=": r"\le ",
    ">=": r"\ge ",
    "*": r"\cdot ",
    "<": "<",
    ">": ">",
    **RELATIONS,
}
WORD = r"\operatorname"
GREEK = {name: f"\\{name} " for name in ("phi", "alpha", "beta", "lambda", "pi", "sigma", "theta")} | {
    "eps": r"\varepsilon "
}
BIG = {"sum": r"\sum ", "mean": r"\operatorname{mean}", "max": r"\max ", "min": r"\min "}
# Words that a formula may contain without calling them as functions. Text with any other word is prose.
NAMES = {
    *(
        "act",
        "sqrt",
        "sum",
        "mean",
        "max",
        "min",
        "base",
        "classes",
        "clamp",
        "column",
        "elu",
        "end",
        "epoch",
        "epochs",
        "every",
        "factor",
        "final",
    ),
    *(
        "gelu",
        "heads",
        "hidden",
        "logits",
        "out",
        "patch",
        "phase",
        "place",
        "position",
        "rate",
        "relu",
        "row",
        "scale",
        "size",
        "start",
    ),
    *("std", "table", "value", "width"),
}
MARKS = {*SYMBOLS, *"+-/^_~|("}
# Signs of prose: the end of a sentence, a space between a word and a bracket, an article.
PROSE = re.compile(r"\S[.:;] |[A-Za-z]{2,} [(\[]|^[aA]( \w|$)")
PUNCTUATION = ".,:;"
SPECIAL = re.compile(r"([\\*_|~<>\[\]$#{}^])")
TOKEN = re.compile(r" \. | ~ |<-|->|\+-|\.\.\.|<=|>=|[A-Za-z]+\d*|\d+(?:\.\d+)?(?:e-?\d+)?|\S")


class FormulaError(ValueError):
    """The text is not a formula."""


def is_formula(text: str) -> bool:
    """True if the text has a relation, such as `=`, and contains only words that formulas use."""
    tokens = TOKEN.findall(text)
    return any(token in RELATIONS for token in tokens) and _knows(tokens, NAMES)


def typeset(prose: str) -> str:
    """Markdown of prose. Formulas in it, such as `x / D^(1/4)`, become `$latex$`; the longest match wins."""
    words = prose.split(" ")
    out = []
    while words:
        length = next((length for length in range(len(words), 0, -1) if _is_run(words[:length])), 0)
        run, words = " ".join(words[: length or 1]), words[length or 1 :]
        formula = run.rstrip(PUNCTUATION)
        out.append(f"${to_latex(formula)}${run[len(formula) :]}" if length else escape(run))
    return " ".join(out)


def escape(text: str) -> str:
    """The text with Markdown's special characters escaped."""
    return SPECIAL.sub(r"\\\1", text)


def _is_run(words: list[str]) -> bool:
    """True if these words are one formula: a variable, or terms with an operator, a power or a subscript."""
    text = " ".join(words).rstrip(PUNCTUATION)
    tokens = TOKEN.findall(text)
    if not any(token[0].isalpha() for token in tokens) or not _knows(tokens, frozenset()) or PROSE.search(text):
        return False
    if not (words[0] and words[-1] and _is_balanced(text)):
        return False
    return len(tokens) == 1 or any(token in MARKS for token in tokens)


def _is_balanced(text: str) -> bool:
    """True if all brackets and bars are closed, and all commas are inside brackets."""
    depth = 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if depth < 0 or (character == "," and not depth):
            return False
    return not depth and text.count("|") % 2 == 0


def _knows(tokens: list[str], names: Set[str]) -> bool:
    """True if every word is a letter, a letter with digits, a subscript, a called function or one of `names`."""
    for before, token, after in zip(["", *tokens], tokens, [*tokens[1:], ""], strict=False):
        if before == "_" and (len(token) <= 2 or token in GREEK):
            continue
        if not token[0].isalpha() or (before != "_" and after in ("(", "[", "_")):
            continue
        if len(token.rstrip("0123456789")) > 1 and token not in {*GREEK, *names}:
            return False
    return True


def to_latex(text: str) -> str:
    """A formula in the notation of docstrings, as LaTeX."""
    tokens = list(TOKEN.findall(text))
    latex = "".join(_sequence(tokens, ""))
    if tokens:
        raise FormulaError(f"{text!r}: {tokens[0]!r} has no opening bracket")
    return latex.strip()


def _sequence(tokens: list[str], closing: str) -> Iterator[str]:
    """Yields the LaTeX of terms up to the closing bracket, and removes both from `tokens`."""
    before = ""
    while tokens and not (tokens[0] == closing or (tokens[0] in ")]" and not closing)):
        if tokens[0] == "/" and before.startswith("(") and tokens[1:2] == ["("]:
            del tokens[0]
            before = f"\\frac{{{_inside(before)}}}{{{_inside(_term(tokens))}}}"
            continue
        yield before
        term = _term(tokens)
        before = f"{_space(before, term)}{term}"
    yield before
    if closing:
        if not tokens:
            raise FormulaError(f"{closing!r} is missing")
        del tokens[0]


def _space(before: str, term: str) -> str:
    """A thin space if one of two adjacent factors is a word, else ""."""
    if term.startswith(WORD) and before and (before[-1].isalnum() or before[-1] in "})"):
        return r"\,"
    return r"\," if before.removeprefix(r"\,").startswith(WORD) and term[0].isalnum() else ""


def _term(tokens: list[str]) -> str:
    """The LaTeX of an atom with its tilde, prime, subscript and power."""
    latex = _atom(tokens)
    while tokens and tokens[0] in ("~", "_", "^", "'"):
        mark = tokens.pop(0)
        if mark == "~":
            latex = f"\\tilde{{{latex}}}"
        elif mark == "'":
            latex += "'"
        else:
            latex += f"{mark}{{{_script(tokens)}}}"
    return latex


def _script(tokens: list[str]) -> str:
    if tokens[:1] == ["T"]:
        del tokens[0]
        return r"\top "
    sign = tokens.pop(0) if tokens[:1] == ["-"] else ""
    word = tokens[0] if tokens else ""
    if word.isalpha() and len(word) == 2 and word not in GREEK:  # w_ij
        return sign + tokens.pop(0)
    return sign + _inside(_atom(tokens))


def _atom(tokens: list[str]) -> str:
    if not tokens:
        raise FormulaError("a term is missing")
    token = tokens.pop(0)
    if token in "([":
        return token + "".join(_sequence(tokens, ")" if token == "(" else "]")) + (")" if token == "(" else "]")
    if token == "sqrt":
        return f"\\sqrt{{{_inside(_atom(tokens))}}}"
    if token == "E" and tokens[:1] == ["["]:
        return r"\mathbb{E}"
    if token in SYMBOLS:
        return SYMBOLS[token]
    if token in ", ;":
        return r",\; "
    if token[0].isalpha():
        return _word(token)
    return re.sub(r"^1e(-?\d+)$", r"10^{\1}", token)


def _word(word: str) -> str:
    name = word.rstrip("0123456789")
    if name in GREEK or name in BIG:
        return GREEK.get(name) or BIG[name]
    index = f"_{{{word[len(name) :]}}}" if name != word else ""
    return (name if len(name) == 1 else f"{WORD}{{{name}}}") + index


def _inside(latex: str) -> str:
    """The term without its outer brackets."""
    return latex[1:-1] if latex.startswith("(") and latex.endswith(")") else latex
