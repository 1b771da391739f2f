"""Settings of processes: large buffers are kept, and OpenMP threads spin as set by favorit or the user."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from favorit import RunConfig, process, workers
from favorit.process import (
    ALLOCATOR,
    SPIN_COUNT,
    SPINNING,
    default_environment,
    environment,
    spin_settings,
    worker_settings,
)
from favorit.study import cluster, local
from favorit.study.tasks import Task
from favorit.tuning.worker import work_in_processes

SCRIPT = """
import ctypes, resource
from favorit.process import keep_large_buffers
kept = keep_large_buffers() if {wanted} else None
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def touch():
    buffer = libc.malloc(1 << 26)
    libc.memset(buffer, 1, 1 << 26)
    libc.free(buffer)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

# Prints the environment when torch is first imported, and exits instead of importing it.
AT_IMPORT = """
import os, sys
class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print({key: os.environ.get(key) for key in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}, flush=True)
            os._exit(0)
sys.meta_path.insert(0, Spy())
"""
COMMAND = AT_IMPORT + "sys.argv = ['favorit', 'show', 'vit-64']\nfrom favorit.cli import main\nmain()\n"
PYTHON = AT_IMPORT + "import favorit\nfavorit.share_cores()\nimport torch\n"

CHOICES: list[tuple[dict[str, str], dict[str, str]]] = [
    ({}, {"GOMP_SPINCOUNT": SPIN_COUNT}),
    ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
    ({"OMP_WAIT_POLICY": "passive"}, {"OMP_WAIT_POLICY": "passive"}),
]
choices = pytest.mark.parametrize(("chosen", "expected"), CHOICES, ids=["unset", "count", "policy"])


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Removes all settings from the environment."""
    for name in (*SPINNING, *ALLOCATOR):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def set_all(patch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        patch.setenv(name, value)


def spinning(values: Any) -> dict[str, str]:
    return {name: values[name] for name in SPINNING if name in values}


def python(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **variables}
    )
    return done.stdout + done.stderr


def page_faults(is_kept: bool) -> tuple[str, int]:
    kept, count = python(SCRIPT.format(wanted=is_kept)).split()
    return kept, int(count)


def test_kept_buffers_cause_no_page_faults(no_settings: pytest.MonkeyPatch) -> None:
    kept, with_setting = page_faults(True)
    _, without_setting = page_faults(False)
    if kept == "True":  # glibc
        assert with_setting < 100 < without_setting
    else:
        assert with_setting == without_setting


@choices
@pytest.mark.parametrize("code", [COMMAND, PYTHON], ids=["command", "share_cores"])
def test_spinning_is_set_before_torch_is_imported(
    code: str, chosen: dict[str, str], expected: dict[str, str], no_settings: pytest.MonkeyPatch
) -> None:
    set_all(no_settings, chosen)
    assert python(code).strip() == str({name: expected.get(name) for name in SPINNING})


def test_torch_reads_the_spin_count_set_by_share_cores(no_settings: pytest.MonkeyPatch) -> None:
    output = python("import favorit\nfavorit.share_cores()\nimport torch", OMP_DISPLAY_ENV="VERBOSE")
    found = re.findall(r"GOMP_SPINCOUNT = '(\w+)'", output)
    assert set(found) <= {SPIN_COUNT}
    if sys.platform.startswith("linux"):
        assert found


def test_share_cores_after_torch_is_an_error_unless_already_set(no_settings: pytest.MonkeyPatch) -> None:
    import torch  # noqa: F401

    import favorit

    with pytest.raises(
        favorit.FavoritError, match=r"no effect after torch is imported: call it first, or set GOMP_SPINCOUNT=\d+$"
    ):
        favorit.share_cores()
    assert spinning(os.environ) == {}
    no_settings.setenv("OMP_WAIT_POLICY", "passive")
    favorit.share_cores()
    assert spinning(os.environ) == {"OMP_WAIT_POLICY": "passive"}


def test_import_favorit_changes_no_setting(no_settings: pytest.MonkeyPatch) -> None:
    assert python("import favorit, os\nfavorit.ModelConfig()\nprint('GOMP_SPINCOUNT' in os.environ)").strip() == "False"


def start_study_workers(out: Path) -> None:
    next(local.local([Task("point", RunConfig(), "0" * 16)], out))


def start_tuning_workers(out: Path) -> None:
    work_in_processes(SimpleNamespace(workers=2, threads=2), lambda event: None)  # type: ignore[arg-type]


@choices
@pytest.mark.parametrize("start", [start_study_workers, start_tuning_workers])
def test_worker_has_the_settings(
    start: Callable[[Path], None],
    chosen: dict[str, str],
    expected: dict[str, str],
    no_settings: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    set_all(no_settings, chosen)
    started: list[dict[str, str]] = []

    class EndsAtOnce:
        def __init__(self, command: list[str], env: dict[str, str], **others: Any) -> None:
            started.append(env)

        def wait(self, timeout: float | None = None) -> int:
            return 0

        def kill(self) -> None:
            pass

    no_settings.setattr(workers.subprocess, "Popen", EndsAtOnce)
    no_settings.setattr("torch.get_num_threads", lambda: 1)
    before = dict(os.environ)
    start(tmp_path)
    assert len(started) > 1
    for found in started:
        assert spinning(found) == expected
        assert {found[name] for name in ALLOCATOR} == {str(process.MAX_KEPT_BUFFER)}
        assert found["OMP_NUM_THREADS"] == "1"
    assert dict(os.environ) == before


@choices
def test_ray_worker_has_the_settings(
    chosen: dict[str, str], expected: dict[str, str], no_settings: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_all(no_settings, chosen)
    options_seen: list[dict[str, Any]] = []
    ray = SimpleNamespace(remote=lambda **options: options_seen.append(options) or (lambda function: function))
    cluster._Driver(ray, [], tmp_path, SimpleNamespace(wanted={"CPU": 1}), 0.0)  # type: ignore[arg-type]
    variables = options_seen[0]["runtime_env"]["env_vars"]
    assert spinning(variables) == expected
    assert {variables[name] for name in ALLOCATOR} == {str(process.MAX_KEPT_BUFFER)}


@choices
def test_default_environment_drops_favorits_settings_and_keeps_the_users(
    chosen: dict[str, str], expected: dict[str, str], no_settings: pytest.MonkeyPatch
) -> None:
    set_all(no_settings, chosen)
    assert spin_settings() == expected
    set_all(no_settings, {**worker_settings(), "OTHER": "kept"})  # the environment of a command and its workers
    found = default_environment()
    assert spinning(found) == chosen
    assert not found.keys() & set(ALLOCATOR)
    assert found["OTHER"] == "kept"


def test_environment_is_restored_after_an_error(no_settings: pytest.MonkeyPatch) -> None:
    no_settings.setenv("FIRST", "before")
    inside = {"FIRST": "inside", "SECOND": "inside"}
    with environment(inside):
        assert os.environ.items() >= inside.items()
    with pytest.raises(KeyError), environment(inside):
        raise KeyError
    assert os.environ["FIRST"] == "before"
    assert "SECOND" not in os.environ
