"""Which runs a report shows, in which section and under which name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from favorit import RunConfig
from favorit.reports.build import build_report
from favorit.reports.collect import OTHER, collect
from favorit.reports.runs import StudyRuns
from favorit.study import Study, product
from favorit.study.matching import match
from make_runs import make_run, make_study
from training_helpers import raises_line, tiny

OWN = Study(
    "thesis",
    "Which one?",
    {"data.name": "digits", "train.epochs": 2},
    product({"model.layout": ["softmax", "uniform"]}),
)
FILE = """
from favorit.study import Study, product
STUDY = Study("thesis", "Which one?", {"data.name": "digits", "train.epochs": 2},
              product({"model.layout": ["softmax", "uniform"]}))
"""


def names(runs: StudyRuns) -> dict[str, int]:
    """The number of runs of each variant."""
    return {variant.name: len(variant.runs) for variant in runs.variants}


@pytest.mark.parametrize("packed", [False, True])
def test_runs_of_a_built_in_study_are_matched_by_their_configuration(packed: bool, tmp_path: Path):
    make_study(tmp_path, "quickstart", {"layout=softmax": [0.9, 0.8], "layout=uniform": [0.5]}, packed=packed)
    (found,) = collect(tmp_path).studies
    assert (found.name, found.scale, found.options.protocol) == ("quickstart", "published", "published")
    assert names(found) == {"layout=softmax": 2, "layout=favor(m=64)": 0, "layout=relu(m=64)": 0, "layout=uniform": 1}
    assert [variant.name for variant in found.missing] == ["layout=favor(m=64)", "layout=relu(m=64)"]
    assert sorted(found.frame["accuracy"]) == [0.5, 0.8, 0.9]


def test_scales_and_protocols_are_sections_of_their_own(tmp_path: Path):
    make_study(tmp_path, "hybrids", {"layout=all_standard": [0.5]}, scale="small")
    make_study(tmp_path, "hybrids", {"data=cifar10 layout=all_standard": [0.7]})
    make_study(tmp_path, "hybrids", {"data=cifar10 layout=all_standard": [0.6]}, protocol="sound")
    found = [(each.scale, each.options.protocol) for each in collect(tmp_path).studies]
    assert found == [("published", "published"), ("published", "sound"), ("small", "published")]
    assert [each.scale for each in collect(tmp_path, scale="small").studies] == ["small"]


def test_study_of_a_file_that_is_not_given_is_a_section_by_recorded_names(tmp_path: Path):
    for layout in ("softmax", "uniform"):
        for seed in (0, 1):
            config = tiny(model=dict(layout=layout), seed=seed)
            make_run(tmp_path, config, classes="abc", name=f"layout={layout} seed={seed} width=8", study="thesis")
    make_run(tmp_path, tiny(seed=2), name="alone seed=2")
    own, other = collect(tmp_path).studies
    assert (own.name, own.study) == ("thesis", None)
    assert names(own) == {"layout=softmax width=8": 2, "layout=uniform width=8": 2}
    assert (other.name, names(other)) == (OTHER, {"alone": 1})
    assert [each.name for each in collect(tmp_path, ["thesis"]).studies] == ["thesis"]


def test_study_of_ones_own_is_not_also_a_section_of_a_built_in_study(tmp_path: Path):
    runs = make_study(tmp_path, "quickstart", {"layout=softmax": [0.9]}, name="mine", study="thesis")
    assert names(runs)["layout=softmax"] == 1, "the named study does show it"
    assert [each.name for each in collect(tmp_path).studies] == ["thesis"]


def test_study_of_a_file_shows_missing_points_and_its_commands(tmp_path: Path):
    path = tmp_path / "my study.py"
    path.write_text(FILE)
    make_study(tmp_path / "runs", OWN, {"layout=softmax": [0.9]}, study="thesis", name="layout=softmax")
    (found,) = collect(tmp_path / "runs", [path]).studies
    assert names(found) == {"layout=softmax": 1, "layout=uniform": 0}
    assert found.command("layout=uniform") == f"favorit study run '{path}' --only layout=uniform"
    (variant, _) = found.variants
    assert found.repeat(variant, variant.runs[0]) == f"favorit study run '{path}' --only layout=softmax --seeds 0"


def test_study_on_data_of_ones_own_is_matched_without_reading_the_data(tmp_path: Path):
    study = Study("own", "?", {"data.name": "folder:/nowhere"}, product({"model.layout": ["softmax", "uniform"]}))
    config = next(iter(study.configs().values()))
    sized = config.replace(model=config.model.replace(image_size=(17, 17), channels=1, classes=3))
    assert [each.group for each in match(sized, [study])] == ["layout=softmax"]
    assert match(sized.replace(data=sized.data.replace(name="folder:/elsewhere")), [study]) == []
    make_run(tmp_path, sized, 0.5)
    assert names(collect(tmp_path, [study]).studies[0]) == {"layout=softmax": 1, "layout=uniform": 0}


def test_changed_runs_of_a_built_in_study_are_listed_apart(tmp_path: Path):
    config = RunConfig(data={"name": "digits"}, train={"epochs": 1})
    make_run(tmp_path, config, name="layout=softmax seed=0", study="quickstart")
    for studies in ([], ["quickstart"]):
        (section,) = build_report(tmp_path, studies).sections
        assert "no point of it has their configuration" in section.question


def test_variant_has_one_configuration_although_names_are_equal(tmp_path: Path):
    for epochs in (1, 2):
        for seed in (0, 1):
            make_run(tmp_path, tiny(train=dict(epochs=epochs), seed=seed), name=f"softmax seed={seed}", study="thesis")
    assert names(collect(tmp_path).studies[0]) == {"softmax train.epochs=1": 2, "softmax train.epochs=2": 2}


def test_run_with_an_unknown_component_is_reported(tmp_path: Path):
    path = make_run(tmp_path, tiny(), name="mine")
    saved = json.loads((path / "config.json").read_text())
    saved["config"]["model"]["stem"] = "stem_of_nobody(4)"
    (path / "config.json").write_text(json.dumps(saved))
    assert names(collect(tmp_path).studies[0]) == {"mine": 1}


def test_damaged_runs_are_listed_and_hide_nothing(tmp_path: Path):
    make_study(tmp_path, "quickstart", {"layout=softmax": [0.9], "layout=uniform": [0.5]})
    (broken := tmp_path / "0broken").mkdir()
    (broken / "config.json").write_text("{ not JSON")
    (tmp_path / "1broken.zip").write_bytes(b"PK nothing")
    (empty := tmp_path / "2broken").mkdir()
    (empty / "config.json").write_text('{"schema": 1, "config": {}}')
    found = collect(tmp_path)
    assert [each.id for each in found.damaged] == ["0broken", "1broken", "2broken"]
    assert sum(names(found.studies[0]).values()) == 2
    details = {each.id: each for each in build_report(tmp_path).runs}
    assert len(details) == 5
    assert (details["0broken"].status, details["0broken"].error.count("\n")) == ("damaged", 0)
    assert "0broken" in details["0broken"].error


def test_damaged_predictions_leave_the_rest_of_the_report(tmp_path: Path):
    make_study(tmp_path, "quickstart", {"layout=softmax": [0.9], "layout=uniform": [0.5]})
    for path in tmp_path.glob("*/predictions.npz"):
        path.write_bytes(b"nothing")
    (section,) = build_report(tmp_path).sections
    assert "no predictions of both" in section.glance
    assert len(section.tables[0].rows) == 2


def test_unfinished_and_failed_runs_are_gaps(tmp_path: Path):
    make_run(tmp_path, tiny(seed=0), name="one", study="thesis", status="training")
    make_run(tmp_path, tiny(seed=1, train=dict(epochs=1)), name="two", study="thesis", status="failed")
    document = build_report(tmp_path)
    (section,) = document.sections
    assert section.glance == "No complete run yet."
    assert {each.what for each in section.gaps if each.command} == {"one", "two"}
    assert sorted((each.status, each.error) for each in document.runs) == [
        ("failed", "the loss is not finite"),
        ("stopped", ""),
    ]


def test_empty_and_missing_folders_say_what_to_run_first(tmp_path: Path):
    raises_line(lambda: build_report(tmp_path), "has no runs", f"favorit study run quickstart --out {tmp_path}")
    missing = tmp_path / "missing"
    raises_line(
        lambda: build_report(missing, ["hybrids"]), "does not exist", f"favorit study run hybrids --out {missing}"
    )


def test_named_study_without_runs_lists_all_of_it_as_missing(tmp_path: Path):
    make_study(tmp_path, "quickstart", {"layout=softmax": [0.9]})
    (section,) = build_report(tmp_path, ["positions"]).sections
    assert any(gap.command == "favorit study run positions" and "30 of 30" in gap.what for gap in section.gaps)


def test_unknown_studies_and_scales_are_mistakes(tmp_path: Path):
    make_run(tmp_path, tiny(scale="small"), study="thesis", name="one")
    raises_line(lambda: collect(tmp_path, ["thesiss"]), "'thesiss'", "did you mean 'thesis'?", "hybrids")
    raises_line(lambda: collect(tmp_path, scale="smal"), "'smal'", "did you mean 'small'?")
