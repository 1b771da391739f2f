"""Joining a Ray cluster, or starting one on this machine; and what a cluster offers.

Ray itself waits for minutes, or for ever, for an address where nothing answers: it is tried first, in a process that
can be ended.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

from favorit.errors import FavoritError
from favorit.process import environment

CONNECT = 3.0  # seconds that a machine has to answer in
ANSWER = 30.0  # seconds that a cluster has

# What Ray has to say is not for stdout, where the lines of a command are.
QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": "."}
# `local`: ports on the loopback address only (Ray's switch for other systems has this effect on Linux too), a secret
# that only this process and its children know, no usage statistics.
PRIVATE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}

_TRIAL = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


@contextmanager
def joined(address: str) -> Iterator[Any]:
    """Ray, connected to the cluster at `address` (HOST:PORT, `auto`, or `local`); a connection that was there before is
    used and stays.
    """
    private = {**PRIVATE, "RAY_AUTH_TOKEN": token_hex(32)} if address == "local" else {}
    with environment({**QUIET, **private}):
        ray = _package()
        if ray.is_initialized():
            yield ray
            return
        if address != "local":
            _try(address)
        try:
            ray.init(
                address=address,
                include_dashboard=False if private else None,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise _unreachable(address, " ".join(str(error).split())[:300]) from None
        try:
            yield ray
        finally:
            ray.shutdown()


def find(ray: Any, node: str) -> dict[str, Any]:
    """What Ray knows of a node, alive or dead."""
    return next(each for each in ray.nodes() if each["NodeID"] == node)


def name_of(ray: Any, node: str) -> str:
    """What people call a node: the name it was started with, else that of its machine."""
    found = find(ray, node)
    given = found["NodeName"] != found["NodeManagerAddress"]
    return str(found["NodeName"] if given else found["NodeManagerHostname"])


def needs(ray: Any, cpus: int, gpus: float | None, accelerator: str) -> dict[str, float]:
    """The resources of one run, by Ray's names; an error where no node has them."""
    if gpus is None:
        gpus = 1 if accelerator in ("auto", "cuda", "gpu") and ray.cluster_resources().get("GPU") else 0
    wanted = {kind: amount for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
    if not slots(ray, wanted):
        offered = ", ".join(
            " and ".join(f"{_has(node, kind):g} {kind}" for kind in ("CPU", "GPU")) for node in _alive(ray)
        )
        raise FavoritError(
            f"no node of the cluster has {' and '.join(f'{n:g} {kind}' for kind, n in wanted.items())} for a run: {offered}"
        )
    return wanted


def slots(ray: Any, wanted: dict[str, float]) -> int:
    """How many runs the nodes that are alive have room for at once."""
    return sum(room(node, wanted) for node in _alive(ray))


def room(node: dict[str, Any], wanted: dict[str, float]) -> int:
    """How many runs share a node when it is full."""
    return min(int(_has(node, kind) / amount) for kind, amount in wanted.items())


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _has(node: dict[str, Any], kind: str) -> float:
    return float(node["Resources"].get(kind, 0))


def _package() -> Any:
    try:
        import ray
    except ImportError:
        raise FavoritError("a study on a cluster needs the package ray: pip install 'favorit[ray]'") from None
    return ray


def _try(address: str) -> None:
    """An error of one line where the cluster cannot be joined."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdigit():
            raise FavoritError(
                f"the Ray address {address!r} is not valid: HOST:PORT, auto (the cluster of this machine) or local"
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT).close()
        except (OSError, OverflowError) as error:
            raise _unreachable(address, str(error)) from None
    try:
        trial = subprocess.run([sys.executable, "-c", _TRIAL, address], capture_output=True, text=True, timeout=ANSWER)
    except subprocess.TimeoutExpired:
        raise _unreachable(address, f"no answer within {ANSWER:g} s") from None
    if trial.returncode:
        raise _unreachable(address, (trial.stderr.strip().splitlines() or ["no reason given"])[-1])


def _unreachable(address: str, reason: str) -> FavoritError:
    return FavoritError(
        f"the Ray cluster {address} cannot be joined ({reason}): start it with `ray start`, run this on one of its machines, or use local"
    )
