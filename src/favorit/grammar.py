"""Reads text into a syntax tree of bounded size. Errors are one line and name the bound."""

from __future__ import annotations

import ast
import warnings

from favorit.errors import FavoritError

MAX_CHARACTERS = 10_000
MAX_DEPTH = 20  # brackets and operators inside each other
SHOWN = 80  # characters of a text in an error


def expression(text: str) -> tuple[str, ast.expr]:
    """(text without surrounding spaces, its syntax tree)."""
    if not isinstance(text, str):
        raise FavoritError(f"a spec is text such as 'relu(m=64)', not {quote(text)}")
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        raise FavoritError(
            f"cannot read the spec {quote(text)}: it has {len(text):,} characters, at most {MAX_CHARACTERS:,} are valid"
        )
    too_deep = FavoritError(f"cannot read the spec {quote(text)}: it is nested more than {MAX_DEPTH} levels deep")
    if _bracket_depth(text) > MAX_DEPTH:  # checked first: Python parses deep brackets slowly
        raise too_deep
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of the parser, for example for an invalid escape sequence
            node = ast.parse(text, mode="eval").body
    except (RecursionError, MemoryError):
        raise too_deep from None
    except (SyntaxError, ValueError):
        raise FavoritError(f"cannot read the spec {quote(text)}: write name or name(key=value, ...)") from None
    if _depth(node) > MAX_DEPTH:
        raise too_deep
    return text, node


def _bracket_depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _depth(root: ast.expr) -> int:
    """The depth of a syntax tree. A chain such as a|b|c counts as one level. Needs no recursion."""
    deepest, pending = 0, [(root, 1)]
    while pending:
        node, depth = pending.pop()
        deepest = max(deepest, depth)
        for child in ast.iter_child_nodes(node):
            is_chain = isinstance(node, ast.BinOp) and child is node.left and isinstance(child, ast.BinOp)
            pending.append((child, depth if is_chain else depth + 1))  # type: ignore[arg-type]
    return deepest


def operands(node: ast.expr, operator: type[ast.operator]) -> list[ast.expr]:
    """`a|b|c` -> [a, b, c] for the operator `|`; [node] if it is another expression."""
    found = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, operator):
        found.append(node.right)
        node = node.left
    return [node, *reversed(found)]


def quote(value: object) -> str:
    """A value as it is quoted in an error."""
    try:
        return shorten(repr(value).replace("\n", " "))  # of arrays and tensors, which have several lines
    except (ValueError, RecursionError):  # Python prints at most 4,300 digits
        return f"<a {type(value).__name__} that is too large to print>"


def shorten(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
