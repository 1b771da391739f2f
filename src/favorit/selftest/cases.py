"""One entry for each registered mixer (each kernel is one): the specs to check, and which invariants it is excused from
and why. The tests and `favorit selftest` read this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """The variants of one registered name. `excused` maps an invariant of `checks.MIXER_CHECKS` to the reason why it
    cannot hold.

    `near` means that the other invariants hold only for tokens near a fixed one (`inputs.near`).
    """

    specs: tuple[str, ...]
    excused: Mapping[str, str] = field(default_factory=dict)
    near: bool = False


_POINTWISE = (
    "{}",
    "{}(m=24)",
    "{}(m=8, learned=True)",
    "{}(scale=sqrt, eps=1e-6)",
    "{}(m=24, bias=True, scale=sqrt)",
    "{}(m=8, bias=True, learned=True, rows=orthonormal)",
    "{}(m=24, rows=orthonormal, temperature=True, scale=none)",
)


def _pointwise(name: str, *more: str) -> Case:
    return Case((*(spec.format(name) for spec in _POINTWISE), *more))


MIXERS: dict[str, Case] = {
    "softmax": Case(("softmax",)),
    "uniform": Case(("uniform",)),
    "none": Case(
        ("none",),
        {
            "other_number_of_queries": "a query keeps the value at its own place, so it needs a key there",
            "mask_equals_removal": "a masked token loses its own value and has no other key",
            "causal_equals_prefixes": "there is nothing to hide from a query that sees itself only",
            "later_key_changes_nothing": "it has no causal form",
        },
    ),
    "linformer": Case(
        ("linformer(k=8)", "linformer(k=8, share=kv)", "linformer(k=8, share=heads)"),
        {
            "rows_sum_to_one": "a row is a softmax over k slots times a learned matrix",
            "non_negative": "the learned matrix has entries of both signs",
            "constant_value_passes": "rows do not sum to one",
            "permutation_equivariant": "the projection is tied to the order of tokens",
            "single_token_is_its_value": "the one value is still multiplied by a learned matrix",
            "mask_equals_removal": "its length is fixed at build: a masked key is projected as zero",
            "causal_equals_prefixes": "a slot mixes all positions; causal is a build error",
            "later_key_changes_nothing": "a slot mixes all positions; causal is a build error",
        },
    ),
    "relu": _pointwise("relu"),
    "elu": _pointwise("elu", "elu(alpha=0.25)"),
    "gelu": _pointwise("gelu"),
    "exp": _pointwise("exp", "exp(clamp=2.0)"),
    "favor": Case(
        (
            "favor(m=24)",
            "favor(m=24, features=hyperbolic)",
            "favor(m=24, orthogonal=False)",
            "favor(m=24, norm=regular)",
            "favor(m=24, kernel=gaussian)",
            "favor(m=24, features=hyperbolic, kernel=gaussian)",
        ),
    ),
    "sincos": Case(("sincos(m=24)", "sincos(m=24, orthogonal=False)", "sincos(m=24, norm=regular)")),
    "learned": Case(("learned", "learned(m=24, hidden=8, act=gelu)", "learned(bias=False, scale=none)")),
    "mixture": Case(("mixture", "mixture(eps=1e-6)", "mixture(raw=True, eps=1e-6)")),
}

_SIGNED = {"non_negative": "features of both signs make weights of both signs"}


def _raw(*specs: str) -> Case:
    """Far from a fixed token the sum of a row may be near zero, and its weights then have no bound but rounding."""
    return Case(specs, _SIGNED, near=True)


# Forms of the same kernels with signed features.
RAW: dict[str, Case] = {
    "elu": _raw(
        "elu(raw=True)",
        "elu(m=24, raw=True)",
        "elu(m=8, learned=True, raw=True)",
        "elu(raw=True, alpha=0.25, m=24, rows=orthonormal, bias=True, scale=sqrt, eps=1e-6)",
    ),
    "gelu": _raw(
        "gelu(raw=True)",
        "gelu(m=24, raw=True)",
        "gelu(m=8, learned=True, raw=True)",
        "gelu(raw=True, m=24, rows=orthonormal, bias=True, scale=sqrt, eps=1e-6)",
    ),
    "learned": _raw("learned(raw=True)", "learned(raw=True, m=24, act=gelu, bias=False, scale=none)"),
}
