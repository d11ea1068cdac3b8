"""Verified fetch, against servers, clients and archives that misbehave."""

import hashlib
import io
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from unrolled.data.fetch import (
    FetchError,
    OfflineError,
    RemoteFile,
    Source,
    cache_folder,
    derive,
    fetch,
    has_sha256,
    offline,
    read_members,
)

CONTENT = b"the content of the file\n" * 5000
WRONG = b"x" + CONTENT[1:]
PATIENCE = 60  # seconds that a test waits for another process to get somewhere


def sha256(content):
    return hashlib.sha256(content).hexdigest()


# A server with bad manners


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        getattr(self, self.path.strip("/"))()

    def send(self, content, length=None):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def good(self):
        self.send(CONTENT)

    def wrong(self):
        self.send(WRONG)

    def empty(self):
        self.send(b"")

    def missing(self):
        self.send_error(404)

    def busy(self):
        self.send_error(503)

    def silent(self):
        self.server.released.wait(PATIENCE)

    def stalls(self):
        self.send(CONTENT[:50_000], len(CONTENT))
        self.server.halfway.set()
        self.server.released.wait(PATIENCE)

    def cut(self):
        self.send(CONTENT[:50_000], len(CONTENT))
        self.close_connection = True

    def says_too_much(self):
        self.send(CONTENT, len(CONTENT) + 1000)
        self.close_connection = True

    def says_too_little(self):
        self.send(CONTENT, len(CONTENT) - 1000)
        self.close_connection = True

    def moved(self):
        self.send_response(302)
        self.send_header("Location", "/good")
        self.end_headers()

    def waits_for_two(self):
        """Answer when two processes are about to fetch, and a little later still."""
        end = time.monotonic() + PATIENCE
        while len(list(self.server.folder.glob("ready*"))) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.5)
        self.send(CONTENT)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.requests, server.folder = [], tmp_path
    server.released, server.halfway = threading.Event(), threading.Event()
    server.at = lambda path: f"http://127.0.0.1:{server.server_port}/{path}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path / "the cache"))
    monkeypatch.delenv("UNROLLED_OFFLINE", raising=False)
    return tmp_path / "the cache"


def remote(*references, content=CONTENT, name="file.txt"):
    sources = tuple(Source(reference, sha256(content)) for reference in references)
    return RemoteFile(name, sha256(content), len(content), sources)


def left_in(folder):
    """Return what is in a folder, but for the lock files."""
    files = [path for path in Path(folder).rglob("*") if path.suffix != ".lock"]
    return sorted(str(path.relative_to(folder)) for path in files if path.is_file())


def test_a_file_is_fetched_once(server, cache):
    file = remote(server.at("good"))
    assert fetch(file) == cache / "file.txt"
    assert fetch(file).read_bytes() == CONTENT
    assert server.requests == ["/good"]
    assert left_in(cache) == ["file.txt"]


def test_a_redirect_is_followed(server):
    assert fetch(remote(server.at("moved"))).read_bytes() == CONTENT


FAULTS = {
    "wrong": "SHA256",
    "empty": "SHA256",
    "missing": "404",
    "busy": "503",
    "silent": "read timeout=0.3",
    "stalls": "timed out",
    "cut": "IncompleteRead",
    "says_too_much": "IncompleteRead",
    "says_too_little": "SHA256",
}
CUT = ("stalls", "cut", "says_too_much")  # what has come by then is kept, to go on from there


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_leaves_no_file_and_is_told(server, cache, fault):
    file = remote(server.at(fault))
    with pytest.raises(FetchError) as caught:
        fetch(file, timeout=0.3)
    message = str(caught.value)
    assert server.at(fault) in message
    assert FAULTS[fault] in message
    assert "What you can do" in message
    assert str(cache / "file.txt") in message
    assert left_in(cache) == (["file.txt.part"] if fault in CUT else [])


@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_source_is_tried(server, cache, fault):
    file = remote(server.at(fault), server.at("good"), server.at("missing"))
    assert fetch(file, timeout=0.3).read_bytes() == CONTENT
    assert server.requests == [f"/{fault}", "/good"]
    assert left_in(cache) == ["file.txt"]


