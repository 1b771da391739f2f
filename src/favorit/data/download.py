"""One file over HTTP: resumed where it broke off, verified, and only then put in its place."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT = 5.0
CHUNK = 1 << 18
AGENT = "favorit (data fetch)"


class SourceError(Exception):
    """One source did not give a file; the next one may."""


def download(url: str, target: Path, verify: Callable[[Path], bool]) -> None:
    """`url` -> `target`. What has arrived when the connection breaks stays in `target.part`; the next call goes on from
    there.

    A whole file that fails `verify` is deleted: `target` never holds anything else than the right content.
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
        raise SourceError(f"{url}: the connection broke ({error}), what has arrived is kept") from None
    if not verify(part):
        part.unlink()
        raise SourceError(f"{url}: wrong checksum, not kept")
    os.replace(part, target)


def store(target: Path, content: bytes) -> None:
    """Writes a whole file or nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        part.write_bytes(content)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _receive(url: str, part: Path) -> None:
    """Appends what is missing of `url` to `part`."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": AGENT} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        # Nothing is left to send: the part is whole, or longer than the file. Its checksum decides.
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


def say_fetching(what: str) -> None:
    """A line where nobody looks at a screen; where somebody does, a bar or a spinner says it."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"fetching {what}", soft_wrap=True, markup=False, highlight=False)


@contextmanager
def _bar(title: str, start: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, a line elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    say_fetching(title if total is None else f"{title}, {(total - start) / 1e6:,.1f} MB")
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=total, completed=start)
        yield lambda count: progress.advance(task, count)
