"""Downloads from a local server, and package clients that the tests put on the PATH. Nothing leaves this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from favorit.data import sources
from favorit.data.download import SourceError, _bar, download
from favorit.data.packages import AptPackage, NpmPackage, cifar10_from_png
from favorit.data.sources import Archive, Source, data_directory, fetch, present
from favorit.errors import FavoritError

CONTENT = {"one": b"first " * 5000, "two": b"second " * 3000}
DIGESTS = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


class Server(ThreadingHTTPServer):
    """Serves `files` and records requests; `break_after` closes the connection after that many bytes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.break_after: int | None = None
        self.ranges = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path[1:], wanted))
        content = self.server.files.get(self.path[1:])
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: self.server.break_after])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def source(server: Server, monkeypatch: pytest.MonkeyPatch) -> Source:
    server.files = {f"{name}.gz": gzip.compress(content) for name, content in CONTENT.items()}
    made = Source(files=dict(DIGESTS), home="things/here", places=("elsewhere",), addresses=(server.address,))
    monkeypatch.setitem(sources.SOURCES, "things", made)
    return made


def set_source(monkeypatch: pytest.MonkeyPatch, source: Source, **changes: Any) -> None:
    monkeypatch.setitem(sources.SOURCES, "things", replace(source, **changes))


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


def test_files_are_downloaded_once_and_found_afterwards(tmp_path: Path, server: Server, source: Source) -> None:
    assert not present("things", tmp_path)
    assert fetch("things", tmp_path) == CONTENT
    assert present("things", tmp_path)
    assert leftovers(tmp_path) == ["one.gz", "two.gz"]
    server.files.clear()
    assert fetch("things", tmp_path) == CONTENT
    assert len(server.requests) == 2


@pytest.mark.parametrize("place", ["things/here", "things", "elsewhere"])
@pytest.mark.parametrize("packed", [True, False])
def test_files_placed_by_hand_are_found(
    tmp_path: Path, server: Server, source: Source, place: str, packed: bool
) -> None:
    (tmp_path / place).mkdir(parents=True)
    for name, content in CONTENT.items():
        path = tmp_path / place / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content, 1) if packed else content)
    assert fetch("things", tmp_path) == CONTENT
    assert server.requests == []


def test_damaged_file_is_fetched_again(tmp_path: Path, server: Server, source: Source) -> None:
    fetch("things", tmp_path)
    damaged = tmp_path / "things" / "here" / "two.gz"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    assert fetch("things", tmp_path) == CONTENT
    assert [name for name, _ in server.requests] == ["one.gz", "two.gz", "two.gz"]


def test_interrupted_download_is_resumed(tmp_path: Path, server: Server, source: Source) -> None:
    server.break_after = 40
    with pytest.raises(FavoritError, match="the connection broke"):
        fetch("things", tmp_path)
    part = tmp_path / "things" / "here" / "one.gz.part"
    assert part.read_bytes() == server.files["one.gz"][:40]
    server.break_after = None
    assert fetch("things", tmp_path) == CONTENT
    assert ("one.gz", "bytes=40-") in server.requests
    assert leftovers(tmp_path) == ["one.gz", "two.gz"]


def test_server_without_ranges_restarts_the_download(tmp_path: Path, server: Server, source: Source) -> None:
    server.ranges = False
    part = tmp_path / "things" / "here" / "one.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"old bytes")
    assert fetch("things", tmp_path) == CONTENT


