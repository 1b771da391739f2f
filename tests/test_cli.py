"""The command line: fast help, correct tables, and one line for a mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import favorit
from favorit.catalog import KINDS
from favorit.cli import main
from training_helpers import PATIENCE

HEAVY = ("torch", "numpy", "pandas", "sklearn", "altair", "vl_convert", "lightning_fabric")


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `favorit ...` in this process and returns exit status, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["favorit", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return run


def run_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "favorit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **environment})


def test_help_lists_the_commands_within_400_ms_of_cpu_time():
    def child_cpu_seconds() -> float:
        """CPU time of the child processes, which excludes other processes on the machine."""
        times = os.times()
        return times.children_user + times.children_system

    def seconds() -> float:
        start = child_cpu_seconds()
        done = run_process("--help")
        assert done.returncode == 0
        assert "list" in done.stdout
        assert "show" in done.stdout
        return child_cpu_seconds() - start

    # The fastest of many tries: other processes slow down even the CPU time of a process.
    assert any(seconds() < 0.4 for _ in range(25))


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["list", "--help"], ["show", "--help"], ["selftest", "--help"], ["--version"]],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(arguments):
    code = f"""
import sys
from favorit.cli import main
sys.argv = ["favorit", *{arguments!r}]
try:
    main()
finally:
    print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert done.stdout.rstrip().endswith("heavy: []")


def test_version_is_printed(command):
    assert command("--version") == (0, f"favorit {favorit.__version__}\n", "")


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_list_names_every_component(command, kind):
    status, out, err = command("list", *([kind] if kind else []))
    assert (status, err) == (0, "")
    for each in [kind] if kind else KINDS:
        assert each in out
        assert all(name in out for name in favorit.list_components(each))


def test_list_shows_formulas_with_their_brackets(command):
    out = " ".join(command("list", "positions")[1].split())
    assert "[sin(column w), cos(column w), sin(row w), cos(row w)]" in out
    assert "table[n]" in out


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_list_as_json_has_every_component(command, kind):
    status, out, _ = command("list", *([kind] if kind else []), "--json")
    found = json.loads(out)
    assert status == 0
    assert {each: list(names) for each, names in found.items()} == {
        each: favorit.list_components(each) for each in ([kind] if kind else KINDS)
    }


def test_show_prints_layers_and_total(command):
    status, out, err = command("show", "vit-64")
    assert (status, err) == (0, "")
    for text in ("layer", "output", "parameters", "trainable", "MFLOPs", "blocks.3.feed_forward", "142,026", "65 x 64"):
        assert text in out


def test_show_as_json_sums_to_its_totals(command):
    status, out, _ = command("show", "simple-vit", "--json")
    found = json.loads(out)
    assert (status, found["preset"], found["parameters"]) == (0, "simple-vit", 2_374_026)
    assert found["config"]["dim"] == 128
    for total in ("parameters", "trainable", "flops"):
        assert sum(layer[total] for layer in found["layers"]) == found[total]
    assert {"layer", "kind", "shape", "parameters", "trainable", "flops", "parts"} == set(found["layers"][0])


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        ("relu|softmax", "relu|softmax|relu|softmax"),
        ("performer_first", "favor*2|softmax*2"),
        ("relu(m=64)", "relu(m=64)*4"),
    ],
)
def test_show_prints_the_mixer_of_each_layer(command, layout, layers):
    out = command("show", "vit-64", "--set", f"model.layout={layout}")[1]
    assert out.endswith(f"\nlayers 1 to 4: {layers}\n")


def test_show_equals_the_published_summary(command):
    """The layers of one block of SimpleViT, as its report prints them."""
    lines = [line.split() for line in command("show", "simple-vit")[1].splitlines()]
    block = [line for line in lines if line and line[0].startswith("blocks.1.")]
    assert [(line[1], " ".join(line[2:-3]), line[-3], line[-2]) for line in block] == [
        ("LayerNorm", "64 x 128", "256", "256"),
        ("Linear", "64 x 1536", "196,608", "196,608"),
        ("softmax", "8 x 64 x 64", "0", "0"),
        ("Linear", "64 x 128", "65,536", "65,536"),
        ("LayerNorm", "64 x 128", "256", "256"),
        ("Linear", "64 x 512", "66,048", "66,048"),
        ("GELU", "64 x 512", "0", "0"),
        ("Linear", "64 x 128", "65,664", "65,664"),
    ]


def test_show_applies_settings(command):
    settings = [
        "model.layout=performer_first",
        "model.performer=relu(m=64)",
        "model.image_size=(28, 20)",
        "model.channels=1",
    ]
    status, out, _ = command("show", "vit-64", "--json", *(part for setting in settings for part in ("--set", setting)))
    found = json.loads(out)
    assert status == 0
    assert [layer["kind"] for layer in found["layers"] if layer["layer"].endswith("attention")] == [
        "relu(m=64)"
    ] * 2 + ["softmax"] * 2
    assert found["config"]["image_size"] == [28, 20]
    assert found["layers"][0]["shape"] == [35, 64]


