"""Download of one file over HTTP: resumed after an interruption, verified, then renamed into place."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from favorit.display import Display, SafeConsole

TIMEOUT = 5.0
CHUNK = 1 << 18
AGENT = "favorit (data fetch)"


class SourceError(Exception):
    """A source failed to provide a file; the next source may succeed."""


def download(url: str, target: Path, verify: Callable[[Path], bool]) -> None:
    """Downloads `url` to `target`. If the connection breaks, `target.part` stays and the next call resumes it.

    A complete file that fails `verify` is deleted, so `target` only ever holds verified content.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        _receive(url, part)
    except urllib.error.HTTPError as error:
        raise SourceError(f"{url}: HTTP {error.code}") from None
    except urllib.error.URLError as error:
        raise SourceError(f"{url}: {getattr(error.reason, 'strerror', None) or error.reason}") from None
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise SourceError(f"{url}: the connection broke ({error}), the partial file is kept") from None
    if not verify(part):
        part.unlink()
        raise SourceError(f"{url}: wrong checksum, deleted")
    os.replace(part, target)


def store(target: Path, content: bytes) -> None:
    """Writes a file atomically: completely or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        part.write_bytes(content)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _receive(url: str, part: Path) -> None:
    """Appends the missing bytes of `url` to `part`."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": AGENT} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        # The server has nothing left to send, so the partial file is complete or too long. `verify` tells which.
        return
    with response:
        resumed = response.status == http.client.PARTIAL_CONTENT
        start = have if resumed else 0
        length = response.headers.get("Content-Length")
        expected = start + int(length) if length else None
        with part.open("ab" if resumed else "wb") as file, _bar(part.stem, start, expected) as advance:
            while block := response.read(CHUNK):
                file.write(block)
                advance(len(block))
            size = file.tell()
    if expected is not None and size < expected:
        raise http.client.IncompleteRead(b"", expected - size)


def print_fetching(what: str) -> None:
    """Prints one line if stderr is not a terminal; a terminal shows a progress bar instead."""

    Display(SafeConsole(stderr=True)).piped_line(f"fetching {what}")


@contextmanager
def _bar(title: str, start: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar of bytes on a terminal, else one line."""

    print_fetching(title if total is None else f"{title}, {(total - start) / 1e6:,.1f} MB")
    done = start
    with Display(SafeConsole(stderr=True)) as display:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            display.bar("file", title, done / 1e6, None if total is None else total / 1e6, unit="MB")

        advance(0)
        yield advance
