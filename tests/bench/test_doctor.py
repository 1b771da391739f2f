"""`favorit doctor`: statistics of constructed and real activations, advice, figure, and the command."""

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

from checks_chart import drawn_texts, marks
from favorit import Attention, FavoritError, Run, seeds
from favorit.bench.doctor import layer_stats
from favorit.bench.doctor.advice import advise, summarize
from favorit.bench.doctor.diagnosis import diagnose
from favorit.bench.doctor.figure import Grids, cell_table, draw, grids
from favorit.bench.doctor.layer_stats import Finding, LayerStats
from favorit.cli.main import app
from favorit.data import load_dataset
from favorit.training.inference import load
from favorit.training.trained_model import TrainedModel
from training_helpers import fit, pictures, tiny

HEADS, TOKENS, WIDTH = 2, 24, 8


def tensors(std: float = 1.0, tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    """q and k with standard deviation `std`, and v."""
    q, k, v = torch.randn(3, 6, HEADS, tokens, WIDTH, generator=seeds.generator(0, "doctor"))
    return std * q, std * k, v


def measure(
    q: Tensor, k: Tensor, v: Tensor, mixer: str = "softmax", counts: tuple[int, ...] = (64, 256)
) -> list[Finding]:
    """The findings for a layer with these activations."""
    stats = LayerStats(1, mixer, Attention(HEADS * WIDTH, HEADS, mixer, seed=0), counts)
    stats.add(q, k, v)
    return stats.findings()


def test_statistics_of_a_head_match_their_definitions():
    q, k, v = tensors()
    layer, *heads = measure(q, k, v)
    w = (q @ k.mT / math.sqrt(WIDTH)).softmax(-1)
    bounds = q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :] / math.sqrt(WIDTH)
    assert [head.head for head in heads] == [1, 2]
    assert layer.head is None
    for index, head in enumerate(heads):
        assert head.q_norm == pytest.approx(q[:, index].norm(dim=-1).mean().item())
        assert head.logit_bound == pytest.approx(bounds[:, index].mean().item())
        quantile = bounds[:, index].flatten(1).quantile(0.95, dim=1).mean().item()
        assert head.logit_bound_95 == pytest.approx(quantile, rel=0.01)
        entropy = -(w * w.log()).sum(-1)[:, index].mean().item()
        assert head.entropy == pytest.approx(entropy / math.log(TOKENS), rel=1e-5)
        out, average = (w @ v)[:, index], v[:, index].mean(-2, keepdim=True)
        assert head.errors["uniform"] == pytest.approx(((average - out).norm() / out.norm()).item(), rel=1e-5)
        assert head.errors["own"] < 1e-6
        shares = torch.linalg.svdvals(w[:, index])
        shares = shares / shares.sum(-1, keepdim=True)
        effective_rank = (-(shares * shares.log()).sum(-1)).exp().mean().item()
        assert head.rank == head.own_rank == pytest.approx(effective_rank, rel=1e-4)
    out = w @ v
    uniform = ((v.mean(-2, keepdim=True) - out).norm() / out.norm()).item()
    assert layer.errors["uniform"] == pytest.approx(uniform, rel=1e-5)
    assert list(layer.errors) == ["uniform", "own", "favor(m=64)", "favor(m=256)", "relu", "elu", "exp"]


def test_effective_rank_is_full_for_identity_and_one_for_uniform_weights():
    eye = 100 * torch.eye(WIDTH).expand(3, HEADS, WIDTH, WIDTH)
    identity = measure(eye, eye, torch.randn(eye.shape))[0]
    assert identity.rank == pytest.approx(WIDTH, rel=1e-4)
    assert identity.entropy == pytest.approx(0, abs=1e-4)
    q, k, v = tensors()
    uniform = measure(q, torch.ones_like(k), v)[0]
    assert uniform.rank == pytest.approx(1, rel=1e-3)
    assert uniform.entropy == pytest.approx(1, rel=1e-5)
    assert uniform.errors["uniform"] < 1e-5


def test_rank_uses_fewer_images_for_many_tokens(monkeypatch: pytest.MonkeyPatch):
    q, k, v = tensors()
    monkeypatch.setattr(layer_stats, "RANK_WORK", 2 * HEADS * TOKENS**3)
    assert measure(q, k, v)[0].rank == pytest.approx(measure(q[:2], k[:2], v[:2])[0].rank)
    monkeypatch.setattr(layer_stats, "RANK_WORK", 1)
    assert measure(q, k, v)[0].rank == pytest.approx(measure(q[:1], k[:1], v[:1])[0].rank)


