"""Options that several commands have in common: the fields of a dataclass, written down once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from typing import Any


def with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the fields of its first parameter, a dataclass, in place of that parameter: each is an option of
    its own.
    """
    first, *rest = signature(command, eval_str=True).parameters.values()
    fields = signature(first.annotation, eval_str=True).parameters

    @wraps(command)
    def flat(**values: Any) -> None:
        command(first.annotation(**{name: values.pop(name) for name in fields}), **values)

    # What typer reads the options from.
    flat.__signature__ = Signature([each.replace(kind=each.KEYWORD_ONLY) for each in (*fields.values(), *rest)])  # type: ignore[attr-defined]
    return flat
