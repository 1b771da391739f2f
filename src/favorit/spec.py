"""Text specs and registries: `favor(m=128, features=hyperbolic)` becomes a checked call of a registered builder.

The grammar is a subset of Python expressions, parsed with `ast`:

    component   name | name(value, key=value, ...)     values are literals; bare words are strings
    sum         component + component + ...            positions:  learned+rope2d
    pattern     component*n | component | ...          layouts:    relu(m=64)*3|softmax*3
"""

from __future__ import annotations

import ast
import inspect
import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from favorit.errors import FavoritError, unknown

T = TypeVar("T")

BOOLEANS = {"true": True, "false": False}  # as YAML and JSON write them
# Limit on n in `component*n`. Without it, a typo such as softmax*10000000000 would fill the memory.
MAX_REPEATS = 10_000

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Probability = Annotated[float, Field(ge=0, lt=1, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


@dataclass(frozen=True)
class Spec:
    """A component as written: its name and the values of its parameters."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        values = [_format(value) for value in self.args]
        values += [f"{key}={_format(value)}" for key, value in self.kwargs.items()]
        return f"{self.name}({', '.join(values)})" if values else self.name


def parse(text: str) -> Spec:
    """`name(key=value)` -> Spec."""
    return _component(_expression(text), text)


def parse_sum(text: str) -> list[Spec]:
    """`a + b(c=1)` -> [a, b(c=1)]."""

    def terms(node: ast.expr) -> Iterator[ast.expr]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from terms(node.left)
            yield from terms(node.right)
        else:
            yield node

    return [_component(node, text) for node in terms(_expression(text))]


def parse_pattern(text: str) -> list[Spec]:
    """`a*2|b` -> [a, a, b]."""

    def parts(node: ast.expr) -> Iterator[Spec]:
        match node:
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                yield from parts(left)
                yield from parts(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(count))) if 1 <= count <= MAX_REPEATS:
                yield from list(parts(left)) * count
            case _:
                yield _component(node, text)

    return list(parts(_expression(text)))


def literal(text: str) -> Any:
    """The value of a Python literal, or of `true` or `false`. Other text is returned unchanged."""
    if text in BOOLEANS:
        return BOOLEANS[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _expression(text: str) -> ast.expr:
    if not isinstance(text, str):
        raise FavoritError(f"a spec is text such as 'relu(m=64)', not {text!r}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FavoritError(f"cannot read the spec {text!r}: write name or name(key=value, ...)") from None


def _component(node: ast.expr, text: str) -> Spec:
    match node:
        case ast.Name(id=name):
            return Spec(name)
        case ast.Constant(value=None):  # the literal `None`; `none` is an ordinary name
            return Spec("none")
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            values: dict[str, Any] = {}
            for given in keywords:
                if given.arg is None:
                    raise FavoritError(f"cannot read the spec {text!r}: ** is not allowed")
                if given.arg in values:
                    raise FavoritError(f"cannot read the spec {text!r}: {given.arg} is given twice")
                values[given.arg] = _value(given.value, text)
            return Spec(name, tuple(_value(arg, text) for arg in args), values)
    raise FavoritError(f"cannot read {ast.unparse(node)!r} in the spec {text!r}: write name or name(key=value, ...)")


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise FavoritError(
            f"cannot read the value {ast.unparse(node)!r} in the spec {text!r}: write a literal or one word"
        ) from None


def _format(value: Any) -> str:
    """The text that `_value` parses to this value."""
    is_word = isinstance(value, str) and value.isascii() and value.isidentifier() and not keyword.iskeyword(value)
    return value if is_word else repr(value)


@dataclass(frozen=True)
class Parameter:
    """A parameter that a user may set: its type (with pydantic bounds) and its default."""

    annotation: Any
    default: Any = inspect.Parameter.empty

    def check(self, owner: str, name: str, value: Any) -> Any:
        config = None if hasattr(self.annotation, "model_config") else ConfigDict(arbitrary_types_allowed=True)
        try:
            # Strict: True and '3' are not numbers. A list is accepted as a tuple.
            value = tuple(value) if isinstance(value, list) else value
            return TypeAdapter(self.annotation, config=config).validate_python(value, strict=True)
        except ValidationError as error:
            reasons = "; ".join(sorted({problem["msg"].lower() for problem in error.errors()}))
            raise FavoritError(f"{owner}: {name}={_format(value)} is not valid: {reasons}") from None


def parameters_of(function: Callable[..., Any], leave_out: Iterable[str] = ()) -> dict[str, Parameter]:
    """The named parameters of a function or constructor, in order."""
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function, include_extras=True)
    named = inspect.signature(function).parameters.values()
    keep = [p for p in named if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in set(leave_out)]
    return {p.name: Parameter(hints.get(p.name, Any), p.default) for p in keep}


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered variant. `rest` is the parameter that receives all positional values, as in `mlp(2048, 1024)`."""

    name: str
    builder: Callable[..., T]
    parameters: Mapping[str, Parameter]
    context: frozenset[str]
    rest: str | None = None

    @property
    def summary(self) -> str:
        """The first paragraph of the builder's docstring, on one line."""
        return " ".join((inspect.getdoc(self.builder) or "").partition("\n\n")[0].split())

    def resolve(self, spec: Spec) -> dict[str, Any]:
        """The keyword arguments of a spec, each checked against its type."""
        values: dict[str, Any] = {}
        if self.rest and spec.args:
            values[self.rest] = spec.args
        elif len(spec.args) > len(self.parameters):
            raise FavoritError(f"{spec}: {self.name} takes at most {len(self.parameters)} values: {self.signature}")
        else:
            values.update(zip(self.parameters, spec.args, strict=False))
        for key, value in spec.kwargs.items():
            if key not in self.parameters:
                raise unknown(f"parameter of {self.name}", key, self.parameters)
            if key in values:
                raise FavoritError(f"{spec}: {key} is given twice")
            values[key] = value
        for key, parameter in self.parameters.items():
            if parameter.default is inspect.Parameter.empty and key not in values:
                raise FavoritError(f"{spec}: {key} is missing: {self.signature}")
        return {key: self.parameters[key].check(self.name, key, value) for key, value in values.items()}

    @property
    def signature(self) -> str:
        """The call with its defaults, as text."""
        required = inspect.Parameter.empty
        shown = (key if p.default is required else f"{key}={_format(p.default)}" for key, p in self.parameters.items())
        return f"{self.name}({', '.join(shown)})"


class Registry(Generic[T]):
    """The variants of one kind of component, by name.

    A builder has two kinds of keyword arguments. Those in `context` come from the surrounding model (head width, layer
    index) and are passed to the builders that have them. All others are parameters that a user may write in a spec.

    `within(spec)` is the context in which a component is built: `allocation.within_memory` for modules of torch.
    """

    def __init__(
        self,
        noun: str,
        context: Iterable[str] = (),
        within: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.noun = noun
        self.within = within
        self.context = frozenset(context)
        self._entries: dict[str, Entry[T]] = {}
        self._aliases: dict[str, str] = {}

    def add(
        self,
        name: str,
        builder: Callable[..., T],
        parameters: Mapping[str, Parameter] | None = None,
        rest: str | None = None,
    ) -> None:
        """Registers a builder. If its signature is `**values`, `parameters` lists its parameters."""
        if name in self:
            raise FavoritError(f"the {self.noun} {name!r} is registered twice")
        own = parameters_of(builder, ("self",))
        user = {key: p for key, p in (parameters or own).items() if key not in self.context}
        context = self.context if parameters is not None else self.context & own.keys()
        self._entries[name] = Entry(name, builder, user, frozenset(context), rest)

    def register(
        self, name: str, rest: str | None = None, alias: str | None = None
    ) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """The decorator form of `add`. `alias` is another spelling, which `canonical` replaces by the name."""

        def decorate(builder: Callable[..., T]) -> Callable[..., T]:
            self.add(name, builder, rest=rest)
            if alias is not None:
                self._aliases[alias] = name
            return builder

        return decorate

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._aliases

    def __getitem__(self, name: str) -> Entry[T]:
        if name not in self:
            raise unknown(self.noun, name, self._entries)
        return self._entries[self._aliases.get(name, name)]

    def canonical(self, spec: str | Spec) -> Spec:
        """The spec with named parameters, in the order of the signature, without those that equal their default."""
        spec = parse(spec) if isinstance(spec, str) else spec
        entry = self[spec.name]
        values = entry.resolve(spec)
        return Spec(
            entry.name,
            (),
            {key: values[key] for key, p in entry.parameters.items() if key in values and values[key] != p.default},
        )

    def build(self, spec: str | Spec, **context: Any) -> T:
        """Builds the component of a spec. Its builder receives only the context arguments that it has."""
        if not isinstance(spec, Spec):
            spec = parse(spec)
        entry = self[spec.name]
        values = entry.resolve(spec)
        with self.within(str(spec)):
            return entry.builder(**values, **{key: value for key, value in context.items() if key in entry.context})
