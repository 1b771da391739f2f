"""The doctor sees what the mixers get, measures what it says, and its advice follows from the numbers alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from torch import Tensor

from favorit import Attention, FavoritError, Run, seeds
from favorit.bench import doctor_tally
from favorit.bench.doctor import diagnose
from favorit.bench.doctor_advice import advise, summarise
from favorit.bench.doctor_figure import draw, grids
from favorit.bench.doctor_tally import Finding, Tally
from favorit.cli.doctor import doctor
from favorit.data import load_dataset
from favorit.training.inference import TrainedModel, load
from training_helpers import fit, pictures, tiny

HEADS, TOKENS, WIDTH = 2, 24, 8


def tensors(std: float = 1.0, tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    """q and k of a standard deviation, and v."""
    q, k, v = torch.randn(3, 6, HEADS, tokens, WIDTH, generator=seeds.generator(0, "doctor"))
    return std * q, std * k, v


def look(q: Tensor, k: Tensor, v: Tensor, mixer: str = "softmax", counts: tuple[int, ...] = (64, 256)) -> list[Finding]:
    """What the doctor finds in a layer that gets these."""
    tally = Tally(1, mixer, Attention(HEADS * WIDTH, HEADS, mixer, seed=0), counts)
    tally.add(q, k, v)
    return tally.findings()


def test_the_numbers_of_a_head_are_what_they_say():
    q, k, v = tensors()
    layer, *heads = look(q, k, v)
    w = (q @ k.mT / math.sqrt(WIDTH)).softmax(-1)
    lengths = q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :] / math.sqrt(WIDTH)
    assert [head.head for head in heads] == [1, 2]
    assert layer.head is None
    for number, head in enumerate(heads):
        assert head.q_norm == pytest.approx(q[:, number].norm(dim=-1).mean().item())
        assert head.length == pytest.approx(lengths[:, number].mean().item())
        assert head.length_95 == pytest.approx(
            lengths[:, number].flatten(1).quantile(0.95, dim=1).mean().item(), rel=0.01
        )
        entropy = -(w * w.log()).sum(-1)[:, number].mean().item()
        assert head.entropy == pytest.approx(entropy / math.log(TOKENS), rel=1e-5)
        out, average = (w @ v)[:, number], v[:, number].mean(-2, keepdim=True)
        assert head.errors["uniform"] == pytest.approx(((average - out).norm() / out.norm()).item(), rel=1e-5)
        assert head.errors["own"] < 1e-6
        shares = torch.linalg.svdvals(w[:, number])
        shares = shares / shares.sum(-1, keepdim=True)
        assert (
            head.rank
            == head.own_rank
            == pytest.approx((-(shares * shares.log()).sum(-1)).exp().mean().item(), rel=1e-4)
        )
    out = w @ v
    assert layer.errors["uniform"] == pytest.approx(
        ((v.mean(-2, keepdim=True) - out).norm() / out.norm()).item(), rel=1e-5
    )
    assert list(layer.errors) == ["uniform", "own", "favor(m=64)", "favor(m=256)", "relu", "elu", "exp"]


def test_the_rank_counts_the_directions_that_are_mixed():
    """Every token attends to itself alone: all directions; keys that are all the same: one."""
    eye = 100 * torch.eye(WIDTH).expand(3, HEADS, WIDTH, WIDTH)
    alone = look(eye, eye, torch.randn(eye.shape))[0]
    assert alone.rank == pytest.approx(WIDTH, rel=1e-4)
    assert alone.entropy == pytest.approx(0, abs=1e-4)
    q, k, v = tensors()
    same = look(q, torch.ones_like(k), v)[0]
    assert same.rank == pytest.approx(1, rel=1e-3)
    assert same.entropy == pytest.approx(1, rel=1e-5)
    assert same.errors["uniform"] < 1e-5


def test_of_many_tokens_few_images_are_ranked(monkeypatch: pytest.MonkeyPatch):
    q, k, v = tensors()
    monkeypatch.setattr(doctor_tally, "RANK_WORK", 2 * HEADS * TOKENS**3)
    assert look(q, k, v)[0].rank == pytest.approx(look(q[:2], k[:2], v[:2])[0].rank)
    monkeypatch.setattr(doctor_tally, "RANK_WORK", 1)
    assert look(q, k, v)[0].rank == pytest.approx(look(q[:1], k[:1], v[:1])[0].rank)


@pytest.mark.parametrize("blocks", [1, 2, 6])
def test_images_may_come_in_any_blocks(blocks, monkeypatch: pytest.MonkeyPatch):
    q, k, v = tensors()
    whole = look(q, k, v, "relu(m=16)")
    monkeypatch.setattr(doctor_tally, "BLOCK_NUMBERS", 6 // blocks * HEADS * TOKENS**2)
    tally = Tally(1, "relu(m=16)", Attention(HEADS * WIDTH, HEADS, "relu(m=16)", seed=0), (64, 256))
    tally.add(q[:4], k[:4], v[:4])
    tally.add(q[4:], k[4:], v[4:])
    for found, expected in zip(tally.findings(), whole, strict=True):
        numbers, whole_numbers = ({**each.row(), "mixer": 0, "head": each.head or 0} for each in (found, expected))
        assert numbers == pytest.approx(whole_numbers, rel=1e-4)


def test_a_causal_layer_is_compared_with_causal_softmax():
    layer = look(*tensors(0.3), "softmax(causal=True)", (256,))[0]
    assert layer.errors["own"] < 1e-6
    assert 0 < layer.entropy <= 1
    assert advise(layer).mixer == "favor(m=256, causal=True)"


def test_features_that_one_token_decides_are_counted():
    small, large, huge = (look(*tensors(std), "favor(m=16)")[0] for std in (0.1, 10.0, 100.0))
    assert small.features == 16
    assert small.used > 15
    assert large.used < 2
    assert small.vanished == large.vanished == 0
    assert huge.vanished > 0.5
    assert look(*tensors())[0].features is None


# Advice on constructed activations.


def test_signed_features_are_counted_by_their_absolute_share():
    """The entropy of negative shares is not finite."""
    place = torch.tensor([1.0, -1.0] * (WIDTH // 2)).expand(2, HEADS, TOKENS, WIDTH)
    found = look(place, place, torch.randn(2, HEADS, TOKENS, WIDTH), "elu(raw=True)")[0]
    share = (torch.nn.functional.elu(place[0, 0, 0] * WIDTH**-0.25) + 1e-3).square()
    share = share / share.sum()
    assert found.used == pytest.approx((-(share * share.log()).sum()).exp().item(), rel=1e-4)
    assert found.vanished == 0
    q, k, v = tensors()
    assert look(q, k, v, "elu(raw=True)")[0].used > 2


def test_small_norms_let_favor_stand_in():
    advice = advise(look(*tensors(0.4))[0])
    assert advice.verdict == "favor(m=256) suffices"
    assert advice.mixer == "favor(m=256)"


def test_huge_norms_keep_softmax_and_are_told_to_shrink():
    advice = advise(look(*tensors(5.0))[0])
    assert advice.verdict == "keep softmax"
    assert advice.mixer == "softmax"
    assert "shrink q and k" in advice.reason
    assert "model.qk_norm=True would start from 2.8" in advice.reason


def test_unit_norms_are_not_told_to_normalise():
    reason = advise(look(*tensors(1.0))[0]).reason
    assert "shrink q and k" in reason
    assert "narrower heads" in reason
    assert "qk_norm" not in reason


def test_constant_keys_make_attention_uniform():
    q, k, v = tensors()
    advice = advise(look(q, k[:, :, :1].expand_as(k), v)[0])
    assert advice.verdict == "uniform does as well"
    assert advice.mixer == "uniform"
    assert "attention does little here" in advice.reason


def test_one_token_has_nothing_to_attend_to():
    findings = look(*tensors(tokens=1))
    assert advise(findings[0]).verdict == "attention has nothing to attend to"
    assert summarise(findings) == ["attention has nothing to attend to in layer 1"]


@pytest.mark.parametrize("mixer", ["uniform", "none"])
def test_mixers_that_ignore_q_are_said_to(mixer):
    assert advise(look(*tensors(), mixer)[0]).verdict == f"{mixer} does not look at q"


def test_a_layer_with_too_few_features_is_told_how_many():
    layer = look(*tensors(0.4), "favor(m=16)")[0]
    advice = advise(layer)
    assert (advice.verdict, advice.mixer) == ("raise m to 256", "favor(m=256)")
    assert advise(look(*tensors(0.4), "favor(m=512)")[0]).verdict == "favor(m=512) follows softmax"


def test_a_kernel_of_its_own_is_left_as_it_is():
    advice = advise(look(*tensors(1.0), "relu")[0])
    assert (advice.verdict, advice.mixer) == ("relu does not follow softmax", "relu")


# Advice as a function of the numbers.

BASE = look(*tensors(), counts=(64, 128, 256))[0]


def found(layer: int = 1, head: int | None = None, mixer: str = "softmax", **errors: float) -> Finding:
    names = {"m64": "favor(m=64)", "m128": "favor(m=128)", "m256": "favor(m=256)"}
    given = {names.get(name, name): error for name, error in errors.items()}
    high = dict.fromkeys(BASE.errors, 2.0)
    return replace(
        BASE, layer=layer, head=head, mixer=mixer, length_95=1.0, errors={**high, "own": 0.0, "uniform": 0.5, **given}
    )


def test_the_fewest_features_that_come_close_are_named():
    assert advise(found(m64=0.26, m128=0.24, m256=0.1)).mixer == "favor(m=128)"
    assert advise(found(m64=0.2, relu=0.24)).mixer == "relu", "eight features where the head is eight wide"
    assert advise(found(m64=0.26, m128=0.26, m256=0.26)).mixer == "softmax"


def test_half_of_a_large_error_is_not_close():
    assert advise(found(uniform=1.2, m256=0.4)).mixer == "softmax"
    assert advise(found(uniform=1.2, m256=0.29)).mixer == "favor(m=256)"


def test_m_is_never_lowered():
    layer = replace(found(mixer="favor(m=512)", own=0.4, m64=0.1), features=512)
    advice = advise(layer)
    assert (advice.verdict, advice.mixer) == ("favor(m=512) does not follow softmax", "favor(m=512)")
    assert "favor(m=64) would, with error 0.1, with features drawn anew: train.redraw" in advice.reason
    assert advise(replace(layer, features=32)).verdict == "raise m to 64"


def test_more_features_are_suggested_where_norms_allow_them():
    assert "may do with more than 256 features" in advise(found(m256=0.3)).reason


def test_the_summary_names_ranges_of_layers_and_a_layout_to_try():
    layers = [found(1, m64=0.1), found(2, m64=0.1), found(3, uniform=0.01), found(4, m64=0.1), found(5), found(6)]
    lines = summarise(layers)
    assert "favor(m=64) suffices in layers 1-2, 4" in lines
    assert "uniform does as well in layer 3" in lines
    assert "keep softmax in layers 5-6" in lines
    assert 'to try: --set "model.layout=favor(m=64)*2|uniform|favor(m=64)|softmax*2"' in lines
    assert any("where m exceeds the 24 tokens" in line for line in lines)
    assert not any("to try" in line or "exceeds" in line for line in summarise([found(1), found(2)]))


def test_the_summary_counts_heads_near_uniform_and_features_of_linear_layers():
    near = [replace(found(1, head), own_distance=distance) for head, distance in ((1, 0.02), (2, 0.3), (3, 0.05))]
    linear = replace(found(1, mixer="relu(m=16)", own=1.0), features=16, used=5.3, vanished=0.25, own_rank=3.2)
    lines = summarise([linear, *near])
    assert any(line.startswith("2 of 3 heads are near uniform") for line in lines)
    assert any(
        "effective rank 3.2 of 24" in line and "5.3 of 16 features carry a row, all vanish in 25.0% of rows" in line
        for line in lines
    )


# Runs.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(tmp_path_factory.mktemp("doctor"), tiny(model=dict(stem="patch(2)", layout="favor(m=8)|softmax")))[0]


def test_a_run_is_looked_at_layer_by_layer_and_head_by_head(run):
    heard: list[tuple[int, int]] = []
    findings = diagnose(run, images=8, counts=(8, 16), listen=lambda done, total: heard.append((done, total)))
    assert [(each.layer, each.head, each.mixer) for each in findings] == [
        (layer, head, mixer) for layer, mixer in ((1, "favor(m=8)"), (2, "softmax")) for head in (None, 1, 2)
    ]
    assert {each.tokens for each in findings} == {17}
    assert heard == [(1, 2), (2, 2)]
    assert diagnose(run.path, images=8, counts=(8, 16)) == findings
    assert [each.errors["own"] > 0.01 for each in findings] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("layer", [0, 1])
def test_q_and_k_are_those_of_the_layer(run, layer):
    """A layer's projection of what comes in, of all tokens also in the last, seen by a hook of the test's own on
    validation images.
    """
    taken: list[Tensor] = []
    loaded = load(run)
    loaded.model.blocks[layer].attention.branch.qkv.register_forward_hook(
        lambda module, inputs, output: taken.append(output)
    )
    shown = seen_images(run, 9)
    loaded.features(shown)
    q, k, _ = (part.unflatten(-1, (2, 4)).norm(dim=-1) for part in taken[0].chunk(3, -1))
    found = diagnose(run, images=9)[3 * layer]
    assert found.q_norm == pytest.approx(q.mean().item(), rel=1e-5)
    assert found.k_norm == pytest.approx(k.mean().item(), rel=1e-5)


def seen_images(run: Run, count: int) -> Tensor:
    """The images that the doctor shows the model."""
    shown: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        right = TrainedModel.features
        patch.setattr(TrainedModel, "features", lambda self, images: (shown.append(images), right(self, images))[1])
        diagnose(run, images=count)
    return torch.cat(shown)


def test_it_looks_at_validation_images_and_at_test_images_where_there_are_none(run, tmp_path: Path):
    data = load_dataset(run.config.data.name)

    def within(images: Tensor, whole: Tensor) -> bool:
        return all((whole == image).flatten(1).all(1).any() for image in images)

    held = seen_images(run, 5)
    assert len(held) == 5
    assert within(held, data.train.images)
    other, _ = fit(tmp_path, tiny(data=dict(validation=0), train=dict(epochs=1, select="last")))
    tested = seen_images(other, 70)
    assert len(tested) == 48, "all there are"
    assert within(tested, data.test.images)


def test_any_run_can_be_looked_at(tmp_path: Path):
    """Relative positions, a mean head, bf16, a mixer of fixed length, and a control."""
    config = tiny(
        model=dict(layout="linformer(k=2)|none", position="rope2d", head="mean", dim=16),
        train=dict(epochs=1, precision="bf16"),
    )
    findings = diagnose(fit(tmp_path, config)[0], images=4, counts=(8,))
    assert {each.tokens for each in findings} == {4}
    assert all(math.isfinite(value) for each in findings for value in each.errors.values())
    assert "none does not look at q in layer 2" in summarise(findings)


def test_a_model_of_one_token_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.warns(UserWarning, match="single token"):
        run, _ = fit(
            tmp_path, tiny(model=dict(stem="conv(channels=(4,), tokens=1)", head="mean"), train=dict(epochs=1))
        )
    with pytest.warns(UserWarning, match="single token"):
        doctor(run.path, images=4, figure=tmp_path / "one.png")
    assert "attention has nothing to attend to in layers 1-2" in capsys.readouterr().out
    assert (tmp_path / "one.png").exists()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: None, "is not a run"),
        (lambda folder: (folder / "config.json").write_text("{"), "is damaged"),
    ],
)
def test_what_is_not_a_run_is_said(make: Any, says: str, tmp_path: Path):
    make(tmp_path)
    with pytest.raises(FavoritError, match=says):
        diagnose(tmp_path)


def test_images_that_are_not_those_of_the_run_are_refused(tmp_path: Path):
    """Divided otherwise, some of those that validate may have been trained on."""
    pictures(tmp_path / "images", {"a": 20, "b": 20})
    run, _ = fit(
        tmp_path / "runs", tiny(data=dict(name=f"folder:{tmp_path / 'images'}", validation=0.25), train=dict(epochs=1))
    )
    diagnose(run, images=2, counts=(8,))
    next((tmp_path / "images").rglob("*.png")).unlink()
    with pytest.raises(FavoritError, match=r"is not the data set that .* was trained on: its content has changed"):
        diagnose(run, images=2, counts=(8,))


def test_a_run_without_weights_is_said_to_be_unfinished(run, tmp_path: Path):
    (tmp_path / "config.json").write_text((run.path / "config.json").read_text())
    with pytest.raises(FavoritError, match=r"best\.safetensors is missing: rerun to resume"):
        diagnose(tmp_path)


@pytest.mark.parametrize(
    ("options", "says"), [({"images": 0}, "images=0"), ({"counts": ()}, "one m"), ({"counts": (0,)}, "m=0")]
)
def test_nothing_to_look_at_is_refused(run, options: dict[str, Any], says: str):
    with pytest.raises(FavoritError, match=says):
        diagnose(run, **options)


def test_grids_hold_what_is_drawn(run):
    findings = diagnose(run, images=8, counts=(8, 16))
    content = grids(findings)
    assert content.kernel == "favor(m=16)"
    assert content.mixers == ("favor(m=8)", "softmax")
    for layer, row in enumerate(content.relative):
        for head, value in enumerate(row):
            cell = next(each for each in findings if (each.layer, each.head) == (layer + 1, head + 1))
            assert value == pytest.approx(cell.errors["favor(m=16)"] / cell.errors["uniform"])
            assert content.lengths[layer][head] == cell.length
            assert content.idle[layer][head] == (cell.errors["uniform"] < 0.05)
            assert content.own is not None
            assert content.own[layer][head] == pytest.approx(cell.errors["own"] / cell.errors["uniform"])
    figure = draw(replace(content, relative=((0.2, 3.0), (1.0, 400.0)), idle=((False, True), (False, False))), "title")
    own, swept, lengths = figure.axes[:3]
    assert [text.get_text() for text in swept.texts] == ["0.20", "1.00", "400"], "no number where it means nothing"
    assert (len(own.texts), len(lengths.texts)) == (3, 4)
    assert swept.images[0].get_array().mask.tolist() == [[False, True], [False, False]]
    all_softmax = [replace(each, errors={**each.errors, "own": 0.0}) for each in findings]
    assert grids(all_softmax).own is None
    assert len(draw(grids(all_softmax), "title").axes) == 2 * 2, "two maps and their scales"


def test_the_command_prints_tables_advice_csv_and_json(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    doctor(
        run.path,
        images=8,
        m="8,16",
        heads=True,
        out=tmp_path / "heads.csv",
        figure=tmp_path / "heads.png",
        as_json=True,
    )
    printed = capsys.readouterr()
    said = json.loads(printed.out)
    assert [Finding(**each) for each in said["findings"]] == diagnose(run, images=8, counts=(8, 16))
    assert [each["layer"] for each in said["advice"]] == [1, 2]
    shown = printed.err.replace("\n", "")
    for text in (
        *said["summary"],
        *(each["verdict"] for each in said["advice"]),
        "favor(m=16)",
        "of 4 heads are near uniform",
    ):
        assert text in shown
    table = pandas.read_csv(tmp_path / "heads.csv")
    assert table["head"].tolist() == ["all", "1", "2"] * 2
    assert table["features"].tolist()[:3] == [8, 8, 8]
    assert table["error uniform"].tolist() == [each["errors"]["uniform"] for each in said["findings"]]
    assert (tmp_path / "heads.png").exists()
    with pytest.raises(
        FavoritError, match=r"--figure .*heads\.foo: no picture of that ending can be drawn: give it \.png"
    ):
        doctor(run.path, figure=tmp_path / "heads.foo")
