"""The public names of favorit: documented, annotated, lazy, and usable in a script checked by mypy --strict."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import favorit
from training_helpers import PATIENCE

NAMES = [name for name in favorit.__all__ if name != "__version__"]
SAMPLE = """
import numpy as np
import favorit
from favorit import study

images = np.zeros((60, 8, 8), dtype=np.uint8)
labels = np.arange(60) % 3
data = favorit.build_dataset(images, labels, classes=["a", "b", "c"])
run = favorit.train({"train": {"epochs": 1}}, data=data, progress=False)
model = favorit.create_model("vit-64", layout="performer_first")
layer = favorit.Attention(dim=16, heads=2, mixer="relu(m=8)")
mixer = favorit.build_mixer("relu(m=8)", heads=2, head_dim=8)
points = study.product({"seed": [0]})
reveal_type(data)
reveal_type(run)
reveal_type(run.id)
reveal_type(run.config.model.dim)
reveal_type(model)
reveal_type(layer)
reveal_type(mixer)
reveal_type(favorit.load(run))
reveal_type(favorit.load(run).predict("cat.png"))
reveal_type(favorit.load(run).predict(images)[0].label)
reveal_type(favorit.predict(run, images))
reveal_type(favorit.evaluate(run))
reveal_type(favorit.runs("runs"))
reveal_type(favorit.compare(run, [run]))
reveal_type(favorit.doctor(run).advice)
reveal_type(favorit.report("hybrids", "results/runs"))
reveal_type(favorit.report().write())
reveal_type(favorit.pack(run, "packed"))
reveal_type(favorit.tune("quickstart").best)
reveal_type(study.run(study.Study("mine", "?", {}, points)))
reveal_type(favorit.study.status("quickstart"))
"""


@pytest.mark.parametrize("name", NAMES)
def test_public_name_has_a_docstring_and_annotations(name: str) -> None:
    found = getattr(favorit, name)
    assert inspect.getdoc(found)
    if inspect.isfunction(found):
        own = [found]
    elif inspect.isclass(found):
        own = [each for key, each in vars(found).items() if inspect.isfunction(each) and not key.startswith("_")]
    else:
        own = []
    for function in own:
        assert inspect.getdoc(function) or function.__name__ == "forward", function
        signature = inspect.signature(function)
        assert signature.return_annotation is not signature.empty, function
        for parameter in list(signature.parameters.values())[1 if inspect.isclass(found) else 0 :]:
            assert parameter.annotation is not parameter.empty, (function, parameter)


@pytest.mark.parametrize("name", NAMES)
def test_name_is_the_same_for_type_checkers_and_at_run_time(name: str) -> None:
    """`favorit/__init__.py` lists each name twice: for type checkers and for lazy imports."""
    source = Path(favorit.__file__).read_text()
    home = "favorit" if name == "study" else favorit._HOMES[name]
    assert f"    from {home} import {name} as {name}\n" in source


def test_import_of_favorit_imports_no_torch() -> None:
    code = "import sys, favorit; favorit.study; dir(favorit); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "False\n"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'favorit' has no attribute 'nope'"):
        _ = favorit.nope


def test_script_of_a_user_passes_mypy_strict(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SAMPLE)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    revealed = [line.partition("Revealed type is ")[2] for line in done.stdout.splitlines() if "Revealed" in line]
    assert len(revealed) == SAMPLE.count("reveal_type")
    assert [each for each in revealed if "Any" in each] == []
