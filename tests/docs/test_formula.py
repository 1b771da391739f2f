"""Formulas of docstrings are converted to LaTeX, and LaTeX to MathML."""

from __future__ import annotations

import pytest
from docutils.utils.math.latex2mathml import tex2mathml

from generator.formula import FormulaError, is_formula, to_latex, typeset


@pytest.mark.parametrize(
    ("plain", "latex"),
    [
        ("phi(x) = exp(W x~ - |x~|^2 / 2)", r"\phi (x)=\operatorname{exp}(W\tilde{x}-|\tilde{x}|^{2}/2)"),
        ("x~ = x / D^(1/4)", r"\tilde{x}=x/D^{1/4}"),
        ("w_ij = 1 / n_i", r"w_{ij}=1/n_{i}"),
        ("w_i = base^(-i / (D/4))", r"w_{i}=\operatorname{base}^{-i/(D/4)}"),
        ("w = softmax(q k^T / sqrt(D))", r"w=\operatorname{softmax}(qk^{\top }/\sqrt{D})"),
        ("E[phi(q) . phi(k)] = eps", r"\mathbb{E}[\phi (q)\cdot \phi (k)]=\varepsilon"),
        ("out = (a + b) / (c d)", r"\operatorname{out}=\frac{a+b}{cd}"),
        ("x <- lambda x + (1 - lambda) x'", r"x\leftarrow \lambda x+(1-\lambda )x'"),
        ("y = W1 x + b1", "y=W_{1}x+b_{1}"),
        ("d = 1e-30", "d=10^{-30}"),
        ("y = W norm(x) + P phase", r"y=W\,\operatorname{norm}(x)+P\,\operatorname{phase}"),
    ],
)
def test_formula_is_converted_to_latex_and_mathml(plain: str, latex: str) -> None:
    assert is_formula(plain)
    assert to_latex(plain) == latex
    assert tex2mathml(latex).startswith("<math")


@pytest.mark.parametrize("text", ["all heads share W", "E and F = learned matrices", "no relation: x + y"])
def test_prose_is_not_a_formula(text: str) -> None:
    assert not is_formula(text)


@pytest.mark.parametrize("text", ["x = (1", "x = 1)", "x = sqrt"])
def test_malformed_formula_raises(text: str) -> None:
    with pytest.raises(FormulaError):
        to_latex(text)


@pytest.mark.parametrize(
    ("prose", "markdown"),
    [
        ("W holds M rows, drawn once.", "$W$ holds $M$ rows, drawn once."),
        ("divided by D^(1/4), or not", "divided by $D^{1/4}$, or not"),
        ("is [exp(u), exp(-u)] here", r"is $[\operatorname{exp}(u),\; \operatorname{exp}(-u)]$ here"),
        ("a in (0, 1) is learned", "a in (0, 1) is learned"),
        ("a key_mask of 2*3 pixels", r"a key\_mask of 2\*3 pixels"),
    ],
)
def test_formulas_inside_prose_are_typeset(prose: str, markdown: str) -> None:
    assert typeset(prose) == markdown
