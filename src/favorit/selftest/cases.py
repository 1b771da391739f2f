"""One entry for each registered mixer, including those of kernels: the specs to check, and the invariants that cannot
hold, with the reason. The tests and `favorit selftest` use these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch.nn import functional as F

from favorit.selftest import formulas as f
from favorit.selftest.formulas import Formula


@dataclass(frozen=True)
class Case:
    """The variants of one registered name. `excused` maps an invariant of `checks.MIXER_CHECKS` to the reason why it
    cannot hold.

    `formulas` maps some specs to a reference implementation of their feature map; each kernel has at least one. If
    `near` is set, the invariants that are not excused are checked only near a fixed token (`inputs.near`).
    """

    specs: tuple[str, ...]
    excused: Mapping[str, str] = field(default_factory=dict)
    near: bool = False
    formulas: Mapping[str, Formula] = field(default_factory=dict)


_POINTWISE = (
    "{}",
    "{}(m=24)",
    "{}(m=8, learned=True)",
    "{}(scale=sqrt, eps=1e-6)",
    "{}(m=24, bias=True, scale=sqrt)",
    "{}(m=8, bias=True, learned=True, rows=orthonormal)",
    "{}(m=24, rows=orthonormal, temperature=True, scale=none)",
)


def _pointwise(name: str, *more: str, formulas: Mapping[str, Formula]) -> Case:
    return Case((*(spec.format(name) for spec in _POINTWISE), *more), formulas=formulas)


MIXERS: dict[str, Case] = {
    "softmax": Case(("softmax",)),
    "uniform": Case(("uniform",)),
    "none": Case(
        ("none",),
        {
            "other_number_of_queries": "query i returns value i, so it needs a key i",
            "no_keys_give_zeros": "query i returns value i, so it needs a key i",
            "mask_equals_removal": "a masked token has no other key, so its output is zero",
            "causal_equals_prefixes": "it has no causal form: a query sees only its own token",
            "later_key_changes_nothing": "it has no causal form",
        },
    ),
    "linformer": Case(
        ("linformer(k=8)", "linformer(k=8, share=kv)", "linformer(k=8, share=heads)"),
        {
            "rows_sum_to_one": "a row is a softmax over k projected keys times a learned matrix",
            "non_negative": "the learned matrix has entries of both signs",
            "constant_value_passes": "rows do not sum to one",
            "permutation_equivariant": "the projection depends on the order of the tokens",
            "single_token_is_its_value": "the single value is still multiplied by a learned matrix",
            "mask_equals_removal": "the number of tokens is fixed: a masked key is projected as zero",
            "no_keys_give_zeros": "the number of tokens is fixed",
            "causal_equals_prefixes": "a projected key mixes all positions, so causal=True is rejected",
            "later_key_changes_nothing": "a projected key mixes all positions, so causal=True is rejected",
        },
    ),
    "relu": _pointwise(
        "relu",
        formulas={
            "relu": lambda s, x: F.relu(f.scaled(x)) + 1e-3,
            "relu(m=9)": lambda s, x: F.relu(f.affine(s, x)) + 1e-3,
            "relu(m=9, bias=True, scale=sqrt, eps=0.1)": lambda s, x: F.relu(f.affine(s, x, 0.5)) + 0.1,
            "relu(m=9, bias=True, learned=True)": lambda s, x: F.relu(f.affine(s, x)) + 1e-3,
            "relu(m=4, bias=True, rows=orthonormal, scale=none)": lambda s, x: F.relu(f.affine(s, x, 0)) + 1e-3,
            "relu(m=9, bias=True, temperature=True)": lambda s, x: F.relu(f.affine(s, x, t=s["log_t"].exp())) + 1e-3,
            "relu(temperature=True, eps=0.1)": lambda s, x: F.relu(f.scaled(x) / s["log_t"].exp()) + 0.1,
        },
    ),
    "elu": _pointwise(
        "elu", "elu(alpha=0.25)", formulas={"elu(alpha=0.5)": lambda s, x: F.elu(f.scaled(x), 0.5) + 0.5 + 1e-3}
    ),
    "gelu": _pointwise(
        "gelu",
        formulas={"gelu(m=9, bias=True)": lambda s, x: F.gelu(f.affine(s, x)) - f.GELU_MINIMUM + 1e-3},
    ),
    "exp": _pointwise(
        "exp",
        "exp(clamp=2.0)",
        formulas={
            "exp": lambda s, x: f.scaled(x).exp() + 1e-3,
            "exp(m=9, bias=True, temperature=True, clamp=1.5)": lambda s, x: (
                f.affine(s, x, t=s["log_t"].exp()).clamp(-1.5, 1.5).exp() + 1e-3
            ),
        },
    ),
    "favor": Case(
        (
            "favor(m=24)",
            "favor(m=24, features=hyperbolic)",
            "favor(m=24, orthogonal=False)",
            "favor(m=24, norm=regular)",
            "favor(m=24, kernel=gaussian)",
            "favor(m=24, features=hyperbolic, kernel=gaussian)",
        ),
        formulas={
            "favor(m=9)": f.favor,
            "favor(m=4, features=hyperbolic)": f.both_signs(f.favor),
            "favor(m=9, kernel=gaussian)": lambda s, x: f.favor(s, x, decay=1.0),
            "favor(m=4, kernel=gaussian, features=hyperbolic)": f.both_signs(lambda s, x: f.favor(s, x, decay=1.0)),
        },
    ),
    "sincos": Case(
        ("sincos(m=24)", "sincos(m=24, orthogonal=False)", "sincos(m=24, norm=regular)"),
        formulas={"sincos(m=8)": f.waves},
    ),
    "learned": Case(
        ("learned", "learned(m=24, hidden=8, act=gelu)", "learned(bias=False, scale=none)"),
        formulas={"learned(bias=False)": lambda s, x: F.softplus(f.mlp(s, f.scaled(x)))},
    ),
    "mixture": Case(
        ("mixture", "mixture(eps=1e-6)", "mixture(raw=True, eps=1e-6)"),
        formulas={
            "mixture(raw=True, eps=1e-6)": lambda s, x: f.mixture(s, x, s["raw_a"], s["raw_t"], s["raw_eps"]),
            "mixture(eps=1e-6)": lambda s, x: f.mixture(
                s, x, s["raw_a"].sigmoid(), 0.1 + F.softplus(s["raw_t"]), F.softplus(s["raw_eps"])
            ),
        },
    ),
}

_SIGNED = {"non_negative": "negative features can make weights negative"}


def _raw(*specs: str, formulas: Mapping[str, Formula]) -> Case:
    """A case that is checked only near a fixed token. Elsewhere the sum of a row may be about zero, and rounding errors
    of its weights are then unbounded.
    """
    return Case(specs, _SIGNED, near=True, formulas=formulas)


# Variants of the same kernels whose features may be negative.
RAW: dict[str, Case] = {
    "elu": _raw(
        "elu(raw=True)",
        "elu(m=24, raw=True)",
        "elu(m=8, learned=True, raw=True)",
        "elu(raw=True, alpha=0.25, m=24, rows=orthonormal, bias=True, scale=sqrt, eps=1e-6)",
        formulas={
            "elu(raw=True, alpha=0.5)": lambda s, x: F.elu(f.scaled(x), 0.5) + 1e-3,
            "elu(m=9, bias=True, raw=True)": lambda s, x: F.elu(f.affine(s, x)) + 1e-3,
        },
    ),
    "gelu": _raw(
        "gelu(raw=True)",
        "gelu(m=24, raw=True)",
        "gelu(m=8, learned=True, raw=True)",
        "gelu(raw=True, m=24, rows=orthonormal, bias=True, scale=sqrt, eps=1e-6)",
        formulas={"gelu(raw=True, scale=none, eps=1e-6)": lambda s, x: F.gelu(x) + 1e-6},
    ),
    "learned": _raw(
        "learned(raw=True)",
        "learned(raw=True, m=24, act=gelu, bias=False, scale=none)",
        formulas={
            "learned(raw=True, scale=sqrt)": lambda s, x: f.mlp(s, f.scaled(x, 0.5)),
            "learned(raw=True, bias=False, scale=none, act=gelu, m=9)": lambda s, x: f.mlp(s, x, F.gelu),
        },
    ),
}