def test_all_reasons_are_listed_in_order(server):
    file = remote(server.at("missing"), server.at("wrong"), "http://127.0.0.1:9/refused")
    with pytest.raises(FetchError) as caught:
        fetch(file)
    assert list(caught.value.failures) == [source.reference for source in file.sources]
    message = str(caught.value)
    places = [message.index(reference) for reference in caught.value.failures]
    assert places == sorted(places)
    assert "3 tried" in message


def test_a_damaged_file_is_fetched_anew(server, cache):
    file = remote(server.at("good"))
    cache.mkdir()
    (cache / "file.txt").write_bytes(CONTENT[:100])
    assert fetch(file).read_bytes() == CONTENT


def test_a_damaged_file_is_never_returned(server, cache):
    cache.mkdir()
    (cache / "file.txt").write_bytes(WRONG)
    with pytest.raises(FetchError):
        fetch(remote(server.at("missing")))


def test_a_copy_put_there_by_hand_is_taken(server, cache):
    cache.mkdir()
    (cache / "file.txt").write_bytes(CONTENT)
    fetch(remote(server.at("missing")))
    assert server.requests == []


# Several processes, and processes that die


def heed_interrupts() -> None:
    """Let Ctrl-C through in a new process, also where the tests run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(server, path, number):
    """Start a process that announces itself and then fetches."""
    code = (
        "import sys, pathlib\n"
        "from unrolled.data.fetch import RemoteFile, Source, fetch\n"
        f"source = Source({server.at(path)!r}, {sha256(CONTENT)!r})\n"
        f"file = RemoteFile('file.txt', {sha256(CONTENT)!r}, {len(CONTENT)}, (source,))\n"
        f"pathlib.Path({str(server.folder / f'ready{number}')!r}).touch()\n"
        "print(fetch(file))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def test_two_processes_fetch_once(server, cache):
    processes = [start(server, "waits_for_two", number) for number in range(2)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert outputs == [str(cache / "file.txt")] * 2
    assert server.requests == ["/waits_for_two"]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_an_interrupted_fetch_starts_again_cleanly(server, cache, end):
    process = start(server, "stalls", 0)
    assert server.halfway.wait(PATIENCE)
    process.send_signal(end)
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert not (cache / "file.txt").exists()
    assert fetch(remote(server.at("good"))).read_bytes() == CONTENT
    assert left_in(cache) == ["file.txt"]


# Offline


def test_offline_uses_the_cache_and_nothing_else(server, cache, monkeypatch):
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    file = remote(server.at("good"))
    with pytest.raises(OfflineError, match=r"not in the cache and UNROLLED_OFFLINE is set"):
        fetch(file)
    cache.mkdir()
    (cache / "file.txt").write_bytes(CONTENT)
    assert fetch(file).read_bytes() == CONTENT
    (cache / "file.txt").write_bytes(WRONG)
    with pytest.raises(OfflineError, match="damaged"):
        fetch(file)
    assert server.requests == []


def test_offline_reads_a_cached_archive(server, cache, monkeypatch):
    archive = make_zip(server.folder / "a.zip", {"data/file.txt": CONTENT}).read_bytes()
    source = Source(server.at("missing"), sha256(archive), "data/file.txt")
    kept = cache / "archives" / f"{source.sha256}.archive"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(archive)
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    file = RemoteFile("file.txt", sha256(CONTENT), len(CONTENT), (source,))
    assert fetch(file).read_bytes() == CONTENT
    assert server.requests == []


@pytest.mark.parametrize(
    ("value", "expected"), [("", False), ("0", False), ("1", True), ("TRUE", True), ("no", False)]
)
def test_offline_is_read_at_each_call(monkeypatch, value, expected):
    monkeypatch.setenv("UNROLLED_OFFLINE", value)
    assert offline() is expected


def test_a_typing_error_is_told(monkeypatch):
    monkeypatch.setenv("UNROLLED_OFFLINE", "ture")
    with pytest.raises(ValueError, match="UNROLLED_OFFLINE is 'ture'"):
        offline()


def test_the_cache_folder_is_in_the_home_by_default(monkeypatch):
    monkeypatch.delenv("UNROLLED_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "unrolled"
    monkeypatch.setenv("UNROLLED_CACHE", "~/elsewhere")
    assert cache_folder() == Path.home() / "elsewhere"


def test_a_cache_that_cannot_be_made_is_told(server, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path / "a file" / "below"))
    with pytest.raises(FetchError, match="set UNROLLED_CACHE"):
        fetch(remote(server.at("good")))


# Archives


def make_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def make_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        add_files(archive, members)
    return path


def add_files(archive, members):
    for name, content in members.items():
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))


def make_ar(path, members):
    """Write an ar archive; its entries begin at even places."""
    parts = [b"!<arch>\n"]
    for name, content in members.items():
        size = str(len(content))
        parts += [f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{size:<10}`\n".encode(), content]
        parts += [b"\n"] * (len(content) % 2)
    path.write_bytes(b"".join(parts))
    return path


def make_deb(path, members, kind="xz"):
    packed = {}
    for part, files in {"control": {"./control": b"Package: tiny\n"}, "data": members}.items():
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode=f"w:{kind}") as archive:
            add_files(archive, files)
        packed[f"{part}.tar.{kind}".rstrip(".")] = content.getvalue()
    return make_ar(path, {"debian-binary": b"2.0\n", **packed})


def special_tar(path, kind, **attributes):
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("data/member")
        entry.type = kind
        for name, value in attributes.items():
            setattr(entry, name, value)
        archive.addfile(entry)
    return path


def special_zip(path, mode, content):
    entry = zipfile.ZipInfo("data/member")
    entry.create_system, entry.external_attr = 3, mode << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(entry, content)
    return path


MAKERS = pytest.mark.parametrize("make", [make_zip, make_tar, make_deb])


@MAKERS
def test_members_are_read_by_name(tmp_path, make):
    archive = make(tmp_path / "a", {"data/a.txt": b"A", "data/b.txt": b"B", "c.txt": b"C"})
    assert read_members(archive, "data/*.txt", 10) == {"data/a.txt": b"A", "data/b.txt": b"B"}
    assert read_members(archive, "c.txt", 10) == {"c.txt": b"C"}
    with pytest.raises(ValueError, match=r"has no member d\.txt"):
        read_members(archive, "d.txt", 10)


@MAKERS
@pytest.mark.parametrize("name", ["../evil", "data/../../evil", "/evil", "C:\\evil", "a\\..\\evil"])
def test_a_member_never_leaves_the_archive(tmp_path, make, name):
    (tmp_path / "inside").mkdir()
    archive = make(tmp_path / "inside" / "a", {name: b"evil"})
    with pytest.raises(ValueError, match="must be a relative path"):
        read_members(archive, "*evil", 10)
    assert left_in(tmp_path) == ["inside/a"]
    assert not Path("/evil").exists()


@MAKERS
def test_a_member_has_a_size_limit(tmp_path, make):
    archive = make(tmp_path / "a", {"bomb": bytes(10**7)})
    with pytest.raises(ValueError, match="at most 1000"):
        read_members(archive, "bomb", 1000)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: special_tar(path, tarfile.SYMTYPE, linkname="/etc/passwd"),
        lambda path: special_tar(path, tarfile.LNKTYPE, linkname="../../etc/passwd"),
        lambda path: special_tar(path, tarfile.CHRTYPE, devmajor=1, devminor=5),
        lambda path: special_tar(path, tarfile.FIFOTYPE),
        lambda path: special_tar(path, tarfile.DIRTYPE),
        lambda path: special_zip(path, stat.S_IFLNK | 0o777, "/etc/passwd"),
        lambda path: special_zip(path, stat.S_IFCHR | 0o666, ""),
    ],
    ids=["symlink", "hardlink", "device", "pipe", "folder", "zip-symlink", "zip-device"],
)
def test_only_plain_files_are_read(tmp_path, make):
    with pytest.raises(ValueError, match="must be a file"):
        read_members(make(tmp_path / "a"), "data/member", 1000)


@MAKERS
def test_a_damaged_archive_is_told(tmp_path, make):
    content = os.urandom(50_000)
    archive = make(tmp_path / "a", {"member": content})
    whole = archive.read_bytes()
    for damaged in (
        b"",
        whole[:20_000],
        whole[:20_000] + bytes(1000) + whole[21_000:],
        b"no archive",
    ):
        archive.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged|no member"):
            read_members(archive, "member", 10**6)


@pytest.mark.parametrize("kind", ["xz", "gz", "bz2", ""])
@pytest.mark.parametrize("length", [0, 1, 2, 12_345])
def test_a_debian_package_is_read_however_it_is_packed(tmp_path, kind, length):
    content = os.urandom(length)
    package = make_deb(tmp_path / "a.deb", {"./usr/a": content, "./usr/b": b"B"}, kind)
    assert read_members(package, "./usr/a", 20_000) == {"./usr/a": content}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_a_debian_package_of_dpkg_is_read(tmp_path):
    (tmp_path / "tree" / "DEBIAN").mkdir(parents=True)
    control = "Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\n"
    (tmp_path / "tree" / "DEBIAN" / "control").write_text(control + "Description: tiny\n")
    (tmp_path / "tree" / "file.txt").write_bytes(CONTENT)
    command = ["dpkg-deb", "-Zxz", "--build", tmp_path / "tree", tmp_path / "tiny.deb"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = read_members(tmp_path / "tiny.deb", "./file.txt", len(CONTENT))
    assert found == {"./file.txt": CONTENT}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"debian-binary": b"2.0\n"}, r"no data\.tar"),
        ({"data.tar.xz": b"no archive"}, "damaged"),
        ({"data.tar.zst": b""}, r"zst can be read from Python 3\.14|damaged"),
    ],
)
def test_a_package_without_files_is_told(tmp_path, members, message):
    with pytest.raises(ValueError, match=message):
        read_members(make_ar(tmp_path / "a.deb", members), "*", 10)


@pytest.mark.parametrize("size", [b"-1        ", b"1e3       ", b"          "])
def test_a_package_with_a_damaged_entry_is_told(tmp_path, size):
    package = make_ar(tmp_path / "a.deb", {"debian-binary": b"2.0\n"})
    package.write_bytes(package.read_bytes().replace(b"4         ", size))
    with pytest.raises(ValueError, match="an entry of the ar archive is damaged"):
        read_members(package, "*", 10)


def test_the_member_is_verified_too(server, monkeypatch):
    archive = make_zip(server.folder / "a.zip", {"file.txt": WRONG}).read_bytes()
    monkeypatch.setattr(Handler, "wrong", lambda self: self.send(archive))
    source = Source(server.at("wrong"), sha256(archive), "file.txt")
    file = RemoteFile("file.txt", sha256(CONTENT), len(CONTENT), (source,))
    with pytest.raises(FetchError, match=r"file.txt has SHA-256 .* must have"):
        fetch(file)


# What is made from fetched files


def maker(made, content=CONTENT):
    def make(folder):
        made.append(folder)
        (folder / "a").write_bytes(content)
        (folder / "b").write_bytes(b"B")

    return make


def test_a_folder_is_made_once(cache):
    made = []
    for _ in range(2):
        folder = derive("models/tiny", maker(made))
        assert folder == cache / "models" / "tiny"
        assert (folder / "a").read_bytes() == CONTENT
    assert len(made) == 1
    assert left_in(cache) == [f"models/tiny/{name}" for name in ("SHA256SUMS", "a", "b")]
    command = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert not shutil.which("sha256sum") or subprocess.run(command, cwd=folder).returncode == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "a").write_bytes(b"other"),
        lambda folder: (folder / "b").unlink(),
        lambda folder: (folder / "SHA256SUMS").unlink(),
        lambda folder: (folder / "SHA256SUMS").write_text(""),
        lambda folder: (folder / "SHA256SUMS").write_text("0"),
    ],
    ids=["changed", "missing", "no list", "an empty list", "no line"],
)
def test_a_damaged_folder_is_made_anew(cache, damage):
    made = []
    damage(derive("tiny", maker(made, WRONG)))
    assert (derive("tiny", maker(made)) / "a").read_bytes() == CONTENT
    assert len(made) == 2
    assert left_in(cache) == [f"tiny/{name}" for name in ("SHA256SUMS", "a", "b")]


def test_a_folder_that_could_not_be_made_is_not_there(cache):
    def fail(folder):
        (folder / "a").write_bytes(CONTENT)
        raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        derive("tiny", fail)
    assert left_in(cache) == []
    with pytest.raises(ValueError, match=r"name is '\.\./tiny'"):
        derive("../tiny", fail)


# What a source and a file may be


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ftp://example.org/a", "0" * 64), "reference is 'ftp"),
        (("file:///etc/passwd", "0" * 64), "reference is 'file"),
        (("pip:name", "0" * 64), "reference is 'pip:name'"),
        (("pip:--index-url==1", "0" * 64), "reference is 'pip:--index"),
        (("npm:name@1 --registry=x", "0" * 64), "reference is 'npm"),
        (("deb:name", "0" * 64), "reference is 'deb:name'"),
        (("deb:-o=Dir::Etc=/tmp", "0" * 64), "reference is 'deb:-o"),
        (("https://example.org/a", "0" * 63), "sha256 is '0"),
        (("https://example.org/a", "0" * 64, "../a"), "member is '../a'"),
        (("https://example.org/a", "0" * 64, ""), "member is ''"),
    ],
)
def test_a_wrong_source_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Source(*arguments)


@pytest.mark.parametrize("name", ["/etc/passwd", "../file", "a/../../b", ""])
def test_a_wrong_name_is_refused(name):
    source = Source("https://example.org/a", "0" * 64)
    with pytest.raises(ValueError, match="must be a relative path"):
        RemoteFile(name, "0" * 64, 1, (source,))


def test_a_file_needs_a_source():
    with pytest.raises(ValueError, match="sources is empty"):
        RemoteFile("name", "0" * 64, 1, ())


# The clients of the registries


def fake_client(folder, monkeypatch, script, name="npm"):
    folder.mkdir()
    client = folder / name
    client.write_text("#!/bin/sh\n" + script)
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def npm_file(archive):
    source = Source("npm:@scope/name@1.2.3", sha256(archive), "package/file.txt")
    return RemoteFile("file.txt", sha256(CONTENT), len(CONTENT), (source,))


def test_npm_is_asked_for_exactly_one_package(tmp_path, cache, monkeypatch):
    archive = make_tar(tmp_path / "archive.tgz", {"package/file.txt": CONTENT})
    script = f'echo "$@" > {tmp_path}/asked\ncp {archive} scope-name-1.2.3.tgz\n'
    fake_client(tmp_path / "bin", monkeypatch, script)
    assert fetch(npm_file(archive.read_bytes())).read_bytes() == CONTENT
    assert (tmp_path / "asked").read_text().split() == [
        "pack",
        "@scope/name@1.2.3",
        "--ignore-scripts",
    ]
    assert left_in(cache) == [f"archives/{sha256(archive.read_bytes())}.archive", "file.txt"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'E404 no such package' >&2; exit 7", r"status 7(.|\n)*E404 no such package"),
        ("echo started; exec sleep 30", r"did not end within 0\.5 seconds(.|\n)*started"),
        ("exit 0", "should make one file"),
        ("touch a b", r"\['a', 'b'\]"),
        ("echo damaged > a.tgz", "SHA256"),
    ],
)
def test_a_failing_client_is_quoted(tmp_path, cache, monkeypatch, script, message):
    fake_client(tmp_path / "bin", monkeypatch, script)
    with pytest.raises(FetchError, match=message) as caught:
        fetch(npm_file(b"archive"), client_timeout=0.5)
    assert "npm comes with Node.js" in str(caught.value)
    assert left_in(cache) == []


def test_a_missing_client_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="npm is not installed"):
        fetch(npm_file(b"archive"))


def deb_file(archive):
    source = Source("deb:tiny=1:2.0~rc1+dfsg-3", sha256(archive), "./usr/file.txt")
    return RemoteFile("file.txt", sha256(CONTENT), len(CONTENT), (source,))


def test_apt_is_asked_for_exactly_one_package(tmp_path, cache, monkeypatch):
    package = make_deb(tmp_path / "a.deb", {"./usr/file.txt": CONTENT})
    script = f'echo "$@" >> {tmp_path}/asked\ncp {package} tiny_1%3a2.0_all.deb\n'
    fake_client(tmp_path / "bin", monkeypatch, script, "apt-get")
    assert fetch(deb_file(package.read_bytes())).read_bytes() == CONTENT
    assert (tmp_path / "asked").read_text() == "-qq download tiny=1:2.0~rc1+dfsg-3\n"
    assert left_in(cache) == [f"archives/{sha256(package.read_bytes())}.archive", "file.txt"]


APT_WITHOUT_LISTS = """
for last; do :; done
lists=$(echo "$@" | sed -n 's/.*Dir::State::lists=\\(.*\\) -o Dir::Cache.*/\\1/p')
case "$last" in
  update) touch "$lists/packages"; exit 100 ;;
  *) test -e "$lists/packages" || { echo "E: Unable to locate package" >&2; exit 100; }
     cp "$PACKAGE" . ;;
