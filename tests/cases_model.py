"""Test cases for each registered position, stem, head and layout, with the checks that cannot pass and the reason.

The conformance tests run every check on every case. An excused check must fail, so that outdated excuses are noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A spec to test, and its excused checks: name -> reason."""

    spec: str
    excused: Mapping[str, str] = field(default_factory=dict)


_TABLE_FOR_PREFIX = {"prefix_untouched": "the table also has a row for the class token, as in the original ViT"}
_NOT_AT_START = "it changes its input before training"
_NOTHING_TO_LEARN = {"position_matters": "the control: tokens are an unordered set"}

POSITIONS: dict[str, tuple[Case, ...]] = {
    "none": (Case("none", _NOTHING_TO_LEARN),),
    "learned": (
        Case("learned", {**_TABLE_FOR_PREFIX, "identity_at_start": _NOT_AT_START}),
        Case("learned+rope2d", {**_TABLE_FOR_PREFIX, "identity_at_start": _NOT_AT_START}),
    ),
    "sincos2d": (
        Case("sincos2d", {"identity_at_start": _NOT_AT_START}),
        Case("sincos2d(base=100)+irpe_gate", {"identity_at_start": _NOT_AT_START}),
    ),
    "rope2d": (
        Case("rope2d", {"identity_at_start": _NOT_AT_START}),
        Case("rope2d(base=10)", {"identity_at_start": _NOT_AT_START}),
    ),
    "irpe_gate": (Case("irpe_gate"), Case("irpe_gate+string_gate")),
    "string_gate": (Case("string_gate"), Case("string_gate(features=3)")),
}

_ONE_SIZE = {"another_size": "its fully connected layer fits one image size"}

STEMS: dict[str, tuple[Case, ...]] = {
    "patch": (Case("patch(4)"), Case("patch((2, 4))"), Case("patch(3, crop=True)")),
    "values": (Case("values", {"another_size": "its table fits one image size"}),),
    "conv": (
        Case("conv(channels=(4, 6))"),
        Case("conv(channels=(4, 6), pool=each, act=gelu)"),
        Case("conv(channels=(4, 6), tokens=1)", _ONE_SIZE),
        Case("conv(channels=(4,), tokens=1, width=7, act=elu)", _ONE_SIZE),
    ),
    "resnet": (Case("resnet(channels=(4, 6))"), Case("resnet(channels=(4,), blocks=2, act=silu)")),
}

HEADS: dict[str, tuple[Case, ...]] = {
    "cls": (Case("cls", {"reads_every_token": "it reads the class token only"}),),
    "mean": (Case("mean"),),
    "seqpool": (Case("seqpool"),),
    "mlp": tuple(
        Case(
            spec,
            {
                "order_of_patches_does_not_matter": "each token has its own weights",
                "any_number_of_tokens": "each token has its own weights",
            },
        )
        for spec in ("mlp(12, 9)", "mlp(7)")
    ),
}

# Layout -> depth -> layers: S is softmax, P the performer. The first half of an odd depth is rounded down.
LAYOUTS: dict[str, dict[int, str]] = {
    "all_standard": {1: "S", 4: "SSSS", 5: "SSSSS"},
    "all_performer": {1: "P", 4: "PPPP", 5: "PPPPP"},
    "intertwined": {1: "P", 4: "PSPS", 5: "PSPSP"},
    "performer_first": {1: "S", 4: "PPSS", 5: "PPSSS"},
    "standard_first": {1: "P", 4: "SSPP", 5: "SSPPP"},
}