@pytest.mark.parametrize("blocks", [1, 2, 6])
def test_findings_do_not_depend_on_block_size(blocks, monkeypatch: pytest.MonkeyPatch):
    q, k, v = tensors()
    whole = measure(q, k, v, "relu(m=16)")
    monkeypatch.setattr(layer_stats, "BLOCK_ELEMENTS", 6 // blocks * HEADS * TOKENS**2)
    stats = LayerStats(1, "relu(m=16)", Attention(HEADS * WIDTH, HEADS, "relu(m=16)", seed=0), (64, 256))
    stats.add(q[:4], k[:4], v[:4])
    stats.add(q[4:], k[4:], v[4:])
    for found, expected in zip(stats.findings(), whole, strict=True):
        values, expected_values = ({**each.row(), "mixer": 0, "head": each.head or 0} for each in (found, expected))
        assert values == pytest.approx(expected_values, rel=1e-4)


def test_causal_layer_is_compared_with_causal_softmax():
    layer = measure(*tensors(0.3), "softmax(causal=True)", (256,))[0]
    assert layer.errors["own"] < 1e-6
    assert 0 < layer.entropy <= 1
    assert advise(layer).mixer == "favor(m=256, causal=True)"


def test_effective_features_fall_and_vanish_with_large_activations():
    small, large, huge = (measure(*tensors(std), "favor(m=16)")[0] for std in (0.1, 10.0, 100.0))
    assert small.features == 16
    assert small.effective_features > 15
    assert large.effective_features < 2
    assert small.vanished == large.vanished == 0
    assert huge.vanished > 0.5
    assert measure(*tensors())[0].features is None


def test_effective_features_of_signed_kernel_use_absolute_shares():
    """The entropy of negative shares would not be finite."""
    x = torch.tensor([1.0, -1.0] * (WIDTH // 2)).expand(2, HEADS, TOKENS, WIDTH)
    found = measure(x, x, torch.randn(2, HEADS, TOKENS, WIDTH), "elu(raw=True)")[0]
    share = (torch.nn.functional.elu(x[0, 0, 0] * WIDTH**-0.25) + 1e-3).square()
    share = share / share.sum()
    assert found.effective_features == pytest.approx((-(share * share.log()).sum()).exp().item(), rel=1e-4)
    assert found.vanished == 0
    q, k, v = tensors()
    assert measure(q, k, v, "elu(raw=True)")[0].effective_features > 2


# Advice on constructed activations.


def test_small_norms_are_advised_to_use_favor():
    advice = advise(measure(*tensors(0.4))[0])
    assert advice.verdict == "favor(m=256) is enough"
    assert advice.mixer == "favor(m=256)"


def test_large_norms_are_advised_to_keep_softmax_and_shrink():
    advice = advise(measure(*tensors(5.0))[0])
    assert advice.verdict == "keep softmax"
    assert advice.mixer == "softmax"
    assert "shrink q and k" in advice.reason
    assert "with model.qk_norm=True it is 2.8 at initialization" in advice.reason


def test_unit_norms_are_not_advised_to_normalize():
    reason = advise(measure(*tensors(1.0))[0]).reason
    assert "shrink q and k" in reason
    assert "narrower heads" in reason
    assert "qk_norm" not in reason


def test_constant_keys_are_advised_to_use_uniform():
    q, k, v = tensors()
    advice = advise(measure(q, k[:, :, :1].expand_as(k), v)[0])
    assert advice.verdict == "uniform is enough"
    assert advice.mixer == "uniform"
    assert "attention does little here" in advice.reason


def test_one_token_is_reported_as_trivial_attention():
    findings = measure(*tensors(tokens=1))
    assert advise(findings[0]).verdict == "attention has nothing to attend to"
    assert summarize(findings) == ["attention has nothing to attend to in layer 1"]


@pytest.mark.parametrize("mixer", ["uniform", "none"])
def test_mixer_that_ignores_q_is_reported(mixer):
    assert advise(measure(*tensors(), mixer)[0]).verdict == f"{mixer} does not use q"


def test_layer_with_too_few_features_is_advised_to_raise_m():
    layer = measure(*tensors(0.4), "favor(m=16)")[0]
    advice = advise(layer)
    assert (advice.verdict, advice.mixer) == ("raise m to 256", "favor(m=256)")
    assert advise(measure(*tensors(0.4), "favor(m=512)")[0]).verdict == "favor(m=512) follows softmax"


def test_kernel_that_does_not_follow_softmax_is_kept():
    advice = advise(measure(*tensors(1.0), "relu")[0])
    assert (advice.verdict, advice.mixer) == ("relu does not follow softmax", "relu")


# Advice on constructed findings.

BASE = measure(*tensors(), counts=(64, 128, 256))[0]


def found(layer: int = 1, head: int | None = None, mixer: str = "softmax", **errors: float) -> Finding:
    names = {"m64": "favor(m=64)", "m128": "favor(m=128)", "m256": "favor(m=256)"}
    given = {names.get(name, name): error for name, error in errors.items()}
    high = dict.fromkeys(BASE.errors, 2.0)
    return replace(
        BASE,
        layer=layer,
        head=head,
        mixer=mixer,
        logit_bound_95=1.0,
        errors={**high, "own": 0.0, "uniform": 0.5, **given},
    )


def test_advice_names_the_fewest_features_that_follow_softmax():
    assert advise(found(m64=0.26, m128=0.24, m256=0.1)).mixer == "favor(m=128)"
    assert advise(found(m64=0.2, relu=0.24)).mixer == "relu", "relu has 8 features in a head of width 8"
    assert advise(found(m64=0.26, m128=0.26, m256=0.26)).mixer == "softmax"


def test_half_of_a_large_uniform_error_is_not_enough():
    assert advise(found(uniform=1.2, m256=0.4)).mixer == "softmax"
    assert advise(found(uniform=1.2, m256=0.29)).mixer == "favor(m=256)"


def test_advice_never_lowers_m():
    layer = replace(found(mixer="favor(m=512)", own=0.4, m64=0.1), features=512)
    advice = advise(layer)
    assert (advice.verdict, advice.mixer) == ("favor(m=512) does not follow softmax", "favor(m=512)")
    assert "favor(m=64) follows softmax, error 0.1 with new random features: set train.redraw" in advice.reason
    assert advise(replace(layer, features=32)).verdict == "raise m to 64"


def test_more_features_are_advised_if_norms_are_small():
    assert "may follow softmax with more than 256 features" in advise(found(m256=0.3)).reason


def test_summary_names_ranges_of_layers_and_a_layout_to_try():
    layers = [found(1, m64=0.1), found(2, m64=0.1), found(3, uniform=0.01), found(4, m64=0.1), found(5), found(6)]
    lines = summarize(layers)
    assert "favor(m=64) is enough in layers 1-2, 4" in lines
    assert "uniform is enough in layer 3" in lines
    assert "keep softmax in layers 5-6" in lines
    assert 'to try: --set "model.layout=favor(m=64)*2|uniform|favor(m=64)|softmax*2"' in lines
    assert any("m exceeds the 24 tokens" in line for line in lines)
    assert not any("to try" in line or "exceeds" in line for line in summarize([found(1), found(2)]))


def test_summary_counts_uniform_heads_and_effective_features():
    near = [replace(found(1, head), own_distance=distance) for head, distance in ((1, 0.02), (2, 0.3), (3, 0.05))]
    linear = replace(
        found(1, mixer="relu(m=16)", own=1.0), features=16, effective_features=5.3, vanished=0.25, own_rank=3.2
    )
    lines = summarize([linear, *near])
    assert any(line.startswith("2 of 3 heads are near uniform") for line in lines)
    assert any(
        "effective rank 3.2 of 24" in line and "5.3 of 16 features are effective, all vanish in 25.0% of rows" in line
        for line in lines
    )


# Runs.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(tmp_path_factory.mktemp("doctor"), tiny(model=dict(stem="patch(2)", layout="favor(m=8)|softmax")))[0]


def test_diagnose_has_findings_for_each_layer_and_head(run):
    progress: list[tuple[int, int]] = []
    findings = diagnose(run, images=8, counts=(8, 16), listen=lambda done, total: progress.append((done, total)))
    assert [(each.layer, each.head, each.mixer) for each in findings] == [
        (layer, head, mixer) for layer, mixer in ((1, "favor(m=8)"), (2, "softmax")) for head in (None, 1, 2)
    ]
    assert {each.tokens for each in findings} == {17}
    assert progress == [(1, 2), (2, 2)]
    assert diagnose(run.path, images=8, counts=(8, 16)) == findings
    assert [each.errors["own"] > 0.01 for each in findings] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("layer", [0, 1])
def test_diagnose_measures_q_and_k_of_all_tokens(run, layer):
    """Compared with a hook on the layer's projection. The logits need only some queries of the last layer."""
    recorded: list[Tensor] = []
    loaded = load(run)
    loaded.model.blocks[layer].attention.branch.qkv.register_forward_hook(
        lambda module, inputs, output: recorded.append(output)
    )
    loaded.features(diagnosed_images(run, 9))
    q, k, _ = (part.unflatten(-1, (2, 4)).norm(dim=-1) for part in recorded[0].chunk(3, -1))
    found = diagnose(run, images=9)[3 * layer]
    assert found.q_norm == pytest.approx(q.mean().item(), rel=1e-5)
    assert found.k_norm == pytest.approx(k.mean().item(), rel=1e-5)


def diagnosed_images(run: Run, count: int) -> Tensor:
    """The images that `diagnose` passes to the model."""
    passed: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        features = TrainedModel.features
        patch.setattr(TrainedModel, "features", lambda self, images: (passed.append(images), features(self, images))[1])
        diagnose(run, images=count)
    return torch.cat(passed)


def test_diagnose_uses_validation_images_or_else_test_images(run, tmp_path: Path):
    data = load_dataset(run.config.data.name)

    def within(images: Tensor, whole: Tensor) -> bool:
        return all((whole == image).flatten(1).all(1).any() for image in images)

    validation = diagnosed_images(run, 5)
    assert len(validation) == 5
    assert within(validation, data.train.images)
    other, _ = fit(tmp_path, tiny(data=dict(validation=0), train=dict(epochs=1, select="last")))
    test = diagnosed_images(other, 70)
    assert len(test) == 48, "all test images"
    assert within(test, data.test.images)


def test_diagnose_handles_relative_positions_bf16_linformer_and_controls(tmp_path: Path):
    config = tiny(
        model=dict(layout="linformer(k=2)|none", position="rope2d", head="mean", dim=16),
        train=dict(epochs=1, precision="bf16"),
    )
    findings = diagnose(fit(tmp_path, config)[0], images=4, counts=(8,))
    assert {each.tokens for each in findings} == {4}
    assert all(math.isfinite(value) for each in findings for value in each.errors.values())
    assert "none does not use q in layer 2" in summarize(findings)


def test_command_reports_model_with_a_single_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.warns(UserWarning, match="single token"):
        run, _ = fit(
            tmp_path, tiny(model=dict(stem="conv(channels=(4,), tokens=1)", head="mean"), train=dict(epochs=1))
        )
    with pytest.warns(UserWarning, match="single token"):
        app(["doctor", str(run.path), "--images", "4", "--figure", str(tmp_path / "one.png")], standalone_mode=False)
    assert "attention has nothing to attend to in layers 1-2" in capsys.readouterr().out
    assert (tmp_path / "one.png").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "is not a run"),
        (lambda folder: (folder / "config.json").write_text("{"), "is damaged"),
    ],
)
def test_folder_that_is_not_a_run_is_rejected(make: Any, message: str, tmp_path: Path):
    make(tmp_path)
    with pytest.raises(FavoritError, match=message):
        diagnose(tmp_path)


