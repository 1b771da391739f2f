"""Advice for each layer of a model, as a pure function of the findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from favorit.bench.approximation import UNIFORM
from favorit.bench.doctor.layer_stats import OWN, SWEPT, Finding
from favorit.model.layout import shorten
from favorit.spec import Spec, parse

# Attention does little if uniform averaging changes its output by less than this.
MIN_EFFECT = 0.05
# A kernel follows softmax if its error is below MAX_SHARE_OF_UNIFORM times uniform's error, and below MAX_ERROR.
MAX_SHARE_OF_UNIFORM, MAX_ERROR = 0.5, 0.3
# Rows of weights are near uniform if their total variation distance from uniform rows is below this.
NEAR_UNIFORM = 0.1
# An error of the layer's own mixer below this is rounding: the mixer is softmax.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Advice:
    """For one layer: the recommended mixer, a short verdict, and the measurements that support it."""

    layer: int
    mixer: str
    verdict: str
    reason: str


def advise(layer: Finding) -> Advice:
    """The advice for the finding of a whole layer."""
    if layer.tokens == 1:
        return _keep(layer, "attention has nothing to attend to", "with one token, all mixers are the same")
    if layer.errors[OWN] < ROUNDING:
        return _advise_softmax(layer)
    return _advise_other(layer)


def _advise_softmax(layer: Finding) -> Advice:
    uniform, cheapest = layer.errors[UNIFORM], _cheapest(layer)
    if uniform < MIN_EFFECT:
        reason = f"attention does little here: averaging all values changes the output by {uniform:.1%}"
        return _change(layer, UNIFORM, f"{UNIFORM} is enough", reason)
    if cheapest is not None:
        errors = f"error {layer.errors[cheapest]:.2g}, uniform {uniform:.2g}"
        return _change(layer, cheapest, f"{cheapest} is enough", errors)
    return _keep(layer, f"keep {layer.mixer}", f"{_nearest(layer)}, uniform {uniform:.2g}{_hint(layer)}")


def _advise_other(layer: Finding) -> Advice:
    """For a layer trained with a mixer other than softmax. The advice says whether the mixer follows softmax."""
    own, cheapest = layer.errors[OWN], _cheapest(layer)
    errors = f"error {own:.2g}, uniform {layer.errors[UNIFORM]:.2g}"
    if layer.query_independent == 1:
        return _keep(layer, f"{layer.mixer} does not use q", "its weights are the same for any q")
    if _follows_softmax(layer, OWN):
        return _keep(layer, f"{layer.mixer} follows softmax", errors)
    same_kernel = cheapest is not None and parse(cheapest).name == parse(layer.mixer).name
    if cheapest is not None and same_kernel and _m(cheapest) > (layer.features or 0):
        reason = f"{errors}, {cheapest} {layer.errors[cheapest]:.2g}"
        return _change(layer, cheapest, f"raise m to {_m(cheapest)}", reason)
    if layer.own_distance < NEAR_UNIFORM:
        reason = f"attention does little here: its rows differ from uniform rows by {layer.own_distance:.1%}"
        return _change(layer, UNIFORM, f"{UNIFORM} is enough", reason)
    if cheapest is not None:
        # If the kernel is the same, new random features have a smaller error than the layer's own, because training
        # has adapted the model to the errors of its features.
        redraw = " with new random features: set train.redraw to draw new features during training"
        closer = f"{cheapest} follows softmax, error {layer.errors[cheapest]:.2g}{redraw if same_kernel else ''}"
    elif min(layer.errors[name] for name in _tried(layer)) >= own:
        closer = "no kernel tried is closer"
    else:
        closer = f"{_nearest(layer)}{_hint(layer)}"
    return _keep(layer, f"{layer.mixer} does not follow softmax", f"{errors}; {closer}")


def _keep(layer: Finding, verdict: str, reason: str) -> Advice:
    return Advice(layer.layer, layer.mixer, verdict, reason)


def _change(layer: Finding, name: str, verdict: str, reason: str) -> Advice:
    """Recommends another mixer. It is causal if the current mixer is."""
    spec, current = parse(name), parse(layer.mixer).kwargs
    causal = {"causal": current["causal"]} if "causal" in current else {}
    return Advice(layer.layer, str(Spec(spec.name, (), {**spec.kwargs, **causal})), verdict, reason)


def _tried(layer: Finding) -> list[str]:
    return [name for name in layer.errors if name not in (UNIFORM, OWN)]


def _follows_softmax(layer: Finding, name: str) -> bool:
    return layer.errors[name] < min(MAX_SHARE_OF_UNIFORM * layer.errors[UNIFORM], MAX_ERROR)


def _cheapest(layer: Finding) -> str | None:
    """Of the kernels that follow softmax, the one with the fewest features; None if no kernel does."""
    names = [name for name in _tried(layer) if _follows_softmax(layer, name)]
    return min(names, key=lambda name: (_m(name) or layer.head_dim, layer.errors[name]), default=None)


def _m(name: str) -> int:
    """The m of a mixer; 0 if it has none. A kernel without m has one feature for each dimension of the head."""
    return int(parse(name).kwargs.get("m", 0))


def _nearest(layer: Finding) -> str:
    name = min(_tried(layer), key=layer.errors.__getitem__)
    return f"closest is {name} with error {layer.errors[name]:.2g}"


def _hint(layer: Finding) -> str:
    """How to reduce the error of favor. Random features handle exponents |q~ + k~|^2 up to log m.

    The exponents are about 2 |q~| |k~| = 2 |q| |k| / sqrt(D), with x~ = x / D^(1/4).
    """
    most = max(_m(name) for name in _tried(layer) if parse(name).name == SWEPT)
    limit, unit_norm_bound = math.log(most) / 2, math.sqrt(layer.head_dim)
    if layer.logit_bound_95 <= limit:
        return f"; {SWEPT} may follow softmax with more than {most} features"
    remedy = (
        f"with model.qk_norm=True it is {unit_norm_bound:.1f} at initialization"
        if layer.logit_bound > 1.2 * unit_norm_bound
        else "narrower heads reduce the bound"
    )
    return (
        f"; shrink q and k: |q||k|/sqrt(D) reaches {layer.logit_bound_95:.1f}, "
        f"{SWEPT}(m={most}) handles about {limit:.1f}, {remedy}"
    )


def summarize(findings: Sequence[Finding]) -> list[str]:
    """The verdicts by ranges of layers, a layout to try, and statistics of the model's own attention weights."""
    whole, heads = [f for f in findings if f.head is None], [f for f in findings if f.head is not None]
    advice = [advise(layer) for layer in whole]
    verdicts = dict.fromkeys(each.verdict for each in advice)
    lines = [
        f"{verdict} in {_ranges([each.layer for each in advice if each.verdict == verdict])}" for verdict in verdicts
    ]
    changed = [
        (each.mixer, layer.tokens) for each, layer in zip(advice, whole, strict=True) if each.mixer != layer.mixer
    ]
    if changed:
        lines.append(f'to try: --set "model.layout={shorten([parse(each.mixer) for each in advice])}"')
    if whole[0].tokens == 1:
        return lines
    if any(_m(mixer) > tokens for mixer, tokens in changed):
        lines.append(f"m exceeds the {whole[0].tokens} tokens: favorit bench crossover measures whether that pays")
    near = [head for head in heads if head.own_distance < NEAR_UNIFORM]
    lines.append(
        f"{len(near)} of {len(heads)} heads are near uniform: "
        f"the rows of their own weights differ from uniform rows by less than {NEAR_UNIFORM:.0%}"
    )
    lines += [_feature_line(layer) for layer in whole if layer.features is not None]
    return lines


def _feature_line(layer: Finding) -> str:
    return (
        f"layer {layer.layer}, {layer.mixer}: effective rank {layer.own_rank:.1f} of {layer.tokens} "
        f"(softmax {layer.rank:.1f}); {layer.effective_features:.1f} of {layer.features} features are effective, "
        f"all vanish in {layer.vanished:.1%} of rows"
    )


def _ranges(layers: Iterable[int]) -> str:
    """[1, 2, 3, 5] -> layers 1-3, 5."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"{'layer' if texts == [str(runs[0][0])] else 'layers'} {', '.join(texts)}"
