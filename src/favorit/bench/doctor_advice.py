"""What to do about the attention of a model, in words: a pure function of what `doctor` found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from favorit.bench.approximation import UNIFORM
from favorit.bench.doctor_tally import OWN, SWEPT, Finding
from favorit.model.layout import shorten
from favorit.spec import Spec, parse

# Averaging all values changes the output by less than this: attention does little.
LITTLE = 0.05
# A kernel comes close to softmax where its error is under this share of uniform's, and under this share of the output
# itself.
CLOSE, MOST = 0.5, 0.3
# Rows that differ from uniform by less than this share of their weight are near uniform.
NEAR = 0.1
# An own error below this is rounding: the mixer is softmax.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Advice:
    """For one layer: the mixer that it could have, the verdict in a few words, and the numbers behind it."""

    layer: int
    mixer: str
    verdict: str
    reason: str


def advise(layer: Finding) -> Advice:
    """What the numbers of a whole layer say."""
    if layer.tokens == 1:
        return _keep(layer, "attention has nothing to attend to", "one token: every mixer computes the same")
    if layer.errors[OWN] < ROUNDING:
        return _of_softmax(layer)
    return _of_another(layer)


def _of_softmax(layer: Finding) -> Advice:
    uniform, found = layer.errors[UNIFORM], _cheapest(layer)
    if uniform < LITTLE:
        reason = f"attention does little here: averaging all values changes the output by {uniform:.1%}"
        return _change(layer, UNIFORM, f"{UNIFORM} does as well", reason)
    if found is not None:
        return _change(layer, found, f"{found} suffices", f"error {layer.errors[found]:.2g}, uniform {uniform:.2g}")
    return _keep(layer, f"keep {layer.mixer}", f"{_nearest(layer)}, uniform {uniform:.2g}{_hint(layer)}")


def _of_another(layer: Finding) -> Advice:
    """A layer that was trained with another mixer need not follow softmax; whether it does is worth knowing."""
    own, found = layer.errors[OWN], _cheapest(layer)
    errors = f"error {own:.2g}, uniform {layer.errors[UNIFORM]:.2g}"
    if layer.blind == 1:
        return _keep(
            layer, f"{layer.mixer} does not look at q", "its weights are the same for any q, so q and k say nothing"
        )
    if _is_close(layer, OWN):
        return _keep(layer, f"{layer.mixer} follows softmax", errors)
    if found is not None and parse(found).name == parse(layer.mixer).name and _m(found) > (layer.features or 0):
        return _change(layer, found, f"raise m to {_m(found)}", f"{errors}, {found} {layer.errors[found]:.2g}")
    if layer.own_distance < NEAR:
        reason = f"attention does little here: its rows differ from uniform ones by {layer.own_distance:.1%}"
        return _change(layer, UNIFORM, f"{UNIFORM} does as well", reason)
    if found is None:
        nothing = min(layer.errors[name] for name in _tried(layer)) >= own
        nearer = "no kernel tried is nearer" if nothing else f"{_nearest(layer)}{_hint(layer)}"
    else:
        # Features that are drawn anew serve better than its own: the model has come to lean on what its own happen to
        # miss.
        leans = parse(found).name == parse(layer.mixer).name
        nearer = f"{found} would, with error {layer.errors[found]:.2g}"
        nearer += ", with features drawn anew: train.redraw draws them while it trains" if leans else ""
    return _keep(layer, f"{layer.mixer} does not follow softmax", f"{errors}; {nearer}")


def _keep(layer: Finding, verdict: str, reason: str) -> Advice:
    return Advice(layer.layer, layer.mixer, verdict, reason)


def _change(layer: Finding, name: str, verdict: str, reason: str) -> Advice:
    """The other mixer sees the keys that the present one sees."""
    spec, present = parse(name), parse(layer.mixer).kwargs
    whole = Spec(spec.name, (), {**spec.kwargs, **{key: present[key] for key in ("causal",) if key in present}})
    return Advice(layer.layer, str(whole), verdict, reason)


def _tried(layer: Finding) -> list[str]:
    return [name for name in layer.errors if name not in (UNIFORM, OWN)]


def _is_close(layer: Finding, name: str) -> bool:
    return layer.errors[name] < min(CLOSE * layer.errors[UNIFORM], MOST)


def _cheapest(layer: Finding) -> str | None:
    """The kernel of fewest features that comes close to softmax."""
    close = [name for name in _tried(layer) if _is_close(layer, name)]
    return min(close, key=lambda name: (_m(name) or layer.head_dim, layer.errors[name]), default=None)


def _m(name: str) -> int:
    """0 where a mixer has none; a kernel then has as many features as the head is wide."""
    return int(parse(name).kwargs.get("m", 0))


def _nearest(layer: Finding) -> str:
    name = min(_tried(layer), key=layer.errors.__getitem__)
    return f"nearest is {name} with error {layer.errors[name]:.2g}"


def _hint(layer: Finding) -> str:
    """What would bring favor nearer: random features bear exponents |q~ + k~|^2, about 2 |q~| |k~|, up to log m."""
    most = max(_m(name) for name in _tried(layer) if parse(name).name == SWEPT)
    bearable, of_unit_norm = math.log(most) / 2, math.sqrt(layer.head_dim)
    if layer.length_95 <= bearable:
        return f"; {SWEPT} may do with more than {most} features"
    cure = (
        f"model.qk_norm=True would start from {of_unit_norm:.1f}"
        if layer.length > 1.2 * of_unit_norm
        else "narrower heads have less"
    )
    return f"; shrink q and k: |q||k|/sqrt(D) reaches {layer.length_95:.1f}, {SWEPT}(m={most}) bears about {bearable:.1f}, {cure}"


def summarise(findings: Sequence[Finding]) -> list[str]:
    """The verdicts by ranges of layers, a layout to try, and what the model's own weights are like."""
    whole, heads = [f for f in findings if f.head is None], [f for f in findings if f.head is not None]
    advice = [advise(layer) for layer in whole]
    verdicts = dict.fromkeys(each.verdict for each in advice)
    lines = [
        f"{verdict} in {_ranges([each.layer for each in advice if each.verdict == verdict])}" for verdict in verdicts
    ]
    if [each.mixer for each in advice] != [layer.mixer for layer in whole]:
        lines.append(f'to try: --set "model.layout={shorten([parse(each.mixer) for each in advice])}"')
    if whole[0].tokens == 1:
        return lines
    if any(
        _m(each.mixer) > layer.tokens for each, layer in zip(advice, whole, strict=True) if each.mixer != layer.mixer
    ):
        lines.append(
            f"where m exceeds the {whole[0].tokens} tokens, measure first whether it pays: favorit bench crossover"
        )
    near = [head for head in heads if head.own_distance < NEAR]
    lines.append(
        f"{len(near)} of {len(heads)} heads are near uniform: their own rows differ from uniform ones by less than {NEAR:.0%}"
    )
    for layer in whole:
        if layer.features is not None and layer.used is not None and layer.vanished is not None:
            lines.append(
                f"layer {layer.layer}, {layer.mixer}: effective rank {layer.own_rank:.1f} of {layer.tokens} (softmax {layer.rank:.1f}); "
                f"{layer.used:.1f} of {layer.features} features carry a row, all vanish in {layer.vanished:.1%} of rows"
            )
    return lines


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
