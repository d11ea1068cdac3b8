"""Fetch the data and the models of part `descent`, or check those that are here.

    python data_scripts/descent.py                  # fetch what is missing, check everything
    python data_scripts/descent.py reviews video    # only these
    python data_scripts/descent.py --check          # check the cache, use no network

A fetched file is verified by SHA-256 at each use. Beyond that, this script compares what is made
from the files with what the results in the book were made with.
"""

import argparse
import os
import sys
from collections.abc import Callable

from unrolled.data import pretrained, reviews, video
from unrolled.data.fetch import FetchError, cache_folder

CONTENT_HASHES = {
    "movie_reviews": "39df465b323251f68ec053c6616617344f4454a307de12d8c69fff5441e08bbe",
    "amazon_reviews": "8a590c2785854097da9ae803f2f3ab43fec4576e7e18b2f21ee7f5f09148270f",
    "reviews_and_plots": "78c34b72931ea63541c5e52a95b8a21afe88cae73c6f6772e54c0c3c93a8de15",
    # Of FFmpeg 8.1 on x86_64. Another decoder may differ by a rounding, and is told.
    "surveillance_clip": "2e9d6de31271b59729868374dc81ad92e28553d53b86974ec3ebca86ded05f2e",
}


def check_reviews() -> list[str]:
    """Return a line for each set of labelled texts; raise if one is not as it should be."""
    lines = []
    for load in (reviews.movie_reviews, reviews.amazon_reviews, reviews.reviews_and_plots):
        texts = load()
        if texts.content_hash != CONTENT_HASHES[texts.name]:
            raise ValueError(f"{texts.name} has the content hash {texts.content_hash}")
        counts = texts.counts().items()
        sizes = ", ".join(f"{count['examples']} {split}" for split, count in counts)
        lines.append(f"{texts.name}: {sizes}; as recorded")
    return lines


def check_video() -> list[str]:
    """Return a line for the clip; raise if its frames are not close to what they should be."""
    clip = video.surveillance_clip()
    facts = f"{clip.name}: {len(clip.grey)} frames, mean {clip.mean:.2f}, std {clip.std:.2f}"
    if abs(clip.mean - 121.10) > 0.05 or abs(clip.std - 49.83) > 0.05:
        raise ValueError(f"{facts}, but mean and std must be 121.10 and 49.83")
    same = clip.content_hash == CONTENT_HASHES[clip.name]
    return [f"{facts}; {'as recorded' if same else 'this decoder rounds in another way'}"]


def check_minilm() -> list[str]:
    """Return a line for all-MiniLM-L6-v2, whose files are verified."""
    return [f"all-MiniLM-L6-v2: {len(pretrained.MINILM)} files in {pretrained.minilm_folder()}"]


def check_smollm2() -> list[str]:
    """Return a line for SmolLM2-135M-Instruct, whose unpacked files are verified."""
    return [f"SmolLM2-135M-Instruct: unpacked in {pretrained.smollm2_folder()}"]


CHECKS: dict[str, Callable[[], list[str]]] = {
    "reviews": check_reviews,
    "video": check_video,
    "minilm": check_minilm,
    "smollm2": check_smollm2,
}


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(CHECKS)}; or all")
    parser.add_argument("--check", action="store_true", help="use the cache, and no network")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(CHECKS))
    if unknown:
        parser.error(f"{', '.join(unknown)}: there are only {', '.join(CHECKS)}")
    if options.check:
        os.environ["UNROLLED_OFFLINE"] = "1"
    print(f"cache: {cache_folder()}")
    failures = [name for name in options.names or CHECKS if not succeeds(CHECKS[name])]
    return 1 if failures else 0


def succeeds(check: Callable[[], list[str]]) -> bool:
    """Print what a check finds, or why it failed."""
    try:
        print(*check(), sep="\n", flush=True)
    except (FetchError, OSError, ValueError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
