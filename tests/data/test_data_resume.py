"""A broken download goes on where it stopped, against servers that make it hard; and full disks."""

import errno
import hashlib
import re
import shutil
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest

from unrolled.data import fetch as module
from unrolled.data.fetch import FetchError, RemoteFile, Source, fetch, require_space

CONTENT = np.random.default_rng(0).bytes(3_000_000)
SIZE, HALF = 3_000_000, 1_500_000
PATIENCE = 60


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """A server that counts the bytes it sends; each path is another kind of bad manners."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        self.server.asked.append((self.path.strip("/"), start))
        getattr(self, self.path.strip("/"))(start)

    def answer(self, content, start=0, stop=None, **changes):
        """Send content from start to stop, though the header promises all of it."""
        whole = len(content)
        headers = {"Content-Length": whole - start, "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{whole - 1}/{whole}"
        self.send_response(206 if start else 200)
        headers |= {name.replace("_", "-"): value for name, value in changes.items()}
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, str(value))
        self.end_headers()
        sent = content[start:stop]
        self.server.sent.append(len(sent))
        self.wfile.write(sent)
        self.wfile.flush()
        if stop is not None:
            self.close_connection = True

    def good(self, start):
        self.answer(CONTENT, start)

    def cut(self, start):
        """Break in the middle, each time; and say that ranges are not known."""
        self.answer(CONTENT, start, start + HALF, Accept_Ranges=None)

    def flaky(self, start):
        """Break after 400,000 bytes, each time; eight times until all is there."""
        self.answer(CONTENT, start, min(start + 400_000, len(CONTENT)))

    def stuck(self, start):
        self.answer(CONTENT, start, max(start, 400_000))

    def no_ranges(self, _start):
        self.answer(CONTENT, Accept_Ranges="none")

    def wrong_half(self, start):
        self.answer(b"x" * len(CONTENT), start, HALF, Accept_Ranges=None)

    def another_place(self, start):
        self.answer(CONTENT, start, Content_Range=f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}")

    def not_satisfiable(self, start):
        if start:
            self.send_error(416)
        else:
            self.answer(CONTENT)

    def endless(self, _start):
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(bytes(2**16))
        except OSError:
            self.server.hung_up.set()

    def stalls(self, start):
        self.answer(CONTENT, start, start + HALF, Accept_Ranges=None)
        self.server.halfway.set()
        self.close_connection = False
        self.server.released.wait(PATIENCE)

    def forbidden(self, _start):
        self.send_error(403)

    def unauthorised(self, _start):
        self.send_error(401)

    def missing(self, _start):
        self.send_error(404)

    def busy(self, _start):
        self.send_error(503)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    server.asked, server.sent = [], []
    server.halfway, server.released = threading.Event(), threading.Event()
    server.hung_up = threading.Event()
    server.handle_error = lambda *_: None  # clients that hang up are expected here
    server.at = lambda path: f"http://127.0.0.1:{server.server_port}/{path}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path))
    monkeypatch.delenv("UNROLLED_OFFLINE", raising=False)
    return tmp_path


def remote(*references, num_bytes=SIZE):
    sources = tuple(Source(reference, sha256(CONTENT)) for reference in references)
    return RemoteFile("file.bin", sha256(CONTENT), num_bytes, sources)


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def broken_off(server, cache, path="cut"):
    """Fetch from a server that breaks off in the middle, and return the part that is kept."""
    with pytest.raises(FetchError):
        fetch(remote(server.at(path)))
    assert left_in(cache) == ["file.bin.part"]
    server.asked.clear()
    server.sent.clear()
    return cache / "file.bin.part"


# Going on


def test_the_next_call_fetches_the_rest_only(server, cache):
    part = broken_off(server, cache)
    kept = part.stat().st_size
    assert part.read_bytes() == CONTENT[:kept]
    assert fetch(remote(server.at("good"))).read_bytes() == CONTENT
    assert server.asked == [("good", kept)]
    assert server.sent == [len(CONTENT) - kept]
    assert left_in(cache) == ["file.bin"]


def test_the_next_source_goes_on_in_the_same_call(server, cache):
    file = remote(server.at("cut"), server.at("good"))
    assert fetch(file).read_bytes() == CONTENT
    (_, (path, start)) = server.asked
    assert (path, start > 0) == ("good", True)
    assert server.sent == [HALF, len(CONTENT) - start]
    assert left_in(cache) == ["file.bin"]


def test_a_source_that_is_cut_and_gets_on_is_asked_again(server):
    assert fetch(remote(server.at("flaky"))).read_bytes() == CONTENT
    starts = [start for _, start in server.asked]
    assert len(starts) == 8
    assert starts == sorted(set(starts))
    # Of each answer that is cut, urllib3 drops what does not fill a chunk.
    assert 0 <= sum(server.sent) - len(CONTENT) < 8 * module.CHUNK


def test_a_source_that_gets_nowhere_is_left(server):
    with pytest.raises(FetchError, match="IncompleteRead"):
        fetch(remote(server.at("stuck")))
    assert len(server.asked) == 2


def test_a_source_that_is_always_cut_is_left_at_last(server, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 3)
    with pytest.raises(FetchError, match="it goes on where it was cut"):
        fetch(remote(server.at("flaky")))
    assert len(server.asked) == 3
    assert fetch(remote(server.at("good"))).read_bytes() == CONTENT
    assert 0 <= sum(server.sent) - len(CONTENT) < 3 * module.CHUNK


def test_a_server_without_ranges_begins_again(server, cache):
    broken_off(server, cache)
    assert fetch(remote(server.at("no_ranges"))).read_bytes() == CONTENT
    assert server.sent == [len(CONTENT)]
    assert left_in(cache) == ["file.bin"]


def test_a_wrong_part_is_thrown_away_and_all_is_fetched(server, cache):
    broken_off(server, cache, "wrong_half")
    assert fetch(remote(server.at("good"))).read_bytes() == CONTENT
    assert [start > 0 for _, start in server.asked] == [True, False]
    assert left_in(cache) == ["file.bin"]


def test_the_rest_from_another_place_is_not_taken(server, cache):
    kept = broken_off(server, cache).stat().st_size
    assert fetch(remote(server.at("another_place"))).read_bytes() == CONTENT
    assert [start for _, start in server.asked] == [kept, 0]


@pytest.mark.parametrize(("left", "requests"), [(CONTENT, 1), (CONTENT + b"more", 2)])
def test_a_part_after_which_nothing_comes(server, cache, left, requests):
    """It is all of the file, if a process died before the last step; or it is no part of it."""
    (cache / "file.bin.part").write_bytes(left)
    assert fetch(remote(server.at("not_satisfiable"))).read_bytes() == CONTENT
    assert len(server.asked) == requests
    assert left_in(cache) == ["file.bin"]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_a_killed_process_leaves_a_part_to_go_on_from(server, cache, end):
    code = (
        "from unrolled.data.fetch import RemoteFile, Source, fetch\n"
        f"source = Source({server.at('stalls')!r}, {sha256(CONTENT)!r})\n"
        f"fetch(RemoteFile('file.bin', {sha256(CONTENT)!r}, {len(CONTENT)}, (source,)))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    assert server.halfway.wait(PATIENCE)
    part = cache / "file.bin.part"
    deadline = threading.Event()
    while not (part.exists() and part.stat().st_size > 1_000_000):
        assert not deadline.wait(0.02)
    process.send_signal(end)
    process.wait(PATIENCE)
    kept = part.stat().st_size
    server.asked.clear()
    server.sent.clear()
    assert fetch(remote(server.at("good"))).read_bytes() == CONTENT
    assert server.asked == [("good", kept)]
    assert left_in(cache) == ["file.bin"]


def test_a_source_that_never_ends_is_stopped(server, cache):
    with pytest.raises(FetchError, match="sends more than 3,000,000 bytes"):
        fetch(remote(server.at("endless")))
    assert server.hung_up.wait(PATIENCE)
    assert left_in(cache) == []


def test_a_file_of_unknown_size_is_fetched(server):
    assert fetch(remote(server.at("good"), num_bytes=None)).read_bytes() == CONTENT
    source = Source(server.at("good"), sha256(CONTENT), "member")
    with pytest.raises(ValueError, match="num_bytes is None"):
        RemoteFile("file.bin", sha256(CONTENT), None, (source,))


# What the reader can do


@pytest.mark.parametrize(
    ("path", "reason", "advice"),
    [
        ("forbidden", "403", "accept its terms or log in"),
        ("unauthorised", "401", "accept its terms or log in"),
        ("missing", "404", "the file has moved"),
        ("busy", "503", "the server is busy"),
        ("cut", "IncompleteRead", "goes on where it was cut"),
    ],
)
def test_each_failure_has_its_advice(server, path, reason, advice):
    with pytest.raises(FetchError) as caught:
        fetch(remote(server.at(path), server.at("missing")))
    message = str(caught.value)
    assert f"- {server.at(path)}: " in message
    assert reason in message
    assert advice in message
    assert message.count("the file has moved") == 1


# Full disks


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(server, cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=52_000_000))
    with pytest.raises(FetchError, match=r"3,000,000 bytes .* but 52,000,000 are free") as caught:
        fetch(remote(server.at("good")))
    assert "make room on the disk, or set UNROLLED_CACHE" in str(caught.value)
    assert left_in(cache) == []
    require_space(cache / "not" / "yet", 1_000_000)
    with pytest.raises(OSError, match="reserve of 50,000,000") as full:
        require_space(cache / "not" / "yet", 3_000_000)
    assert full.value.errno == errno.ENOSPC


def test_a_resumed_fetch_needs_room_for_the_rest_only(server, cache, monkeypatch):
    broken_off(server, cache)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=52_000_000))
    assert fetch(remote(server.at("good"))).read_bytes() == CONTENT


IN_SMALL_DISK = """
mount -t tmpfs -o size=1m tmpfs {folder} || exit 77
cd {folder} && UNROLLED_CACHE={folder} {python} - <<'END'
from unrolled.data import fetch as module
module.require_space = lambda folder, num_bytes: None
source = module.Source({url!r}, {sha256!r})
try:
    module.fetch(module.RemoteFile('file.bin', {sha256!r}, 3_000_000, (source,)))
except module.FetchError as error:
    print(error)
END
ls {folder}
"""


def test_a_disk_that_fills_up_all_the_same_is_told(server, tmp_path):
    """A true file system of one megabyte, in name spaces of its own."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here")
    script = IN_SMALL_DISK.format(
        folder=tmp_path, python=sys.executable, url=server.at("good"), sha256=sha256(CONTENT)
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if result.returncode == 77 or "unshare:" in result.stderr:
        pytest.skip("no file system can be mounted here")
    assert "No space left on device" in result.stdout
    assert "make room on the disk" in result.stdout
    assert "file.bin\n" not in result.stdout