def test_changed_data_set_is_rejected(tmp_path: Path):
    """In another split, the model may have been trained on validation images."""
    pictures(tmp_path / "images", {"a": 20, "b": 20})
    run, _ = fit(
        tmp_path / "runs", tiny(data=dict(name=f"folder:{tmp_path / 'images'}", validation=0.25), train=dict(epochs=1))
    )
    diagnose(run, images=2, counts=(8,))
    next((tmp_path / "images").rglob("*.png")).unlink()
    with pytest.raises(FavoritError, match=r"is not the data set that .* was trained on: its content has changed"):
        diagnose(run, images=2, counts=(8,))


def test_run_without_weights_is_rejected(run, tmp_path: Path):
    (tmp_path / "config.json").write_text((run.path / "config.json").read_text())
    with pytest.raises(FavoritError, match=r"best\.safetensors is missing: rerun to resume"):
        diagnose(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"), [({"images": 0}, "images=0"), ({"counts": ()}, "at least one m"), ({"counts": (0,)}, "m=0")]
)
def test_empty_request_is_rejected(run, options: dict[str, Any], message: str):
    with pytest.raises(FavoritError, match=message):
        diagnose(run, **options)


def test_figure_shows_the_values_of_its_grids(run):
    findings = diagnose(run, images=8, counts=(8, 16))
    content = grids(findings)
    assert content.kernel == "favor(m=16)"
    assert content.mixers == ("favor(m=8)", "softmax")
    for layer, row in enumerate(content.relative):
        for head, value in enumerate(row):
            cell = next(each for each in findings if (each.layer, each.head) == (layer + 1, head + 1))
            assert value == pytest.approx(cell.errors["favor(m=16)"] / cell.errors["uniform"])
            assert content.logit_bounds[layer][head] == cell.logit_bound
            assert content.idle[layer][head] == (cell.errors["uniform"] < 0.05)
            assert content.own is not None
            assert content.own[layer][head] == pytest.approx(cell.errors["own"] / cell.errors["uniform"])
    assert grids([replace(each, errors={**each.errors, "own": 0.0}) for each in findings]).own is None


