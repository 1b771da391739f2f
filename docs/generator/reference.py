"""Writes the pages of `docs/reference` from the registries, and the docstrings and tests of their components."""

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

# Title and introduction of each page. If a kind has no conformance suite, the introduction names its tests.
PAGES = {
    "mixers": ("Mixers", "How tokens exchange information. Every kernel is a mixer too: linear attention over it."),
    "kernels": (
        "Kernels",
        "The feature map $\\phi$ of linear attention, for tokens $x$ of head width $D$ and $M$ features. Each is a "
        "[mixer](mixers.md) of the same name too: `relu(m=64, causal=True)`. $N$ is the number of tokens.",
    ),
    "positions": (
        "Positions",
        "How tokens get their position. $N$ tokens of model width $C$, heads of width $D$. Costs with $D$ are for "
        "one head, costs with $C$ for the model width. Positions can be added: `learned+rope2d`.",
    ),
    "stems": ("Stems", "How pixels become tokens. $K$ image channels, model width $C$."),
    "heads": (
        "Heads",
        "How tokens become logits. $N$ tokens of model width $C$. Each head contains the last normalization.",
    ),
    "locals": (
        "Locals",
        "Operations on neighboring tokens, which `model.local` adds to attention. "
        "Tests: `tests/attention/test_layer.py`.",
    ),
    "optimizers": ("Optimizers", "`train.optimizer`. Tests: `tests/training/test_optimizers.py`."),
    "schedules": (
        "Learning-rate schedules",
        "`train.schedule`: the learning rate is multiplied by a function of the epoch, a real number. "
        "`train.warmup` multiplies it again. Tests: `tests/training/test_schedules.py`.",
    ),
    "augments": (
        "Augmentations",
        "Steps of `data.augment`, such as `crop(4)|flip`. Only training images are augmented. Every step takes "
        "`classes`, the numbers of the classes that it changes. Tests: `tests/data/test_augment.py`.",
    ),
    "preprocesses": (
        "Preprocessing",
        "Steps of `data.preprocess`, applied to training, validation and test images. "
        "Tests: `tests/data/test_loader.py`.",
    ),
}


def write(folder: Path) -> None:
    """Writes the pages of the reference. Unchanged pages are not rewritten, so that Sphinx does not rebuild them."""
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
    """The page of one registry."""
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
    """The section of one component: formula, words, parameters, cost, source, promises."""
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
    """The valid values of a parameter, in words."""
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
    """The page of named layouts, with the mixer of each layer."""
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
    """The page of presets by report, with the size of each model."""
    yield "# Presets\n\nEvery model of the five reports. `favorit show NAME` prints its layers, parameters and FLOPs;"
    yield "`--set model.key=value` changes a field. Other fields have their [defaults](fields.md).\n"
    for name in list_components("presets"):
        if name in REPORTS:
            number = list(REPORTS).index(name) + 1
            yield f"\n## Report {number}\n\n{escape(REPORTS[name])}.\n\n| preset | parameters | fields |\n|---|--:|---|"
        size = sum(parameter.numel() for parameter in outline(preset(name)).parameters())
        values = ", ".join(f"`{key}={value}`" for key, value in PRESETS[name].items()) or "the defaults"
        yield f"| `{name}` | {size:,} | {values.replace('|', chr(92) + '|')} |"


def fields() -> Iterator[str]:
    """The page of all fields that `--set` can change."""
    yield "# Fields\n\nAll fields that `--set section.key=value` and a configuration file can set.\n"
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
    """The page of invariants that the conformance suites check, and of the wrong implementations that they reject."""
    yield "# Promises\n"
    yield "Mixers, positions, stems and heads have a conformance suite each. It tests every registered component. If a"
    yield "component cannot satisfy an invariant, its test case gives the reason, and a test checks that it fails.\n"
    for kind in CHECKS:
        yield f"({kind})=\n## Invariants of {kind}\n"
        yield from table(("invariant", "what is checked"), explained(kind))
    yield "## Wrong implementations that the suite rejects\n"
    yield "Most of them are published bugs. A test verifies that each fails the check in its row.\n"
    yield from table(
        ("wrong implementation", "rejected by"), ((name, label(check)) for name, (_, check) in MUTANTS.items())
    )
