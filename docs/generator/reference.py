"""Writes the pages of `docs/reference`: every component that the registries know, from its docstring and its tests."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from favorit import catalog
from favorit.attention import KERNELS, Linear
from favorit.catalog import REGISTRIES, list_components
from favorit.config import SECTIONS, RunConfig
from favorit.model import PRESETS, layout, preset
from favorit.model.outline import outline
from favorit.model.presets import REPORTS
from favorit.spec import Parameter, parameters_of
from generator.docstring import describe, markdown
from generator.formula import escape
from generator.promises import CHECKS, explained, label, promises
from mutants import MUTANTS

# Title and introduction of each page. The introduction of a kind without a conformance suite names its tests.
PAGES = {
    "mixers": ("Mixers", "How tokens exchange information. Every kernel is a mixer too: linear attention over it."),
    "kernels": (
        "Kernels",
        "The feature map $\\phi$ of linear attention, for tokens $x$ of head width $D$ and $M$ features. Each is a "
        "[mixer](mixers.md) of the same name too: `relu(m=64, causal=True)`. $N$ is the number of tokens.",
    ),
    "positions": (
        "Positions",
        "How a layer knows where a token is. $N$ tokens of model width $C$, heads of width $D$; costs are for one "
        "head, or for all tokens where they have $C$. Sums combine them: `learned+rope2d`.",
    ),
    "stems": ("Stems", "Pixels to tokens. $K$ image channels, model width $C$."),
    "heads": ("Heads", "Tokens to logits. $N$ tokens of model width $C$. Each owns the last normalization."),
    "locals": (
        "Locals",
        "What `model.local` adds to attention from neighboring tokens. Tests: `tests/attention/test_layer.py`.",
    ),
    "optimizers": ("Optimisers", "`train.optimizer`. Tests: `tests/training/test_optimizers.py`."),
    "schedules": (
        "Learning-rate schedules",
        "`train.schedule`: a factor of the learning rate, a function of the epoch as a real number. "
        "`train.warmup` multiplies it. Tests: `tests/training/test_schedules.py`.",
    ),
    "augments": (
        "Augmentations",
        "Steps of `data.augment`, such as `crop(4)|flip`. Only training images are augmented. Every step takes "
        "`classes`, the class numbers that it changes. Tests: `tests/data/test_augment.py`.",
    ),
    "preprocesses": (
        "Preprocessing",
        "Steps of `data.preprocess`, which training, validation and test images go through. "
        "Tests: `tests/data/test_loader.py`.",
    ),
}


def write(folder: Path) -> None:
    """Writes every page of the reference. Sphinx does not read a page again that stays untouched."""
    folder.mkdir(exist_ok=True)
    pages = {f"{kind}.md": components(kind) for kind in PAGES}
    pages |= {"layouts.md": layouts(), "presets.md": presets(), "fields.md": fields(), "promises.md": invariants()}
    pages["index.md"] = index()
    for name, lines in pages.items():
        text, path = "\n".join(lines) + "\n", folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def index() -> Iterator[str]:
    yield "# Reference\n"
    yield "Generated from the registries, the docstrings and the conformance tests.\n"
    yield "```{toctree}\n:maxdepth: 1\n"
    yield from ("mixers", "kernels", "positions", "layouts", "stems", "heads", "locals", "presets", "fields")
    yield from ("optimizers", "schedules", "augments", "preprocesses", "promises")
    yield "```"


def components(kind: str) -> Iterator[str]:
    """The page of a registry."""
    title, introduction = PAGES[kind]
    yield f"# {title}\n\n{introduction}\n"
    if kind == "mixers":
        yield from component("linear attention", Linear.__doc__ or "", parameters_of(Linear, ("self", "kernel")), [])
    for name in list_components(kind):
        if kind == "mixers" and name in KERNELS:
            continue
        entry = REGISTRIES[kind][name]
        docstring = inspect.getdoc(entry.builder) or ""
        yield from component(name, docstring, entry.parameters, promises(kind, name))


def component(name: str, docstring: str, parameters: Mapping[str, Parameter], promised: list[str]) -> Iterator[str]:
    """One component: formula, words, parameters, cost, source, promises."""
    parts = describe(docstring)
    yield f"## {name}\n"
    yield from (f"$$\n{formula}\n$$\n" for formula in parts.formulas)
    yield from (f"{text}\n" for text in (parts.words, *parts.body) if text)
    if parameters:
        rows = ((f"`{key}`", kind_of(parameter), default_of(parameter)) for key, parameter in parameters.items())
        yield from table(("parameter", "values", "default"), rows)
    yield from field("Cost", [parts.cost])
    yield from field("Source", [parts.source])
    yield from field("Promises", promised)
    yield ""


def field(name: str, lines: list[str]) -> Iterator[str]:
    if any(lines):
        yield f":{name}: " + "\n\n    ".join(f"{line[:1].upper()}{line[1:]}" for line in lines)


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"
    yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    yield ""


def kind_of(parameter: Parameter) -> str:
    """The values that a parameter takes, in words."""
    config = None if hasattr(parameter.annotation, "model_config") else ConfigDict(arbitrary_types_allowed=True)
    return _values(TypeAdapter(parameter.annotation, config=config).json_schema())


def _values(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_values(part) for part in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if "pattern" in schema:
        return ", ".join(f"`{value}`" for value in schema["pattern"].strip("^()$").split("|"))
    if schema.get("type") == "array":
        parts = schema.get("prefixItems") or [schema["items"]]
        return f"tuple of {_values(parts[0])}"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = " and ".join(f"{sign} {schema[key]:g}" for key, sign in bounds.items() if key in schema)
    words = {"boolean": "`True`, `False`", "null": "`None`", "string": "text"}
    return f"{words.get(schema['type'], schema['type'])} {limits}".strip()


def default_of(parameter: Parameter) -> str:
    return "required" if parameter.default is inspect.Parameter.empty else f"`{parameter.default}`"


def layouts() -> Iterator[str]:
    """Named layouts and the mixer of each layer."""
    words, source = _module_words(layout.__doc__ or "")
    yield f"# Layouts\n\n{words}\n"
    yield "`performer` stands for the mixer that `model.performer` names.\n"
    yield from table(
        ("name", "layers at depth 4"),
        (
            (f"`{name}`", escape(catalog.describe("layouts", name).removesuffix("  at depth 4")))
            for name in list_components("layouts")
        ),
    )
    yield from field("Cost", ["the sum of its mixers."])
    yield from field("Source", [source])
    yield from field("Promises", ["`tests/model/test_layouts.py` pins the layers of each at depth 1, 4 and 5."])


def _module_words(docstring: str) -> tuple[str, str]:
    parts = describe(docstring)
    return "\n\n".join([parts.words, *parts.body]), parts.source


def presets() -> Iterator[str]:
    """Presets by report, with the size of the model."""
    yield "# Presets\n\nEvery model of the five reports. `favorit show NAME` prints its layers, parameters and FLOPs;"
    yield "`--set model.key=value` changes a field. Fields that are not named have the [defaults](fields.md).\n"
    for name in list_components("presets"):
        if name in REPORTS:
            number = list(REPORTS).index(name) + 1
            yield f"\n## Report {number}\n\n{escape(REPORTS[name])}.\n\n| preset | parameters | fields |\n|---|--:|---|"
        size = sum(parameter.numel() for parameter in outline(preset(name)).parameters())
        values = ", ".join(f"`{key}={value}`" for key, value in PRESETS[name].items()) or "the defaults"
        yield f"| `{name}` | {size:,} | {values.replace('|', chr(92) + '|')} |"


def fields() -> Iterator[str]:
    """Everything that --set reaches."""
    yield "# Fields\n\nEverything that `--set section.key=value` and a configuration file can set.\n"
    for section, config in SECTIONS.items():
        yield f"## {section}\n"
        yield from (
            f"{markdown(' '.join(part.split()))}\n" for part in inspect.cleandoc(config.__doc__ or "").split("\n\n")
        )
        schema = config.model_json_schema()["properties"]
        rows = (
            (f"`{section}.{key}`", _values(schema[key]), f"`{value.default!r}`")
            for key, value in config.model_fields.items()
        )
        yield from table(("field", "values", "default"), rows)
    yield "## run\n\n" + "\n\n".join(markdown(part) for part in inspect.cleandoc(RunConfig.__doc__ or "").split("\n\n"))


def invariants() -> Iterator[str]:
    """What the conformance suites check, and the wrong implementations that they reject."""
    yield "# Promises\n"
    yield "One conformance suite for each noun runs over every registered variant. A component that cannot keep an"
    yield "invariant is excused from it, with a reason; a test proves that the excuse is needed.\n"
    for kind in CHECKS:
        yield f"({kind})=\n## Invariants of {kind}\n"
        yield from table(("invariant", "what it says"), explained(kind))
    yield "## Wrong implementations that the suite rejects\n"
    yield "Most of them are published bugs. Each must fail the check beside it.\n"
    yield from table(
        ("wrong implementation", "rejected by"), ((name, label(check)) for name, (_, check) in MUTANTS.items())
    )
