"""Archives from outside: read or unpacked without trusting them.

An archive can name places outside of the target, hide links and devices, or unpack a few bytes
into many. `read_members` reads chosen members into memory and writes nothing; `unpack` writes all
members into one folder. Both stop at the first entry that is not what it should be. Known are zip
files (wheels too), tar files with any compression, and Debian packages.
"""

from __future__ import annotations

import errno
import io
import lzma
import re
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import BinaryIO

__all__ = ["check_path", "read_members", "unpack"]

AR_MAGIC = b"!<arch>\n"
AR_HEADER = re.compile(rb"(?P<name>.{16}).{32}(?P<size>\d+) *`\n", re.DOTALL)
CHUNK = 2**20
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    RuntimeError,  # of zipfile: encrypted, or packed in a way that it does not know
)
TWO_IN_ONE_PLACE = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR)  # such as a file and a folder


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
    with _damage_told(archive):
        members = {}
        for member in _members(archive):
            if fnmatchcase(member.name, pattern):
                _check_member(member, max_bytes)
                members[member.name] = member.open().read()
    if not members:
        raise ValueError(f"{archive.name} has no member {pattern}")
    return members


def unpack(archive: Path, folder: Path, *, max_bytes: int, max_files: int = 1_000_000) -> int:
    """Write all files of an archive into a folder; return how many there are.

    Permissions, owners and times are not taken over. What was written before an error stays in
    the folder: let `unrolled.data.fetch.derive` give you one that vanishes then.

    Parameters
    ----------
    archive : Path
        As in `read_members`.
    folder : Path
        It is made if need be. No file in it is overwritten.
    max_bytes : int
        Largest sum of sizes of all files.
    max_files : int
        Largest number of entries, folders among them.

    Raises
    ------
    ValueError
        The archive is damaged or empty, has too much in it, has an entry twice, or an entry is a
        link or a device, or has a name that points outside of the folder.
    OSError
        The disk is full, or cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left, count = max_bytes, 0
    with _damage_told(archive):
        for number, member in enumerate(_members(archive)):
            if number >= max_files:
                raise ValueError(f"{archive.name} has more than {max_files:,} entries")
            if member.is_folder:
                _make_folder(member, folder)
                continue
            _check_member(member, left)
            left -= _write(member, folder / member.name, left)
            count += 1
    if not count:
        raise ValueError(f"{archive.name} has no files")
    return count


def check_path(argument: str, name: str) -> None:
    """Raise unless a name is a relative path with ``/`` that leads nowhere but downwards.

    Examples
    --------
    >>> check_path("member", "../a.txt")
    Traceback (most recent call last):
    ValueError: member is '../a.txt', but must be a relative path without '..'
    """
    path = PurePosixPath(name)
    hostile = path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name
    if hostile or "\0" in name or not path.parts:
        raise ValueError(f"{argument} is {name!r}, but must be a relative path without '..'")


@dataclass(frozen=True)
class _Member:
    name: str
    is_file: bool
    is_folder: bool
    num_bytes: int
    open: Callable[[], BinaryIO]


@contextmanager
def _damage_told(archive: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        # What libraries say of an archive has no number; a full disk, say, has one.
        if isinstance(error, OSError) and error.errno not in (None, *TWO_IN_ONE_PLACE):
            raise
        raise ValueError(f"{archive.name} is no archive, or a damaged one: {error}") from error


def _check_member(member: _Member, max_bytes: int) -> None:
    check_path("member", member.name)
    if not member.is_file:
        raise ValueError(
            f"member {member.name} is a link, a folder or a device, but must be a file"
        )
    if member.num_bytes > max_bytes:
        raise ValueError(
            f"member {member.name} has {member.num_bytes} bytes, "
            f"but at most {max_bytes} are allowed"
        )


def _make_folder(member: _Member, folder: Path) -> None:
    if PurePosixPath(member.name).parts:  # else it is the folder itself, as `tar -c .` has it
        check_path("member", member.name)
        (folder / member.name).mkdir(parents=True, exist_ok=True)


def _write(member: _Member, path: Path, max_bytes: int) -> int:
    """Write a member, counting what really comes out of the archive; return its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise ValueError(f"member {member.name} is in the archive twice")
    written = 0
    with path.open("xb") as target, member.open() as source:
        while chunk := source.read(CHUNK):
            written += len(chunk)
            if written > max_bytes:
                raise ValueError(f"member {member.name} has more bytes than it says")
            target.write(chunk)
    return written


def _members(archive: Path) -> Iterator[_Member]:
    with archive.open("rb") as stream:
        is_deb = stream.read(len(AR_MAGIC)) == AR_MAGIC
    if is_deb:
        return _deb_members(archive)
    return _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive)


def _zip_members(path: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            kind = stat.S_IFMT(entry.external_attr >> 16)
            yield _Member(
                entry.filename,
                is_file=kind in (0, stat.S_IFREG) and not entry.is_dir(),
                is_folder=kind in (0, stat.S_IFDIR) and entry.is_dir(),
                num_bytes=entry.file_size,
                open=lambda entry=entry: archive.open(entry),
            )


def _tar_members(path: Path) -> Iterator[_Member]:
    with tarfile.open(path) as archive:
        yield from _entries(archive)


def _deb_members(path: Path) -> Iterator[_Member]:
    """Yield the files of a Debian package: an ar archive of three, of which one is data.tar.*."""
    with path.open("rb") as stream, tarfile.open(fileobj=_data_of_deb(stream)) as archive:
        yield from _entries(archive)


def _entries(archive: tarfile.TarFile) -> Iterator[_Member]:
    for entry in archive:
        yield _Member(
            entry.name,
            is_file=entry.isreg(),
            is_folder=entry.isdir(),
            num_bytes=entry.size,
            open=lambda entry=entry: archive.extractfile(entry),
        )
    while archive.fileobj.read(CHUNK):  # to the end, where the checksum of the stream stands
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
