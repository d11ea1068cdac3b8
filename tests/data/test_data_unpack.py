"""Archives that want to write where they should not, or more than they should."""

import errno
import io
import os
import stat
import tarfile
import warnings
import zipfile

import pytest

from unrolled.data import archives
from unrolled.data.archives import unpack

FILES = {"a.txt": b"A" * 100, "sub/b.txt": b"B" * 200, "sub/deep/c.txt": b""}


def make_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def make_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            archive.addfile(
                tar_entry(name, tarfile.REGTYPE, size=len(content)), io.BytesIO(content)
            )
    return path


def tar_entry(name, kind, **attributes):
    entry = tarfile.TarInfo(name)
    entry.type = kind
    for key, value in attributes.items():
        setattr(entry, key, value)
    return entry


def special_tar(kind, **attributes):
    def make(path):
        with tarfile.open(path, "w") as archive:
            archive.addfile(tar_entry("data/good", tarfile.REGTYPE))
            archive.addfile(tar_entry("data/member", kind, **attributes))
        return path

    return make


def special_zip(mode, content=""):
    def make(path):
        entry = zipfile.ZipInfo("data/member")
        entry.create_system, entry.external_attr = 3, mode << 16
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(entry, content)
        return path

    return make


def files_in(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


MAKERS = pytest.mark.parametrize("make", [make_zip, make_tar])


@MAKERS
def test_all_files_are_written(tmp_path, make):
    archive = make(tmp_path / "a", FILES)
    assert unpack(archive, tmp_path / "out", max_bytes=300) == 3
    assert files_in(tmp_path / "out") == FILES


def test_folders_are_allowed_and_rights_are_not_taken_over(tmp_path):
    with tarfile.open(tmp_path / "a", "w") as archive:
        archive.addfile(tar_entry(".", tarfile.DIRTYPE))
        archive.addfile(tar_entry("data", tarfile.DIRTYPE, mode=0o000))
        archive.addfile(tar_entry("data/run", tarfile.REGTYPE, mode=0o6777))
    (tmp_path / "b").write_bytes(
        make_zip(tmp_path / "z", {"data/": b"", "data/run": b""}).read_bytes()
    )
    for name in ("a", "b"):
        assert unpack(tmp_path / name, tmp_path / f"out {name}", max_bytes=0) == 1
        mode = (tmp_path / f"out {name}" / "data" / "run").stat().st_mode
        assert not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IXUSR)


HOSTILE_NAMES = ["../evil", "data/../../evil", "{root}/evil", "C:\\evil", "a\\..\\evil", ".."]


@MAKERS
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_nothing_is_written_outside(tmp_path, make, name):
    (tmp_path / "inside").mkdir()
    name = name.format(root=tmp_path)  # an absolute path that does no harm if it is written
    archive = make(tmp_path / "inside" / "a", {"good": b"", name: b"evil"})
    with pytest.raises(ValueError, match="must be a relative path"):
        unpack(archive, tmp_path / "inside" / "out", max_bytes=10**6)
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(
    "make",
    [
        special_tar(tarfile.SYMTYPE, linkname="/etc/passwd"),
        special_tar(tarfile.SYMTYPE, linkname="good"),
        special_tar(tarfile.LNKTYPE, linkname="../../etc/passwd"),
        special_tar(tarfile.LNKTYPE, linkname="data/good"),
        special_tar(tarfile.CHRTYPE, devmajor=1, devminor=5),
        special_tar(tarfile.BLKTYPE, devmajor=8, devminor=0),
        special_tar(tarfile.FIFOTYPE),
        special_zip(stat.S_IFLNK | 0o777, "/etc/passwd"),
        special_zip(stat.S_IFCHR | 0o666),
        special_zip(stat.S_IFIFO | 0o666),
    ],
    ids=[
        *("symlink out", "symlink in", "hardlink out", "hardlink in", "character device"),
        *("block device", "pipe", "zip symlink", "zip device", "zip pipe"),
    ],
)
def test_links_and_devices_are_refused(tmp_path, make):
    with pytest.raises(ValueError, match="is a link, a folder or a device"):
        unpack(make(tmp_path / "a"), tmp_path / "out", max_bytes=10**6)
    assert not os.path.lexists(tmp_path / "out" / "data" / "member")


