"""Search spaces: syntax, the configurations they build, errors before anything starts, and the spaces of the report."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from favorit import FavoritError, RunConfig
from favorit.model.outline import outline
from favorit.tuning.distributions import DISTRIBUTIONS
from favorit.tuning.samplers import PRUNERS, SAMPLERS
from favorit.tuning.space import Space
from favorit.tuning.spaces import SPACES, read_space
from tune_helpers import easy


def space(fields: dict[str, str], **base: Any) -> Space:
    return Space("mine", fields, easy(**base))


@pytest.mark.parametrize(
    ("text", "ends", "points"),
    [
        ("choice(1, 2, 4)", (1, 2, 4), (1, 2, 4)),
        ("choice(adam, 'relu(m=4)')", ("adam", "relu(m=4)"), ("adam", "relu(m=4)")),
        ("choice(('adam', 1), ('sgd', 2))", (("adam", 1), ("sgd", 2)), (("adam", 1), ("sgd", 2))),
        ("int(1, 5)", (1, 5), (1, 2, 3, 4, 5)),
        ("int(8, 35, step=8)", (8, 32), (8, 16, 24, 32)),
        ("uniform(0.0, 0.5)", (0.0, 0.5), None),
        ("uniform(0, 1)", (0, 1), None),
        ("log(1e-4, 3e-3)", (1e-4, 3e-3), None),
    ],
)
def test_distribution_is_parsed(text, ends, points):
    found = DISTRIBUTIONS.build(text)
    assert (found.ends, found.points) == (ends, points)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("choise(1, 2)", "did you mean 'choice'"),
        ("choice()", r"at train\.lr: choice: values is missing"),
        ("log(1e-4)", r"high is missing: log\(low, high\)"),
        ("uniform", r"low is missing: uniform\(low, high\)"),
        ("choice((adam, step))", "a literal or one word"),
        ("choice(1, 2, 1)", "twice"),
        ("log(0, 1)", "above 0"),
        ("log(1e-2, 1e-4)", r"low=.* is above high="),
        ("uniform(1, 0)", r"low=.* is above high="),
        ("uniform('a', 1)", "not valid"),
        ("uniform(0, 1e999)", "finite"),
        ("int(1.5, 3)", "not valid"),
        ("int(5, 3)", r"low=.* is above high="),
        ("int(1, 5, step=0)", "at least 1"),
        ("1e-3", "cannot read"),
    ],
)
def test_invalid_distribution_is_one_line(text, message):
    with pytest.raises(FavoritError, match=message) as error:
        space({"train.lr": text}).check()
    assert "\n" not in str(error.value)


def test_values_are_set_in_their_fields():
    found = space(
        {
            "train.lr": "log(1e-4, 1e-2)",
            "model.depth": "int(1, 3)",
            "model.performer.m": "choice(4, 8)",
            "model.dropout, model.emb_dropout": "uniform(0, 0.5)",
            "train.optimizer, train.schedule": "choice(('adam', 'step'), ('sgd', 'cosine'))",
            "seed": "int(0, 9)",
        },
        model=dict(layout="all_performer", performer="relu(m=2, eps=1e-6)"),
    )
    found.check()
    config = found.config(
        {
            "train.lr": 0.001,
            "model.depth": 3,
            "model.performer.m": 8,
            "model.dropout, model.emb_dropout": 0.25,
            "train.optimizer, train.schedule": ("sgd", "cosine"),
            "seed": 7,
        }
    )
    assert (config.train.lr, config.model.depth, config.seed) == (0.001, 3, 7)
    assert config.model.performer == "relu(m=8, eps=1e-06)"
    assert (config.model.dropout, config.model.emb_dropout) == (0.25, 0.25)
    assert (config.train.optimizer, config.train.schedule) == ("sgd", "cosine")
    assert config.train.batch_size == 32, "other fields keep the values of the base"


def test_parameter_is_set_in_a_component_that_is_searched_too():
    found = space({"model.performer.m": "choice(4, 8)", "model.performer": "choice('relu', 'favor(m=2)')"})
    found.check()
    assert found.config({"model.performer.m": 4, "model.performer": "favor(m=2)"}).model.performer == "favor(m=4)"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "is empty"),
        ({"train.lrr": "log(1e-4, 1e-2)"}, "unknown field in the search space 'train.lrr': did you mean 'train.lr'"),
        ({"trian.lr": "log(1e-4, 1e-2)"}, "unknown field in the search space 'trian.lr': did you mean 'train.lr'"),
        ({"lr": "log(1e-4, 1e-2)"}, "unknown field in the search space 'lr'"),
        ({"model": "choice(1)"}, "unknown field in the search space 'model'"),
        ({"train.lr, train.batchsize": "choice((0.1, 8))"}, "did you mean 'train.batch_size'"),
        ({"train.lr": "choice(0.1)", "train.lr, train.epochs": "choice((0.1, 8))"}, r"contains train\.lr twice"),
        ({"train.lr, train.epochs": "choice((0.1, 8), (0.1, 8, 9))"}, "to 2 fields"),
        ({"model.performer.mm": "choice(4)"}, "did you mean 'm'"),
        ({"model.dim.m": "choice(4)"}, "is 16, not a component"),
        ({"model.depth": "choice(1, 0)"}, r"model\.depth=0 is valid in no combination: .*at least 1"),
        ({"model.act": "choice(relu, relo)"}, "relo"),
        ({"train.lr": "uniform(0.0, 0.1)"}, r"train\.lr=0\.0 is valid in no combination"),
        ({"train.optimizer": "choice(adam, adem)"}, "unknown optimizer 'adem': did you mean 'adam'"),
        ({"model.stem": "choice('patch(4)', 'patch(sise=4)')"}, "did you mean 'size'"),
        (
            {"model.heads": "choice(2, 5)", "model.dim": "choice(16, 32)"},
            r"model\.heads=5 is valid in no combination: heads=5 does not divide",
        ),
    ],
)
def test_check_rejects_invalid_fields_and_values(fields, message):
    with pytest.raises(FavoritError, match=message) as error:
        space(fields).check()
    assert "\n" not in str(error.value)


def test_check_of_a_large_space_samples_combinations():
    """The other fields have 4 x 3^8 combinations, more than are tried for a number of heads."""
    many = {f"model.{name}": "choice(0.0, 0.1, 0.2)" for name in ("dropout", "emb_dropout", "drop_path")}
    many |= {f"train.{name}": "choice(1, 2, 3)" for name in ("epochs", "batch_size", "warmup", "patience", "redraw")}
    space({"model.dim": "choice(16, 24, 32, 40)", **many, "model.heads": "choice(2, 5)"}).check()
    with pytest.raises(
        FavoritError, match=r"model\.heads=7 is valid in none of 500 combinations: heads=7 does not divide"
    ):
        space({"model.dim": "choice(16, 24, 32, 40)", **many, "model.heads": "choice(2, 7)"}).check()


def test_check_accepts_a_value_that_is_valid_in_some_combination():
    """Five heads divide the dim 40, but not 16 (the base) or 32."""
    space({"model.heads": "choice(2, 5)", "model.dim": "choice(16, 32, 40)"}).check()


def test_space_is_read_from_a_file(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("train.lr: log(1e-4, 3e-3)\nmodel.depth: choice(1, 2)\n")
    found = read_space(tmp_path / "mine.yaml")
    assert (found.name, found.fields) == ("mine", {"train.lr": "log(1e-4, 3e-3)", "model.depth": "choice(1, 2)"})
    assert found.distributions["train.lr"].ends == (1e-4, 3e-3)
    assert found.base == RunConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.lr: [1, 2]", "must have lines such as"),
        ("- 1", "must have lines such as"),
        ("a: b: c", "is not YAML: line 1, column 5"),
        (None, "no such file"),
    ],
)
def test_invalid_file_is_an_error(tmp_path: Path, text, message):
    if text is not None:
        (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(FavoritError, match=message):
        read_space(tmp_path / "mine.yaml")


def test_unknown_space_names_the_nearest():
    with pytest.raises(FavoritError, match="did you mean 'kernels-relu'"):
        read_space("kernel-relu")


# Spaces of the report


@pytest.mark.parametrize("name", SPACES)
def test_built_in_space_is_valid(name):
    found = SPACES[name]
    found.check()
    assert read_space(name) is found
    SAMPLERS.build(found.sampler, space=found, seed=0)
    for pruner in PRUNERS:
        PRUNERS.build(pruner, epochs=found.base.train.epochs)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("kernels-vit", 2**8),
        ("kernels-elu-first", 3 * 3 * 2 * 2),
        ("kernels-elu", 3 * 3 * 2 * 3 * 2 * 4 * 3 * 3 * 2),
        ("kernels-exp-grid", 4 * 5 * 2 * 3 * 5 * 3 * 3),
        ("kernels-gelu-first", 3),
        ("kernels-gelu", None),
        ("kernels-ftheta", None),
        ("kernels-relu", None),
        ("kernels-exp", None),
    ],
)
def test_grids_have_the_size_of_the_report(name, size):
    assert SPACES[name].size == size
    assert SPACES[name].sampler == ("tpe" if size is None else "grid")


# The best configuration of the report by space. Each must be a point of its space.
BEST: dict[str, dict[str, Any]] = {
    "kernels-vit": dict(
        lr=5e-4, optimizer="adam", dropout=0.1, depth=8, heads=8, stem="patch(4)", dim=256, mlp_dim=512
    ),
    "kernels-relu": dict(lr=1.7e-3, batch_size=128, optimizer="sgd", dropout=0.1, depth=4, dim=960, heads=16),
    "kernels-elu": dict(
        lr=5e-4, batch_size=128, dim=768, dropout=0.0, heads=8, m=256, depth=1, optimizer="adamw", alpha=0.25
    ),
    "kernels-gelu-first": dict(lr=6.25e-5),
    "kernels-gelu": dict(lr=6.25e-5, batch_size=128, dropout=0.0, depth=1, dim=768, heads=16, m=128),
    "kernels-ftheta": dict(
        lr=1e-3, batch_size=64, optimizer="sgd", weight_decay=0.0, dropout=0.5, depth=5, dim=768, heads=16, m=512
    ),  # rate and batch: "ideal for all Performer variants" (section 9.2)
    "kernels-exp-grid": dict(lr=1e-3, batch_size=64, optimizer="adam", dropout=0.1, depth=3, dim=576, heads=16),
    "kernels-exp": dict(lr=1e-3, batch_size=64, optimizer="adam", dropout=0.1, depth=3, dim=576, heads=16, m=128),
}


@pytest.mark.parametrize("name", BEST)
def test_best_configuration_of_the_report_is_in_its_space(name):
    found = SPACES[name]
    wanted = dict(BEST[name])
    values: dict[str, Any] = {}
    for key, distribution in found.distributions.items():
        value = wanted.pop(key.split(",")[0].split(".")[-1])
        if distribution.points is None:
            low, high = distribution.ends
            assert low <= value <= high
            values[key] = value
        else:
            (values[key],) = [
                point
                for point in distribution.points
                if value in (point, point[0] if isinstance(point, tuple) else point)
            ]
    assert not wanted
    config = found.config(values)
    assert (config.data.name, config.data.folds, config.train.epochs) == ("cifar10", 5, 10)
    cycles = name.startswith("kernels-gelu")
    assert config.train.schedule == (
        "one_cycle" if cycles else {"adam": "step", "adamw": "step", "sgd": "cosine"}[config.train.optimizer]
    )
    assert config.train.weight_decay == (0.01 if config.train.optimizer == "adamw" else 0.0)


@pytest.mark.parametrize("name", ["kernels-gelu-first", "kernels-gelu", "kernels-ftheta"])
def test_spaces_of_unstable_kernels_clip_gradients(name):
    assert SPACES[name].base.train.clip == 1.0


@pytest.mark.parametrize("name", ["kernels-gelu-first", "kernels-gelu", "kernels-ftheta"])
def test_inferred_spaces_contain_only_valid_models(name):
    found = SPACES[name]
    sizes = {key: each.points for key, each in found.distributions.items() if key.startswith("model.") and each.points}
    rest = {key: each.ends[-1] for key, each in found.distributions.items() if key not in sizes}
    for values in itertools.product(*sizes.values()):
        config = found.config({**rest, **dict(zip(sizes, values, strict=True))})
        assert outline(config.model).tokens == 1


def test_first_gelu_space_has_the_model_of_the_report():
    model, train = SPACES["kernels-gelu-first"].base.model, SPACES["kernels-gelu-first"].base.train
    assert (model.dim, model.heads, model.depth, model.dropout, "m=128" in model.performer) == (768, 16, 1, 0.0, True)
    assert (train.optimizer, train.batch_size, train.schedule, train.warmup) == ("adam", 128, "one_cycle", 5)


def test_dropout_is_set_in_the_layer_of_the_single_token():
    found = SPACES["kernels-exp"]
    values = {key: distribution.ends[-1] for key, distribution in found.distributions.items()}
    config = found.config(values)
    assert (config.model.dropout, "dropout=0.3" in config.model.stem, "tokens=1" in config.model.stem) == (
        0.3,
        True,
        True,
    )
    assert "m=764" in config.model.performer
    assert "eps=1e-06" in config.model.performer


def test_invalid_combination_of_the_report_raises():
    found = SPACES["kernels-exp"]
    values = {key: distribution.ends[0] for key, distribution in found.distributions.items()}
    found.config(values)
    with pytest.raises(FavoritError, match="heads=12 does not divide dim=1024"):
        found.config({**values, "model.dim": 1024})


# Samplers


class FakeTrial:
    """The attribute of a trial that the grid sampler reads."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_grid_contains_each_combination_once():
    found = SPACES["kernels-vit"]
    sampler = SAMPLERS.build("grid", space=found, seed=0)
    points = [
        tuple(sampler.sample_independent(None, FakeTrial(number), key, None) for key in found.fields)
        for number in range(256)
    ]
    assert len(set(points)) == 256 == math.prod(len(each.points) for each in found.distributions.values())
    again = SAMPLERS.build("grid", space=found, seed=0)
    other = SAMPLERS.build("grid", space=found, seed=1)
    first = [
        [each.sample_independent(None, FakeTrial(number), "train.lr", None) for number in range(30)]
        for each in (sampler, again, other)
    ]
    assert first[0] == first[1] != first[2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train.lr": "log(1e-4, 1e-2)"}, r"train\.lr is log\(1e-4, 1e-2\)"),
        ({"seed": "int(0, 2000000)"}, "2,000,001 points"),
    ],
)
def test_grid_of_a_continuous_or_huge_space_is_an_error(fields, message):
    with pytest.raises(FavoritError, match=message):
        SAMPLERS.build("grid", space=space(fields), seed=0)