def test_figure_has_the_value_of_each_cell_that_is_not_idle():
    content = Grids(
        kernel="favor(m=16)",
        mixers=("favor(m=8)", "softmax"),
        own=((0.5, 0.6), (0.0, 0.0)),
        relative=((0.2, 3.0), (1.0, 400.0)),
        logit_bounds=((1.0, 2.0), (3.0, 12.0)),
        idle=((False, True), (False, False)),
    )
    own, swept, bounds = cell_table(content).values()
    assert list(swept["text"]) == ["0.20", "", "1.00", "400"], "no value in idle heads"
    assert list(own["text"]) == ["0.50", "", "0.00", "0.00"]
    assert list(bounds["text"]) == ["1.00", "2.00", "3.00", "12"]
    assert list(swept["layer"]) == ["1: favor(m=8)"] * 2 + ["2: softmax"] * 2
    assert list(swept["head"]) == [1, 2, 1, 2]
    assert list(swept["is_dark"]) == [True, False, False, True], "white text on dark colors"
    chart = draw(content, "title")
    colored = [mark for mark in marks(chart) if "field" in mark["encoding"].get("color", {})]
    assert [mark["encoding"]["color"]["scale"].get("type") for mark in colored] == ["log", "log", None]
    assert {"title", "favor(m=16): error / uniform's", "400", "12"} <= set(drawn_texts(chart))
    assert any(text.startswith("gray: averaging all values") for text in drawn_texts(chart))
    without = draw(replace(content, own=None, idle=((False, False),) * 2), "title")
    assert len([mark for mark in marks(without) if "field" in mark["encoding"].get("color", {})]) == 2
    assert not any(text.startswith("gray:") for text in drawn_texts(without))


