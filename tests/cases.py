"""One entry for each registered mixer (a kernel is one): the specs it is tried with, and what it is excused from and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """The variants of one registered name. `excused` maps an invariant of `checks.MIXER_CHECKS` to the reason why it cannot hold."""

    specs: tuple[str, ...]
    excused: Mapping[str, str] = field(default_factory=dict)


_POINTWISE = ("{}", "{}(m=24)", "{}(m=8, learned=True)", "{}(scale=sqrt, eps=1e-6)")


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
        ("favor(m=24)", "favor(m=24, features=hyperbolic)", "favor(m=24, orthogonal=False)", "favor(m=24, norm=regular)"),
    ),
    "learned": Case(("learned", "learned(m=24, hidden=8, act=gelu)")),
    "mixture": Case(("mixture",)),
}
