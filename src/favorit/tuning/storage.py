"""The storage of a search: `sqlite:///FILE`, `journal:FILE` or `postgresql://user@host/database`.

The default is an SQLite file in the folder of runs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import SQLAlchemyError

from favorit.errors import FavoritError
from favorit.locks import hold

CREATE_ATTEMPTS = 5


@contextmanager
def open_storage(url: str | None, out: Path) -> Iterator[BaseStorage]:
    """The storage at a URL. Its errors, also inside the block, become one line without the password."""
    url = url or f"sqlite:///{out / 'tune.db'}"
    scheme, _, rest = url.partition(":")
    schemes = {
        "sqlite": _sqlite,
        "journal": _journal,
        **dict.fromkeys(("postgresql", "postgres", "postgresql+psycopg"), _postgresql),
    }
    if scheme not in schemes:
        raise FavoritError(
            f"the storage {hide_password(url)!r} is not valid: use sqlite:///FILE, journal:FILE or postgresql://user@host/database"
        )
    storage: BaseStorage | None = None
    try:
        storage = schemes[scheme](rest)
        yield storage
    except (SQLAlchemyError, StorageInternalError) as error:
        raise FavoritError(f"the storage {hide_password(url)} cannot be used: {_reason(error, url)}") from None
    finally:
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


def _sqlite(rest: str) -> BaseStorage:
    file = Path(rest.removeprefix("///"))
    file.parent.mkdir(parents=True, exist_ok=True)
    return _relational(f"sqlite:///{file.absolute()}", timeout=60)


def _postgresql(rest: str) -> BaseStorage:
    # Quote the password: for SQLAlchemy it ends at a bare '@', and the rest is shown as the host.
    encoded = re.sub(r"^(//[^:/@]*):(.*)@", lambda found: f"{found[1]}:{quote(unquote(found[2]), safe='')}@", rest)
    return _relational(f"postgresql+psycopg:{encoded}", connect_timeout=10)


def _relational(url: str, **connect: Any) -> BaseStorage:
    """The storage at an SQL URL. Missing tables are created.

    If two processes create the tables at once, one of them fails. Its next attempt finds the tables.
    """
    for attempts_left in reversed(range(CREATE_ATTEMPTS)):
        try:
            return RDBStorage(url, engine_kwargs={"connect_args": connect, "pool_pre_ping": True})
        except ImportError:
            raise FavoritError(
                "a PostgreSQL storage needs the package psycopg: pip install 'favorit[tune-postgresql]'"
            ) from None
        except SQLAlchemyError as error:
            if not attempts_left or not re.search("already exists|duplicate key|UNIQUE", str(error)):
                raise
            time.sleep(0.3)
    raise AssertionError("unreachable")


def _journal(rest: str) -> BaseStorage:
    file = Path(rest.removeprefix("//"))
    file.parent.mkdir(parents=True, exist_ok=True)
    lock: Any = _JournalLock(file)  # Any: Optuna's base class of locks is not public
    with hold(lock.path), open(file, "ab+") as lines:
        _cut_incomplete_line(lines)
    return JournalStorage(JournalFileBackend(str(file), lock_obj=lock))


class _JournalLock:
    """Replaces Optuna's own locks, which stay locked for half a minute after their process is killed."""

    def __init__(self, file: Path) -> None:
        self.path = file.with_name(f"{file.name}.flock")
        self._held = ExitStack()

    def acquire(self) -> bool:
        self._held.enter_context(hold(self.path))
        return True

    def release(self) -> None:
        self._held.close()


def _cut_incomplete_line(lines: IO[bytes]) -> None:
    """Removes an incomplete last line, such as a full disk leaves. Otherwise the next line would be appended to it."""
    lines.seek(0)
    whole = 0
    for line in lines:
        whole += len(line) if line.endswith(b"\n") else 0
    if whole < lines.seek(0, os.SEEK_END):
        lines.truncate(whole)


def hide_password(url: str) -> str:
    """The URL with *** in place of the password."""
    return re.sub(r"(password=)[^&]*", r"\1***", re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url))


def _reason(error: Exception, url: str) -> str:
    found = " ".join(str(getattr(error, "orig", None) or error).split())
    for secret in re.findall(r"://[^:/@]*:(.*)@", url) + re.findall(r"password=([^&]*)", url):
        found = found.replace(secret, "***") if secret else found
    return found
