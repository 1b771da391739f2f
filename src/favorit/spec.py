"""Text specs and registries: `favor(m=128, features=hyperbolic)` becomes a checked call of a registered builder.

The grammar is a subset of Python expressions, parsed with `ast`:

    component   name | name(value, key=value, ...)     values are literals; bare words are strings
    sum         component + component + ...            positions:  learned+rope2d
    pattern     component*n | component | ...          layouts:    relu(m=64)*3|softmax*3

The text and the number of components are bounded, because a configuration may come from a stranger.
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

from favorit.errors import FavoritError, unknown, unknown_component, valid_values
from favorit.grammar import expression, operands, quote, shorten
from favorit.origins import Origin, registering

T = TypeVar("T")

BOOLEANS = {"true": True, "false": False}  # as YAML and JSON write them
MAX_COMPONENTS = 1_000  # of a pattern with its repetitions: as many as ModelConfig allows layers
MAX_COUNT = 10**9  # a matrix of two such sizes has fewer than 2^63 bytes

PositiveInt = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
Pixels = Annotated[int, Field(ge=1, le=16_384, strict=True)]
Width = Annotated[int, Field(ge=1, le=65_536, strict=True)]
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
    text, node = expression(text)
    return _component(node, text)


def parse_sum(text: str) -> list[Spec]:
    """`a + b(c=1)` -> [a, b(c=1)]."""

    def terms(node: ast.expr) -> Iterator[ast.expr]:
        for operand in operands(node, ast.Add):
            yield from [operand] if operand is node else terms(operand)

    text, node = expression(text)
    return [_component(term, text) for term in terms(node)]


def parse_pattern(text: str) -> list[Spec]:
    """`a*2|b` -> [a, a, b]."""

    def components(node: ast.expr) -> list[Spec]:
        parts = operands(node, ast.BitOr)
        if len(parts) > 1:
            return limited([each for part in parts for each in components(part)])
        base, repeats = node, 1
        while isinstance(base, ast.BinOp) and (count := _count(base)):
            base, repeats = base.left, repeats * count
        return [_component(node, text)] if base is node else limited(components(base), repeats)

    def limited(found: list[Spec], repeats: int = 1) -> list[Spec]:
        if len(found) * repeats > MAX_COMPONENTS:
            raise FavoritError(f"cannot read the pattern {quote(text)}: it has more than {MAX_COMPONENTS:,} components")
        return found * repeats

    text, node = expression(text)
    return components(node)


def literal(text: str) -> Any:
    """The value of a Python literal, or of `true` or `false`. Other text is returned unchanged."""
    if text in BOOLEANS:
        return BOOLEANS[text]
    try:
        return ast.literal_eval(expression(text)[1])
    except (FavoritError, ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _count(node: ast.BinOp) -> int:
    """The n of `component*n`, or 0."""
    match node:
        case ast.BinOp(op=ast.Mult(), right=ast.Constant(value=int(count))):
            return max(count, 0)
    return 0


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
                    raise FavoritError(f"cannot read the spec {quote(text)}: ** is not allowed")
                if given.arg in values:
                    raise FavoritError(f"cannot read the spec {quote(text)}: {given.arg} is given twice")
                values[given.arg] = _value(given.value, text)
            return Spec(name, tuple(_value(arg, text) for arg in args), values)
    part = quote(ast.get_source_segment(text, node))
    raise FavoritError(f"cannot read {part} in the spec {quote(text)}: write name or name(key=value, ...)")


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    try:
        value = ast.literal_eval(node)
        repr(value)  # raises an error for an integer with more digits than Python writes, such as a long hexadecimal
        return value
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        part = quote(ast.get_source_segment(text, node))
        raise FavoritError(
            f"cannot read the value {part} in the spec {quote(text)}: write a literal or one word"
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
            valid = valid_values(error.errors())
            raise FavoritError(f"{owner}: {name}={shorten(_format(value))} is not valid: {valid}") from None


def parameters_of(function: Callable[..., Any], leave_out: Iterable[str] = ()) -> dict[str, Parameter]:
    """The named parameters of a function or constructor, in order."""
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function, include_extras=True)
    named = inspect.signature(function).parameters.values()
    keep = [p for p in named if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in set(leave_out)]
    return {p.name: Parameter(hints.get(p.name, Any), p.default) for p in keep}


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered variant. `rest` is the parameter that receives all positional values, as in `mlp(2048, 1024)`.
    `origin` is where it was registered.
    """

    name: str
    builder: Callable[..., T]
    parameters: Mapping[str, Parameter]
    context: frozenset[str]
    origin: Origin
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
        """Registers a builder. If its signature is `**values`, `parameters` lists its parameters.

        A file or notebook cell that is executed again replaces its components.
        """
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise FavoritError(
                f"{name!r} cannot name a {self.noun}: give letters, digits and underscores, such as 'my_{self.noun}'"
            )
        origin = registering()
        if name in self and not origin.repeats(self[name].origin):
            raise FavoritError(
                f"the {self.noun} {name!r} is registered twice: in {self[name].origin.place} and in {origin.place}: "
                "choose another name"
            )
        try:
            own = parameters_of(builder, ("self",))
        except (TypeError, ValueError, NameError) as error:
            raise FavoritError(
                f"the {self.noun} {name!r} has no readable parameters ({error}): register a function or class"
            ) from None
        user = {key: p for key, p in (parameters or own).items() if key not in self.context}
        context = self.context if parameters is not None else self.context & own.keys()
        self._entries[name] = Entry(name, builder, user, frozenset(context), origin, rest)

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
            raise unknown_component(self.noun, name, self._entries)
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