def test_complete_partial_file_is_used_and_a_longer_one_deleted(tmp_path: Path, server: Server) -> None:
    server.files["file"] = b"content"
    part, url = tmp_path / "file.part", f"{server.address}file"
    part.write_bytes(b"content")
    download(url, tmp_path / "file", lambda path: path.read_bytes() == b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    part.write_bytes(b"content and more")
    with pytest.raises(SourceError, match="wrong checksum, deleted"):
        download(url, tmp_path / "file", lambda path: path.read_bytes() == b"content")
    assert not part.exists()


def test_wrong_content_is_rejected_and_deleted(tmp_path: Path, server: Server, source: Source) -> None:
    server.files["two.gz"] = gzip.compress(b"something else")
    with pytest.raises(FavoritError, match=r"two\.gz: wrong checksum, deleted"):
        fetch("things", tmp_path)
    assert leftovers(tmp_path) == ["one.gz"]


def test_next_address_is_tried_after_a_failure(
    tmp_path: Path, server: Server, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_source(monkeypatch, source, addresses=(f"{server.address}missing/", server.address))
    assert fetch("things", tmp_path) == CONTENT


def test_failure_of_all_sources_is_one_line_with_attempts_and_remedy(
    tmp_path: Path, server: Server, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    closed = "http://127.0.0.1:9/"
    packages = (NpmPackage("some-data@1.0.0", "package/"), AptPackage("some-data", "./usr/"))
    set_source(monkeypatch, source, addresses=(f"{server.address}missing/", closed), packages=packages)
    with pytest.raises(FavoritError) as error:
        fetch("things", tmp_path / "data")
    text = str(error.value)
    assert "\n" not in text
    assert "missing/one.gz: HTTP 404" in text
    assert f"{closed}one.gz: Connection refused" in text
    assert "npm some-data@1.0.0: npm is not installed" in text
    assert "apt-get some-data: apt-get is not installed" in text
    assert f"put one, two into {tmp_path / 'data' / 'things' / 'here'}" in text
    assert "FAVORIT_DATA" in text


def test_unwritable_data_directory_is_named(tmp_path: Path, source: Source) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FavoritError, match="cannot write the files of things to"):
        fetch("things", tmp_path / "file")


def test_archive_is_verified_and_unpacked(
    tmp_path: Path, server: Server, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tar_gz({f"inner/{name}": content for name, content in CONTENT.items()})
    archive = Archive("things.tar.gz", hashlib.md5(packed).hexdigest(), "inner")
    set_source(monkeypatch, source, archive=archive)
    server.files = {"things.tar.gz": packed}
    assert fetch("things", tmp_path / "one") == CONTENT
    assert leftovers(tmp_path / "one") == ["one", "two"]
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "elsewhere").mkdir()
    (tmp_path / "two" / "elsewhere" / "things.tar.gz").write_bytes(packed)
    server.files.clear()
    assert present("things", tmp_path / "two")
    assert fetch("things", tmp_path / "two") == CONTENT
    server.files = {"things.tar.gz": packed[:-1] + b"x"}
    with pytest.raises(FavoritError, match=r"things\.tar\.gz: wrong checksum, deleted"):
        fetch("things", tmp_path / "three")
    assert leftovers(tmp_path / "three") == []


def test_file_removed_by_another_process_counts_as_missing(
    tmp_path: Path, server: Server, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was listed, but another process has unpacked and removed it before it is read."""
    candidates = sources._candidates
    monkeypatch.setattr(
        sources, "_candidates", lambda source, root, file: (root / "gone", *candidates(source, root, file))
    )
    for name, content in CONTENT.items():
        (tmp_path / name).write_bytes(content)
    set_source(monkeypatch, source, archive=Archive("things.tar.gz", "0" * 32, "inner"), places=(".",))
    assert fetch("things", tmp_path) == CONTENT
    (tmp_path / "one").unlink()
    with pytest.raises(FavoritError, match=r"no source provided it. Tried: .*things\.tar\.gz"):
        fetch("things", tmp_path)


def tar_gz(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def client(folder: Path, name: str, script: str) -> None:
    """Writes a program that acts as a package client on the PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!{shutil.which('sh')}\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def path_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path / "bin"


def test_npm_packages_are_read(
    tmp_path: Path, source: Source, path_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"package/data/{name}": content for name, content in CONTENT.items()} | {
        "package/one": b"no",
        "package/data/x/two": b"no",
    }
    (tmp_path / "made.tgz").write_bytes(tar_gz(files))
    client(path_folder, "npm", f'echo "$@" > {tmp_path}/asked; cp {tmp_path}/made.tgz ./some-data-1.0.0.tgz')
    set_source(monkeypatch, source, addresses=(), packages=(NpmPackage("some-data@1.0.0", "package/data/"),))
    assert fetch("things", tmp_path / "data") == CONTENT
    assert (tmp_path / "asked").read_text().startswith("pack some-data@1.0.0 ")
    assert leftovers(tmp_path / "data") == ["one", "two"]


def test_apt_packages_are_read(
    tmp_path: Path,
    source: Source,
    path_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {f"./usr/share/{name}.gz": gzip.compress(content) for name, content in CONTENT.items()}
    (tmp_path / "made.tar").write_bytes(tar_gz(files, "w"))
    client(path_folder, "apt-get", "touch some-data_1_all.deb")
    client(path_folder, "dpkg-deb", f"cat {tmp_path}/made.tar")
    set_source(monkeypatch, source, addresses=(), packages=(AptPackage("some-data", "./usr/share/"),))
    assert fetch("things", tmp_path / "data") == CONTENT
    assert capsys.readouterr().err == "fetching apt-get some-data\n"
    assert leftovers(tmp_path / "data") == ["one.gz", "two.gz"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'no such package' >&2; exit 1", "npm some-data: no such package"),
        ("exit 3", "npm some-data: exit status 3"),
        ("true", "npm some-data: the client wrote 0 archives"),
        ("echo rubbish > a.tgz", "npm some-data: unexpected content"),
        ("cp {made} a.tgz", "npm some-data: two is not the published file"),
    ],
)
def test_failing_package_is_named(
    tmp_path: Path, source: Source, path_folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    (tmp_path / "made.tgz").write_bytes(tar_gz({"package/one": CONTENT["one"], "package/two": b"changed"}))
    client(path_folder, "npm", script.format(made=tmp_path / "made.tgz"))
    set_source(monkeypatch, source, addresses=(), packages=(NpmPackage("some-data", "package/"),))
    with pytest.raises(FavoritError, match=message):
        fetch("things", tmp_path / "data")


def test_cifar10_pictures_become_binary_records() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 1024, 3), dtype=np.uint8)
    contents = {"train_lables.json": json.dumps([*range(10)]).encode(), "test_lables.json": b"[3, 4]"}
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    for number, name in enumerate(names):
        buffer = io.BytesIO()
        Image.fromarray(pixels[2 * number : 2 * number + 2]).save(buffer, "png")
        contents[f"{name}.png"] = buffer.getvalue()
    found = cifar10_from_png(contents)
    records = np.frombuffer(b"".join(found[f"{name}.bin"] for name in names), np.uint8).reshape(12, 3073)
    assert records[:, 0].tolist() == [*range(10), 3, 4]
    assert np.array_equal(records[5, 1:].reshape(3, 1024), pixels[5].T)


def test_data_directory_is_argument_then_environment_then_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_directory(tmp_path / "given") == tmp_path / "given"
    assert data_directory() == tmp_path / "data"
    monkeypatch.delenv("FAVORIT_DATA")
    assert data_directory().name == "favorit"


def test_fetch_of_a_data_set_without_files_is_rejected() -> None:
    with pytest.raises(FavoritError, match="unknown data set with files 'digits'"):
        fetch("digits")


def test_download_without_a_terminal_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with _bar("cifar-10-binary.tar.gz", 2_000_000, 170_000_000) as advance:
        advance(1000)
    assert capsys.readouterr().err == "fetching cifar-10-binary.tar.gz, 168.0 MB\n"
