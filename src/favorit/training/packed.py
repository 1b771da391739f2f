"""A finished run packed into one small file `<id>.zip`, without weights and logits.

    config.json, result.json   as in the run's folder
    epochs.jsonl               as in the run's folder, rounded to 6 digits
    predictions.npz            see predictions.py; a failed run has none

Members are read by name and never extracted to disk.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import struct
import zlib
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from favorit.errors import FavoritError
from favorit.files import damaged, parse_json
from favorit.training.saved import check_config, check_result
from favorit.training.stored import StoredRun, parse_epochs

if TYPE_CHECKING:
    from favorit.training.predictions import Predictions

SUFFIX = ".zip"
RECORDS = ("config.json", "result.json", "epochs.jsonl")
PREDICTIONS = "predictions.npz"
# Maximum bytes, packed and inflated. A run with 10,000 test images has 20 kB and 100 kB.
LARGEST = 1 << 26
DIGITS = 6
UNREADABLE = (
    BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,
    ValueError,
    KeyError,
    TypeError,
    MemoryError,
)


class PackedRun(StoredRun):
    """A run packed into the file `path`, whose name is `<id>.zip`."""

    form = "file"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def id(self) -> str:
        return self.path.name.removesuffix(SUFFIX)

    def exists(self) -> bool:
        return self.path.is_file()

    def config(self) -> dict[str, Any]:
        return self._checked[0]

    def result(self) -> dict[str, Any] | None:
        return self._checked[1]

    def epochs(self) -> list[dict[str, Any]]:
        return parse_epochs(self._members["epochs.jsonl"], self._member("epochs.jsonl"))

    def check_epochs(self) -> None:
        return None  # zipfile has verified the checksum of each member

    def predictions(self) -> Predictions:
        from favorit.training.predictions import ARRAYS, decode

        try:
            return decode(unzip(io.BytesIO(self._members[PREDICTIONS]), ARRAYS))
        except UNREADABLE as error:
            raise self._damaged(error, PREDICTIONS) from None

    def weights(self, name: str) -> Path:
        free = (
            out
            for out in ("runs", "retrained", f"retrained-{self.id}")
            if not os.path.exists(f"{out}/{self.path.name}")
        )
        command = f"favorit train --config {shlex.quote(str(self.path))} --out {next(free)}"
        raise FavoritError(f"{self.path} is a packed run, which has no weights: train it again with {command}")

    def error(self) -> str | None:
        return None

    def date(self) -> str | None:
        return None  # the file may have been packed or copied much later

    def held(self) -> bool:
        return False

    def tidy_unheld(self) -> None:
        return None

    @cached_property
    def _members(self) -> dict[str, bytes]:
        try:
            with open(self.path, "rb") as file:
                return unzip(file, (*RECORDS, PREDICTIONS))
        except OSError as error:
            raise FavoritError(f"{self.path} is not a run: {error.strerror}; `favorit runs` lists runs") from None
        except UNREADABLE as error:
            raise self._damaged(error) from None

    @cached_property
    def _checked(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(config, result), checked: the file must be named after the run that it holds."""
        members = self._members
        # The configuration is checked first, because a newer version may have other members.
        if "config.json" not in members:
            raise self._damaged("no config.json")
        path = self._member("config.json")
        config = check_config(parse_json(members["config.json"], path), path)
        if missing := [name for name in RECORDS if name not in members]:
            raise self._damaged(f"no {', '.join(missing)}")
        if (identifier := config.get("id")) != self.id:
            raise FavoritError(f"{self.path} holds the run {identifier}: rename it to {identifier}{SUFFIX}")
        path = self._member("result.json")
        result = check_result(parse_json(members["result.json"], path), path)
        if result["status"] == "complete" and PREDICTIONS not in members:
            raise self._damaged(f"no {PREDICTIONS}")
        return config, result

    def _member(self, name: str) -> str:
        return f"{self.path}{os.sep}{name}"

    def _damaged(self, reason: object, member: str | None = None) -> FavoritError:
        path = self.path if member is None else self._member(member)
        return damaged(path, " ".join(str(reason).split()) or type(reason).__name__, self.path)


def packed_bytes(run: StoredRun) -> bytes:
    """A finished run as the bytes of a packed file; the same run always gives the same bytes."""
    config, result = run.config(), run.result()
    assert result is not None
    epochs = "".join(_text(_rounded(record)) + "\n" for record in run.epochs())
    members = {
        "config.json": _text(config).encode(),
        "result.json": _text(result).encode(),
        "epochs.jsonl": epochs.encode(),
    }
    if result["status"] == "complete":
        from favorit.training.predictions import encode

        members[PREDICTIONS] = zipped(encode(run.predictions()), ZIP_STORED)
    return zipped(members, ZIP_DEFLATED)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    """JSON data with floats rounded to DIGITS digits: all 17 digits would be half of the file."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def zipped(members: dict[str, bytes], method: int) -> bytes:
    """A zip file that does not depend on time or operating system."""
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", compression=method, compresslevel=9) as file:
        for name, content in members.items():
            info = ZipInfo(name)  # dated 1980
            info.create_system = 3
            file.writestr(info, content, compress_type=method, compresslevel=9)
    return buffer.getvalue()


def unzip(file: IO[bytes], names: Collection[str]) -> dict[str, bytes]:
    """The members of a zip file with these names. Sizes are checked before anything is inflated."""
    if (size := file.seek(0, os.SEEK_END)) > LARGEST:
        raise BadZipFile(f"{size:,} bytes, more than {LARGEST:,}")
    with ZipFile(file) as opened:
        found = {info.filename: info for info in opened.infolist() if info.filename in names}
        for name, info in found.items():
            # zipfile bounds the inflated size by the header for deflate only, not for other methods.
            if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
                raise BadZipFile(f"{name} has compression method {info.compress_type}, not deflate")
        if (size := sum(info.file_size for info in found.values())) > LARGEST:
            raise BadZipFile(f"it inflates to {size:,} bytes, more than {LARGEST:,}")
        return {name: opened.read(info) for name, info in found.items()}