def test_command_writes_tables_advice_csv_figure_and_json(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files = ["--out", str(tmp_path / "heads.csv"), "--figure", str(tmp_path / "heads.png")]
    arguments = ["doctor", str(run.path), "--images", "8", "--m", "8,16", "--heads", *files, "--json"]
    app(arguments, standalone_mode=False)
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert [Finding(**each) for each in report["findings"]] == diagnose(run, images=8, counts=(8, 16))
    assert [each["layer"] for each in report["advice"]] == [1, 2]
    shown = printed.err.replace("\n", "")
    for text in (
        *report["summary"],
        *(each["verdict"] for each in report["advice"]),
        "favor(m=16)",
        "of 4 heads are near uniform",
    ):
        assert text in shown
    table = pandas.read_csv(tmp_path / "heads.csv")
    assert table["head"].tolist() == ["all", "1", "2"] * 2
    assert table["features"].tolist()[:3] == [8, 8, 8]
    assert table["error uniform"].tolist() == [each["errors"]["uniform"] for each in report["findings"]]
    assert (tmp_path / "heads.png").exists()
    with pytest.raises(FavoritError, match=r"--figure .*heads\.foo: unknown format .foo: use .png"):
        app(["doctor", str(run.path), "--figure", str(tmp_path / "heads.foo")], standalone_mode=False)