esac
"""


def test_apt_without_lists_gets_its_own(tmp_path, cache, monkeypatch):
    """They lie beside the download, so that this takes no root; one list may be missing."""
    package = make_deb(tmp_path / "a.deb", {"./usr/file.txt": CONTENT})
    monkeypatch.setenv("PACKAGE", str(package))
    fake_client(tmp_path / "bin", monkeypatch, APT_WITHOUT_LISTS, "apt-get")
    assert fetch(deb_file(package.read_bytes())).read_bytes() == CONTENT
    assert left_in(cache) == [f"archives/{sha256(package.read_bytes())}.archive", "file.txt"]


def test_apt_that_finds_nothing_is_quoted(tmp_path, cache, monkeypatch):
    script = 'echo "E: Version was not found" >&2; exit 100'
    fake_client(tmp_path / "bin", monkeypatch, script, "apt-get")
    with pytest.raises(FetchError, match=r"status 100(.|\n)*Version was not found") as caught:
        fetch(deb_file(b"package"))
    assert "apt-get comes with Debian" in str(caught.value)
    assert left_in(cache) == []


def test_a_machine_without_apt_takes_the_next_source(server, tmp_path, monkeypatch):
    package = make_deb(tmp_path / "a.deb", {"./usr/file.txt": CONTENT}).read_bytes()
    monkeypatch.setattr(Handler, "good", lambda self: self.send(package))
    monkeypatch.setenv("PATH", str(tmp_path))
    (source,) = deb_file(package).sources
    mirror = Source(server.at("good"), source.sha256, source.member)
    file = RemoteFile("file.txt", sha256(CONTENT), len(CONTENT), (source, mirror))
    assert fetch(file).read_bytes() == CONTENT
    with pytest.raises(FetchError, match="apt-get is not installed"):
        fetch(RemoteFile("other.txt", sha256(WRONG), len(WRONG), (deb_file(WRONG).sources)))


def make_wheel(folder):
    info = "tiny_text-1.0.dist-info"
    members = {
        "tiny_text/file.txt": CONTENT,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-text\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    folder.mkdir()
    return make_zip(folder / "tiny_text-1.0-py3-none-any.whl", members).read_bytes()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Return a wheel that pip finds in a local folder, and nowhere else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return make_wheel(tmp_path / "wheels")


def pip_file(archive):
    source = Source("pip:tiny-text==1.0", sha256(archive), "tiny_text/file.txt")
    return RemoteFile("file.txt", sha256(CONTENT), len(CONTENT), (source,))


def test_pip_brings_a_wheel(wheel, cache):
    assert fetch(pip_file(wheel)).read_bytes() == CONTENT
    assert left_in(cache) == [f"archives/{sha256(wheel)}.archive", "file.txt"]
    assert has_sha256(cache / "archives" / f"{sha256(wheel)}.archive", sha256(wheel))


@pytest.mark.usefixtures("wheel")
def test_pip_refuses_another_wheel(cache):
    with pytest.raises(FetchError, match=r"HASHES|hashes") as caught:
        fetch(pip_file(b"another wheel"))
    assert "pip:tiny-text==1.0" in caught.value.failures
    assert left_in(cache) == []
