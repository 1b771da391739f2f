"""The docstring of every component has the parts that the reference shows: formula, cost and source."""

from __future__ import annotations

import inspect

import pytest
from docutils.utils.math.latex2mathml import tex2mathml

from favorit.attention import Linear
from favorit.catalog import REGISTRIES
from generator.docstring import Described, describe, markdown

COMPONENTS = [(kind, name) for kind, registry in REGISTRIES.items() for name in registry]
OF_MODELS = ("mixers", "kernels", "positions", "stems", "heads", "locals")


def described(kind: str, name: str) -> Described:
    return describe(inspect.getdoc(REGISTRIES[kind][name].builder) or "")


@pytest.mark.parametrize(("kind", "name"), COMPONENTS)
def test_component_names_its_source(kind: str, name: str) -> None:
    assert described(kind, name).source, f"{kind}: {name} needs a paragraph 'Source: ...'"


@pytest.mark.parametrize(("kind", "name"), [each for each in COMPONENTS if each[0] in OF_MODELS])
def test_component_of_a_model_has_formula_and_cost(kind: str, name: str) -> None:
    parts = described(kind, name)
    assert parts.formulas, f"{kind}: {name} needs 'FORMULA: words; COST.' as its first paragraph"
    assert parts.cost, f"{kind}: {name} needs a cost, such as '; O(N D).'"
    for formula in parts.formulas:
        tex2mathml(formula, as_block=True)


def test_linear_attention_has_formula_cost_and_source() -> None:
    parts = describe(Linear.__doc__ or "")
    assert parts.formulas
    assert parts.cost
    assert "2006.16236" in parts.source


def test_describe_separates_the_parts() -> None:
    parts = describe(
        """y = W x: one linear map; O(N C), or O(C) once.

        `bias=True` adds b.

        Source: Lee and Kim 2020, Title, arXiv 2001.00001.
        """
    )
    assert parts == Described(
        formulas=("y=Wx",),
        words="One linear map.",
        cost="$O(NC)$, or $O(C)$ once",
        body=("`bias=True` adds $b$.",),
        source="Lee and Kim 2020, Title, [arXiv 2001.00001](https://arxiv.org/abs/2001.00001).",
    )


def test_code_in_backticks_is_unchanged() -> None:
    assert markdown("`a_b * x^2` for a_b") == r"`a_b * x^2` for $a_{b}$"