def test_a_link_is_no_way_out(tmp_path):
    """The link is refused, so the file that would be written through it never is."""
    (tmp_path / "elsewhere").mkdir()
    with tarfile.open(tmp_path / "a", "w") as archive:
        archive.addfile(tar_entry("way", tarfile.SYMTYPE, linkname=str(tmp_path / "elsewhere")))
        archive.addfile(tar_entry("way/evil", tarfile.REGTYPE))
    with pytest.raises(ValueError, match="member way is a link"):
        unpack(tmp_path / "a", tmp_path / "out", max_bytes=10**6)
    assert not list((tmp_path / "elsewhere").iterdir())


@MAKERS
def test_a_bomb_is_stopped(tmp_path, make):
    archive = make(tmp_path / "a", {"small": b"x", "bomb": bytes(20_000_000)})
    assert archive.stat().st_size < 100_000
    with pytest.raises(ValueError, match="member bomb has 20000000 bytes"):
        unpack(archive, tmp_path / "out", max_bytes=1_000_000)
    assert files_in(tmp_path / "out") == {"small": b"x"}


@MAKERS
def test_many_small_files_are_counted_together(tmp_path, make):
    archive = make(tmp_path / "a", {f"{i}": bytes(1000) for i in range(20)})
    with pytest.raises(ValueError, match="at most 500 are allowed"):
        unpack(archive, tmp_path / "out", max_bytes=10_500)
    with pytest.raises(ValueError, match="more than 19 entries"):
        unpack(archive, tmp_path / "more", max_bytes=10**6, max_files=19)


def test_a_zip_that_lies_about_a_size_is_stopped(tmp_path):
    """The list of contents promises 10 bytes; the stream has a million."""
    path = make_zip(tmp_path / "a", {"liar": bytes(1_000_000)})
    content = path.read_bytes()
    real = (1_000_000).to_bytes(4, "little")
    path.write_bytes(content.replace(real, (10).to_bytes(4, "little")))
    with pytest.raises(ValueError, match="damaged"):
        unpack(path, tmp_path / "out", max_bytes=1000)
    assert sum(len(content) for content in files_in(tmp_path / "out").values()) <= 1000


@MAKERS
@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a", b"1"), ("a", b"2")], "member a is in the archive twice"),
        ([("a", b"1"), ("a/b", b"2")], "damaged"),
        ([("a/b", b"1"), ("a", b"2")], "member a is in the archive twice"),
        ([], "has no files"),
    ],
)
def test_two_entries_in_one_place_and_none(tmp_path, make, members, message):
    class Pairs:
        def items(self):
            return members

    with warnings.catch_warnings(action="ignore"):  # of zipfile, which sees the second entry
        archive = make(tmp_path / "a", Pairs())
    with pytest.raises(ValueError, match=message):
        unpack(archive, tmp_path / "out", max_bytes=100)


@MAKERS
def test_a_damaged_archive_is_told(tmp_path, make):
    archive = make(tmp_path / "a", {"member": os.urandom(50_000)})
    whole = archive.read_bytes()
    for damaged in (b"", whole[:20_000], whole[:20_000] + bytes(99) + whole[20_099:], b"none"):
        archive.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged|has no files"):
            unpack(archive, tmp_path / str(len(damaged)), max_bytes=10**6)


def test_an_encrypted_zip_is_told(tmp_path):
    path = make_zip(tmp_path / "a", {"member": b"content"})
    content = bytearray(path.read_bytes())
    content[6] |= 1  # the flag in the local header
    content[content.index(b"PK\x01\x02") + 8] |= 1  # and in the list of contents
    path.write_bytes(content)
    with pytest.raises(ValueError, match="encrypted"):
        unpack(path, tmp_path / "out", max_bytes=100)


def test_a_full_disk_is_no_damage(tmp_path, monkeypatch):
    archive = make_zip(tmp_path / "a", FILES)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archives, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        unpack(archive, tmp_path / "out", max_bytes=300)
