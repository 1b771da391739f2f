"""Joins a Ray cluster or starts one on this machine, and computes how many runs it can train at a time.

If no cluster answers at an address, `ray.init` blocks for minutes or forever. Therefore a child process, which can be
killed, joins the cluster first.
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

CONNECT_SECONDS = 3.0  # to connect to the port
JOIN_SECONDS = 30.0  # to join the cluster

# Keeps Ray's log lines off stdout, which is for the output of the command.
QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": "."}
# For `local`: ports on the loopback address only (Ray's setting for Windows and macOS also works on Linux), a token
# that only this process and its children know, and no usage statistics.
PRIVATE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}

_JOIN = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


@contextmanager
def joined(address: str) -> Iterator[Any]:
    """The module `ray`, connected to the cluster at `address` (HOST:PORT, `auto`, or `local`). An existing connection
    is reused and stays open.
    """
    private = {**PRIVATE, "RAY_AUTH_TOKEN": token_hex(32)} if address == "local" else {}
    with environment({**QUIET, **private}):
        ray = _package()
        if ray.is_initialized():
            yield ray
            return
        if address != "local":
            _check_reachable(address)
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


def node_info(ray: Any, node: str) -> dict[str, Any]:
    """Ray's record of a node, alive or dead."""
    return next(each for each in ray.nodes() if each["NodeID"] == node)


def node_name(ray: Any, node: str) -> str:
    """The name given to a node at its start, or the host name of its machine."""
    info = node_info(ray, node)
    is_named = info["NodeName"] != info["NodeManagerAddress"]
    return str(info["NodeName"] if is_named else info["NodeManagerHostname"])


def resources(ray: Any, cpus: int, gpus: float | None, accelerator: str) -> dict[str, float]:
    """The resources of one run by their Ray name. Raises an error if no node has them."""
    if gpus is None:
        gpus = 1 if accelerator in ("auto", "cuda", "gpu") and ray.cluster_resources().get("GPU") else 0
    wanted = {kind: amount for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
    if not cluster_slots(ray, wanted):
        offered = ", ".join(
            " and ".join(f"{_amount(node, kind):g} {kind}" for kind in ("CPU", "GPU")) for node in _alive(ray)
        )
        raise FavoritError(
            f"a run needs {' and '.join(f'{n:g} {kind}' for kind, n in wanted.items())}, more than any node of the "
            f"cluster has: {offered}"
        )
    return wanted


def cluster_slots(ray: Any, wanted: dict[str, float]) -> int:
    """How many runs the alive nodes can train at the same time."""
    return sum(node_slots(node, wanted) for node in _alive(ray))


def node_slots(node: dict[str, Any], wanted: dict[str, float]) -> int:
    """How many runs a node can train at the same time."""
    return min(int(_amount(node, kind) / amount) for kind, amount in wanted.items())


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _amount(node: dict[str, Any], kind: str) -> float:
    return float(node["Resources"].get(kind, 0))


def _package() -> Any:
    try:
        import ray
    except ImportError:
        raise FavoritError("a study on a cluster needs the package ray: pip install 'favorit[ray]'") from None
    return ray


def _check_reachable(address: str) -> None:
    """Raises a one-line error if the cluster cannot be joined."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdigit():
            raise FavoritError(
                f"the Ray address {address!r} is not valid: HOST:PORT, auto (the cluster of this machine) or local"
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise _unreachable(address, str(error)) from None
    try:
        attempt = subprocess.run(
            [sys.executable, "-c", _JOIN, address], capture_output=True, text=True, timeout=JOIN_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise _unreachable(address, f"no answer within {JOIN_SECONDS:g} s") from None
    if attempt.returncode:
        raise _unreachable(address, (attempt.stderr.strip().splitlines() or ["no reason given"])[-1])


def _unreachable(address: str, reason: str) -> FavoritError:
    return FavoritError(
        f"the Ray cluster {address} cannot be joined ({reason}): start it with `ray start`, run this on one of its "
        "machines, or use local"
    )