# A preset, settings with a mistake, and words that the error message must contain: field, value, valid choices.
MISTAKES = {
    "unknown preset": ("vti-64", [], ["preset 'vti-64'", "did you mean 'vit-64'", "simple-vit"]),
    "unknown mixer": ("vit-64", ["model.layout=sofmax"], ["mixer 'sofmax'", "did you mean 'softmax'", "linformer"]),
    "unknown kernel": ("vit-64", ["model.performer=favr"], ["mixer 'favr'", "did you mean 'favor'", "mixture"]),
    "unknown position": ("vit-64", ["model.position=rope"], ["position 'rope'", "did you mean 'rope2d'", "sincos2d"]),
    "unknown stem": ("vit-64", ["model.stem=pach(4)"], ["stem 'pach'", "did you mean 'patch'", "resnet"]),
    "unknown head": ("vit-64", ["model.head=clss"], ["head 'clss'", "did you mean 'cls'", "seqpool"]),
    "unknown field": ("vit-64", ["model.depht=2"], ["field", "'depht'", "did you mean 'depth'", "mlp_dim"]),
    "unknown section": ("vit-64", ["modl.depth=2"], ["section", "'modl'", "did you mean 'model'"]),
    "unknown parameter": ("vit-64", ["model.layout=favor(n=3)"], ["parameter of favor 'n'", "features", "m,"]),
    "setting without a value": ("vit-64", ["model.depth"], ["'model.depth'", "section.key=value"]),
    "setting without a section": ("vit-64", ["depth=2"], ["'depth=2'", "section.key=value"]),
    "wrong type": ("vit-64", ["model.dim=wide"], ["dim='wide'", "integer"]),
    "wrong type in a spec": ("vit-64", ["model.layout=favor(m=many)"], ["favor", "m=many", "integer"]),
    "bad syntax": ("vit-64", ["model.layout=relu("], ["'relu('", "name(key=value"]),
    "unhashable value": ("vit-64", ["model.dim={[]: 1}"], ["dim='{[]: 1}'", "integer"]),
    "heads do not divide dim": ("vit-64", ["model.heads=7"], ["heads=7", "dim=64", "head_dim"]),
    "patch does not divide": ("vit-64", ["model.stem=patch(5)"], ["(5, 5)", "(32, 32)", "crop=True"]),
    "causal linformer": (
        "vit-64",
        ["model.layout=linformer(causal=True)", "model.head=mean"],
        ["linformer", "causal=True", "softmax"],
    ),
    "causal with cls": ("vit-64", ["model.layout=relu(causal=True)"], ["causal", "prefix=1", "head=mean"]),
    "odd m for hyperbolic": (
        "vit-64",
        ["model.layout=favor(m=15, features=hyperbolic)"],
        ["m=15", "hyperbolic", "even"],
    ),
    "width for rope2d": ("vit-64", ["model.position=rope2d", "model.head_dim=6"], ["rope2d", "6", "divisible by 4"]),
    "m below 1": ("vit-64", ["model.layout=relu(m=0)"], ["relu", "m=0", "at least 1"]),
    "layout does not fit": (
        "vit-64",
        ["model.layout=relu|softmax|relu"],
        ["layout='relu|softmax|relu'", "depth=4", "multiple"],
    ),
    "too many layers": (
        "vit-64",
        ["model.layout=relu*99999999999"],
        ["relu*99999999999", "more than 1,000 components"],
    ),
}


@pytest.mark.parametrize(("preset", "settings", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_one_line_and_exit_status_2(command, preset, settings, words):
    status, out, err = command("show", preset, *(part for setting in settings for part in ("--set", setting)))
    assert (status, out) == (2, "")
    assert err.startswith("favorit: ")
    assert err.count("\n") == 1, err
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert all(word in err for word in words), err


def test_unknown_kind_is_one_line_and_exit_status_2(command):
    status, out, err = command("list", "kernel")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "did you mean 'kernels'" in err


def test_mistake_is_one_line_on_a_narrow_terminal():
    done = run_process("show", "vit-64", "--set", "model.stem=patch([5, 5])", COLUMNS="30")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "(5, 5) does not divide the image (32, 32)" in done.stderr


def test_former_preset_name_works_with_a_one_line_hint():
    done = run_process("show", "hybrid", "--json")
    hint = "favorit: preset 'hybrid' is now 'vit-64': all its layers are softmax unless you set layout\n"
    assert (done.returncode, done.stderr) == (0, hint)
    assert json.loads(done.stdout)["preset"] == "vit-64"


@pytest.mark.parametrize("arguments", [["shw"], ["show"], ["show", "vit-64", "--jsn"]], ids=" ".join)
def test_unknown_command_or_option_exits_with_status_2_without_traceback(command, arguments):
    status, _, err = command(*arguments)
    assert status == 2
    assert "Traceback" not in err
    assert arguments[-1] in err or "PRESET" in err


def test_closed_pipe_ends_the_command_silently():
    for options in ("", "--json"):
        shell = f"set -o pipefail; {sys.executable} -m favorit list presets {options} | true"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE)
        assert (done.stdout, done.stderr) == ("", "")
        assert done.returncode in (0, 1)  # click exits with 1 here


def test_models_build_without_extras_and_train_names_the_missing_one():
    """Without the packages of favorit[train], models build, and `train` prints what to install."""
    heavy = (
        "lightning_fabric",
        "sklearn",
        "pandas",
        "altair",
        "vl_convert",
        "PIL",
        "yaml",
        "safetensors",
        "platformdirs",
    )
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name in {heavy!r}: raise ModuleNotFoundError(f'No module named {{name}}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import favorit\n"
        "favorit.create_model('vit-64', layout='intertwined')\n"
        "sys.argv = ['favorit', 'train']\n"
        "from favorit.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "pip install 'favorit[train]'" in done.stderr
