"""The scripts that make the committed data."""

import importlib.util
import io
import json
import lzma
import tarfile
from pathlib import Path

import pytest

from unrolled.data.fetch import FetchError, fetch
from unrolled.data.text import MOBY_DICK, WIKIPEDIA_LEADS

FOLDER = Path(__file__).parents[2] / "data_scripts"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = load("state_of_the_union")


def archive_of(path, addresses):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in addresses.items():
            entry = tarfile.TarInfo(f"package/data/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def address(stem, text):
    facts = {"year": int(stem[:4]), "name": "A B", "party": "none", "text": text.strip()}
    return {f"{stem}.txt": text.encode(), f"{stem}.json": json.dumps(facts).encode()}


def test_addresses_keep_their_bytes_and_the_order_of_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr(SCRIPT, "NUM_ADDRESSES", 2)
    members = address("1801_b", " né \n") | address("1790_a", "one") | {"data.js": b"{}"}
    records = SCRIPT.records(archive_of(tmp_path / "a.tgz", members))
    assert [(record["year"], record["text"]) for record in records] == [
        (1790, "one"),
        (1801, " né \n"),
    ]
    assert SCRIPT.lines(records).decode().count("\n") == 2


def test_a_missing_address_and_a_changed_text_are_errors(tmp_path, monkeypatch):
    members = address("1790_a", "one")
    with pytest.raises(ValueError, match="1 texts, but must have 233"):
        SCRIPT.records(archive_of(tmp_path / "a.tgz", members))
    monkeypatch.setattr(SCRIPT, "NUM_ADDRESSES", 1)
    members["1790_a.txt"] = b"two"
    with pytest.raises(ValueError, match="the two texts of A B, 1790 differ"):
        SCRIPT.records(archive_of(tmp_path / "b.tgz", members))


def test_check_sees_one_changed_byte(tmp_path):
    path = tmp_path / "file.xz"
    path.write_bytes(SCRIPT.pack(b"content"))
    assert SCRIPT.check(b"content", path) == "identical, byte by byte"
    with pytest.raises(ValueError, match="differs from its source"):
        SCRIPT.check(b"Content", path)
    path.write_bytes(lzma.compress(b"content", preset=0))
    assert "same content" in SCRIPT.check(b"content", path)


def test_a_failure_is_one_message_and_a_status(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path))
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    assert SCRIPT.main(["--check"]) == 1
    assert "UNROLLED_OFFLINE is set" in capsys.readouterr().err


def test_the_shipped_file_is_what_the_source_gives():
    try:
        archive = fetch(SCRIPT.ARCHIVE)
    except FetchError as error:
        if any("SHA" in str(failure).upper() for failure in error.failures.values()):
            raise
        pytest.skip(f"the source is not cached and cannot be fetched: {error}")
    content = SCRIPT.lines(SCRIPT.records(archive))
    assert content == lzma.decompress(SCRIPT.SHIPPED.read_bytes())
    assert SCRIPT.SHIPPED.stat().st_size < 3_000_000


@pytest.mark.parametrize("file", [MOBY_DICK, WIKIPEDIA_LEADS, SCRIPT.ARCHIVE], ids=lambda f: f.name)
def test_the_readme_has_every_size_and_checksum(file):
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert file.sha256 in readme
    assert f"{file.num_bytes:,} bytes" in readme
    for source in file.sources:
        assert source.sha256 in readme
        assert source.kind == "http" or f"`{source.reference}`" in readme


def test_the_readme_has_the_size_of_the_shipped_file():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"{SCRIPT.SHIPPED.stat().st_size:,} compressed" in readme
