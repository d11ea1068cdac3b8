"""Surveillance footage of the papers: CUHK Avenue, UCSD Ped1 and Ped2, ShanghaiTech Campus.

Each comes as `Clips`, a `unrolled.data.video.Footage` made of many clips: grey frames of 96 x 128
pixels, means of areas, so that models and settings are those of the small clip. What was published
for training has no unusual events; every eighth of its clips is held out for validation.

Frames are decoded once and kept. Of each clip the last frames, which do not fill a window of eight,
are left out, so that no window of `unrolled.data.video.evaluation_patches` lies in two clips;
`ClipBatches` draws training sequences that do not either.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unrolled.data._extra import need
from unrolled.data.archives import unpack
from unrolled.data.classification import spread
from unrolled.data.fetch import (
    FetchError,
    RemoteFile,
    Source,
    cache_folder,
    derive,
    fetch,
    require_space,
)
from unrolled.data.video import Footage

__all__ = [
    "AVENUE",
    "SHANGHAITECH",
    "UCSD",
    "ClipBatches",
    "Clips",
    "anomalous_frames",
    "avenue",
    "shanghaitech",
    "ucsd_ped1",
    "ucsd_ped2",
]


def _remote(name: str, sha256: str, *addresses: str) -> RemoteFile:
    return RemoteFile(name, sha256, None, tuple(Source(address, sha256) for address in addresses))


# SHA-256 as published in anomalib (Apache-2.0), which fetches the same files; the sizes are not.
AVENUE = _remote(
    "Avenue_Dataset.zip",
    "fc9cb8432a11ca79c18aa180c72524011411b69d3b0ff27c8816e41c0de61531",
    "http://www.cse.cuhk.edu.hk/leojia/projects/detectabnormal/Avenue_Dataset.zip",
    "https://www.cse.cuhk.edu.hk/leojia/projects/detectabnormal/Avenue_Dataset.zip",
)
"""37 clips of 640 x 360 pixels, 25 frames a second."""

UCSD = _remote(
    "UCSD_Anomaly_Dataset.tar.gz",
    "2329af326951f5097fdd114c50e853957d3e569493a49d22fc082a9fd791915b",
    "http://www.svcl.ucsd.edu/projects/anomaly/UCSD_Anomaly_Dataset.tar.gz",
    "https://www.svcl.ucsd.edu/projects/anomaly/UCSD_Anomaly_Dataset.tar.gz",
)
"""Both UCSD sets: 70 clips of 238 x 158 and 28 of 360 x 240 pixels, as TIFF frames."""

SHANGHAITECH = _remote(
    "shanghaitech.tar.gz",
    "c13a827043b259ccf8493c9d9130486872992153a9d714fe229e523cd4c94116",
    "http://101.32.75.151:8181/dataset/shanghaitech.tar.gz",
)
"""437 clips of 13 cameras, 856 x 480 pixels, 24 frames a second."""

HEIGHT, WIDTH, WINDOW = 96, 128, 8
VALIDATION_EVERY = 8
MOVING = (".avi", ".mp4")
PICTURES = (".tif", ".jpg", ".png")


@dataclass(frozen=True, eq=False)
class Clips(Footage):
    """Footage of many clips, one after the other.

    Parameters
    ----------
    clips : dict of str to tuple of range
        The frames of each clip, by split. The other parameters are those of
        `unrolled.data.video.Footage`.

    Examples
    --------
    >>> grey = np.zeros((24, 8, 8), dtype=np.uint8)
    >>> clips = {"train": (range(8), range(8, 16)), "test": (range(16, 24),)}
    >>> Clips.of("tiny", grey, clips, frames_per_second=10.0).parts["train"]
    range(0, 16)
    """

    clips: dict[str, tuple[range, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, grey: np.ndarray, clips: dict[str, tuple[range, ...]], **facts: str | float
    ) -> Clips:
        """Return the footage of clips that lie behind one another, split by split."""
        parts = {split: range(found[0].start, found[-1].stop) for split, found in clips.items()}
        return cls(name, grey, parts, clips=clips, **facts)

    @cached_property
    def _counts(self) -> np.ndarray:
        """How many pixels of the training part have each grey level; frames are read in parts."""
        part, size = self.parts["train"], 4_096
        return sum(
            np.bincount(self.grey[start : min(start + size, part.stop)].ravel(), minlength=256)
            for start in range(part.start, part.stop, size)
        )

    @cached_property
    def mean(self) -> float:
        """Mean grey level of the training part."""
        return float(np.average(np.arange(256), weights=self._counts))

    @cached_property
    def std(self) -> float:
        """Standard deviation of the grey levels of the training part."""
        squares = (np.arange(256) - self.mean) ** 2
        return float(np.average(squares, weights=self._counts) ** 0.5)


@dataclass(frozen=True, eq=False)
class ClipBatches:
    """Training sequences of patches that lie in one clip, as a pure function of (seed, step).

    As `unrolled.data.video.PatchBatches`, but no sequence goes from one clip into the next, and
    only the frames of a batch are read, so footage larger than memory can be mapped.

    Parameters
    ----------
    footage : Clips
    batch_size : int
        Sequences per batch, B.
    seed : int
        Not negative.
    length : int
        Frames per sequence, T; no clip of the training part may be shorter.
    patch : int
        Pixels along a side, P.

    Examples
    --------
    >>> grey = np.repeat(np.arange(16, dtype=np.uint8), 64).reshape(16, 8, 8)
    >>> footage = Clips.of("tiny", grey, {"train": (range(8), range(8, 16))})
    >>> batch = ClipBatches(footage, batch_size=2, seed=0)(7)
    >>> batch.shape
    torch.Size([2, 8, 64])
    """

    footage: Clips
    batch_size: int
    seed: int
    length: int = 8
    patch: int = 8

    def __post_init__(self):
        for name, least in (("batch_size", 1), ("seed", 0), ("length", 1), ("patch", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least {least}")
        shortest = min(len(clip) for clip in self.footage.clips["train"])
        height, width = self.footage.grey.shape[1:]
        if self.length > shortest or self.patch > min(height, width):
            found = f"{shortest} frames of {height} x {width} pixels"
            raise ValueError(
                f"length is {self.length} and patch {self.patch}, but a clip has {found}"
            )

    @cached_property
    def starts(self) -> np.ndarray:
        """The frames at which a sequence can begin, (S,)."""
        clips = self.footage.clips["train"]
        return np.concatenate(
            [np.arange(clip.start, clip.stop - self.length + 1) for clip in clips]
        )

    def offsets(self, step: int) -> Tensor:
        """Return frame, row and column at which each sequence of a step begins, (B, 3)."""
        if step < 0:
            raise ValueError(f"step is {step}, but must not be negative")
        random = np.random.Philox(key=self.seed, counter=[0, step, 0, 0])
        raw = random.random_raw(3 * self.batch_size).reshape(-1, 3)  # (B, 3) uint64
        height, width = self.footage.grey.shape[1:]
        sizes = (len(self.starts), height - self.patch + 1, width - self.patch + 1)
        places = (raw % np.array(sizes, np.uint64)).astype(np.int64)
        places[:, 0] = self.starts[places[:, 0]]
        return torch.from_numpy(places)

    def __call__(self, step: int) -> Tensor:
        """Return the clean sequences of a step, z-scored, (B, T, P²)."""
        side = np.arange(self.patch)
        frame, row, column = self.offsets(step).numpy().T[..., None, None, None]  # (B, 1, 1, 1)
        times = frame + np.arange(self.length)[:, None, None]  # (B, T, 1, 1)
        grey = self.footage.grey[times, row + side[:, None], column + side]  # (B, T, P, P)
        patches = torch.from_numpy(grey).float().flatten(start_dim=2)  # (B, T, P²)
        return (patches - self.footage.mean) / self.footage.std


def avenue(subset: int | None = None) -> Clips:
    """Return CUHK Avenue: a camera beside an avenue; 16 clips for training, 21 for testing.

    Parameters
    ----------
    subset : int, optional
        Keep only so many clips of each split, spread evenly; all by default.

    Returns
    -------
    Clips
        The archive and the decoded frames are kept in the cache folder. A folder ``avenue`` there
        that you have unpacked yourself is taken first.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    """
    places = {"train": "**/training_videos/*.avi", "test": "**/testing_videos/*.avi"}
    return _clips(
        "avenue",
        AVENUE,
        places,
        subset,
        max_bytes=8_000_000_000,
        frames_per_second=25.0,
        licence="Not stated; for research, so it is fetched and never passed on",
        attribution="C. Lu, J. Shi and J. Jia, Abnormal Event Detection at 150 FPS in MATLAB, "
        "ICCV 2013.",
    )


def ucsd_ped1(subset: int | None = None) -> Clips:
    """Return UCSD Ped1: people walk towards the camera; 34 clips for training, 36 for testing.

    Parameters, returns and errors are those of `avenue`; the folder is ``ucsd``.
    """
    return _ucsd(1, subset)


def ucsd_ped2(subset: int | None = None) -> Clips:
    """Return UCSD Ped2: people walk past the camera; 16 clips for training, 12 for testing.

    Parameters, returns and errors are those of `avenue`; the folder is ``ucsd``.
    """
    return _ucsd(2, subset)


def shanghaitech(subset: int | None = None) -> Clips:
    """Return ShanghaiTech Campus: 13 cameras; 330 clips for training, 107 for testing.

    Parameters, returns and errors are those of `avenue`; the folder is ``shanghaitech``. The whole
    set is about 317,000 frames: `ClipBatches` reads it as it goes, but ``part`` needs 49 kB of
    memory for each frame.
    """
    places = {"train": "**/training/videos/*.avi", "test": "**/testing/frames/*/"}
    return _clips(
        "shanghaitech",
        SHANGHAITECH,
        places,
        subset,
        max_bytes=60_000_000_000,
        frames_per_second=24.0,
        licence="BSD 2-Clause as its users state it; the footage shows people, so it is fetched "
        "and never passed on",
        attribution="W. Liu, W. Luo, D. Lian and S. Gao, Future Frame Prediction for Anomaly "
        "Detection: A New Baseline, CVPR 2018.",
    )


def _ucsd(number: int, subset: int | None) -> Clips:
    root = f"**/UCSDped{number}"
    # Test001_gt and the like hold masks.
    places = {"train": f"{root}/Train/Train???/", "test": f"{root}/Test/Test???/"}
    return _clips(
        f"ucsd_ped{number}",
        UCSD,
        places,
        subset,
        folder="ucsd",
        max_bytes=8_000_000_000,
        frames_per_second=10.0,
        licence="Not stated; for research, so it is fetched and never passed on",
        attribution="V. Mahadevan, W. Li, V. Bhalodia and N. Vasconcelos, Anomaly Detection in "
        "Crowded Scenes, CVPR 2010.",
    )


def anomalous_frames(path: Path) -> np.ndarray:
    """Return which frames of a clip for testing show something unusual, (F,) bool.

    Parameters
    ----------
    path : Path
        What was published: ``N_label.mat`` of Avenue (a mask for each frame), a folder
        ``TestNNN_gt`` of UCSD (the same as pictures), or ``NN_NNNN.npy`` of ShanghaiTech (a number
        for each frame).

    Raises
    ------
    ValueError
        It is none of these.
    """
    if path.suffix == ".mat":
        from scipy.io import loadmat

        masks = loadmat(path)["volLabel"].reshape(-1)
        return np.array([np.any(mask) for mask in masks])
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False).astype(bool)
    masks = sorted(path.glob("*.bmp")) if path.is_dir() else []
    if not masks:
        raise ValueError(f"path is {str(path)!r}, but must be a .mat, a .npy or a folder of .bmp")
    return np.array([_picture(mask).any() for mask in masks])


def _clips(
    name: str,
    archive: RemoteFile,
    places: dict[str, str],
    subset: int | None,
    *,
    max_bytes: int,
    folder: str | None = None,
    **facts: str | float,
) -> Clips:
    spread(1, subset)  # a wrong one is told before anything is fetched
    unpacked = cache_folder() / (folder or name)
    key = f"{archive.sha256} {places} {HEIGHT} x {WIDTH}, {_decoder()}, {subset}"
    if unpacked.is_dir():
        key += f" {_listing(unpacked, places)}"
    made = derive(
        f"{name}_{WIDTH}x{HEIGHT}_{hashlib.sha256(key.encode()).hexdigest()[:16]}",
        lambda made: _make(archive, unpacked, places, subset, max_bytes, made),
    )
    lengths = dict(np.load(made / "lengths.npz", allow_pickle=False))
    grey = np.load(made / "grey.npy", mmap_mode="r", allow_pickle=False)
    return Clips.of(name, grey, _ranges(lengths), source=archive.sources[0].reference, **facts)


def _decoder() -> str:
    return f"av {need('av', 'decoding footage').__version__}"


def _listing(folder: Path, places: dict[str, str]) -> list[tuple[str, int]]:
    found = [path for pattern in places.values() for path in sorted(folder.glob(pattern))]
    return [(str(path.relative_to(folder)), path.stat().st_size) for path in found]


def _ranges(lengths: dict[str, np.ndarray]) -> dict[str, tuple[range, ...]]:
    clips, start = {}, 0
    for split in ("train", "validation", "test"):
        found = []
        for length in lengths[split].tolist():
            found.append(range(start, start + length))
            start += length
        if found:
            clips[split] = tuple(found)
    return clips


def _make(
    archive: RemoteFile,
    unpacked: Path,
    places: dict[str, str],
    subset: int | None,
    max_bytes: int,
    made: Path,
) -> None:
    """Write all chosen frames and the lengths of the clips into a folder."""
    if not unpacked.is_dir():
        packed = _fetch(archive, unpacked)
        unpacked = made / "unpacked"
        require_space(made, 2 * packed.stat().st_size)
        unpack(packed, unpacked, max_bytes=max_bytes)
    lengths: dict[str, list[int]] = {}
    with (made / "frames").open("wb") as stream:
        for split, paths in _by_split(unpacked, places, subset).items():
            lengths[split] = [_decode(path, stream.write) for path in paths]
    count = sum(map(sum, lengths.values()))
    frames = np.memmap(made / "frames", np.uint8, "r", shape=(count, HEIGHT, WIDTH))
    np.save(made / "grey.npy", frames)
    np.savez(made / "lengths.npz", **lengths)
    del frames
    (made / "frames").unlink()
    shutil.rmtree(made / "unpacked", ignore_errors=True)


def _fetch(archive: RemoteFile, unpacked: Path) -> Path:
    try:
        return fetch(archive)
    except FetchError as error:
        more = f"{error}\n- Or get it from its authors and unpack it into {unpacked}."
        raise type(error)(more, error.failures) from error


def _by_split(folder: Path, places: dict[str, str], subset: int | None) -> dict[str, list[Path]]:
    found = {split: sorted(folder.glob(pattern)) for split, pattern in places.items()}
    for split, paths in found.items():
        if not paths:
            raise ValueError(f"{folder} has no {places[split]}, so it is another set, or not whole")
    numbered = list(enumerate(found["train"]))
    splits = {
        "train": [path for n, path in numbered if n % VALIDATION_EVERY != VALIDATION_EVERY - 1],
        "validation": [
            path for n, path in numbered if n % VALIDATION_EVERY == VALIDATION_EVERY - 1
        ],
        "test": found["test"],
    }
    return {
        split: [paths[n] for n in spread(len(paths), subset)] if paths else []
        for split, paths in splits.items()
    }


def _decode(clip: Path, write: Callable[[bytes], object]) -> int:
    """Write the shrunk frames of a clip, a multiple of WINDOW; return how many there are."""
    window: list[np.ndarray] = []
    count = 0
    for frame in _frames(clip):
        window.append(_shrink(frame))
        if len(window) == WINDOW:
            write(np.stack(window).tobytes())
            count += WINDOW
            window.clear()
    if not count:
        raise ValueError(f"{clip} has fewer than {WINDOW} frames")
    return count


def _frames(clip: Path) -> Iterator[np.ndarray]:
    """Yield the grey frames of a film, or of a folder of pictures, (H, W) uint8."""
    if clip.suffix in MOVING:
        with need("av", "decoding footage").open(str(clip)) as container:
            for frame in container.decode(video=0):
                yield frame.to_ndarray(format="gray")
        return
    # UCSD has files ._001.tif beside 001.tif, which are no pictures.
    names = [path for path in clip.iterdir() if path.suffix in PICTURES and path.name[0] != "."]
    for path in sorted(names, key=lambda path: [int(n) for n in re.findall(r"\d+", path.stem)]):
        yield _picture(path)


def _picture(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("L"))


def _shrink(grey: np.ndarray) -> np.ndarray:
    """Return the means of areas, rounded, (HEIGHT, WIDTH) uint8."""
    pixels = torch.from_numpy(np.array(grey)).float()[None, None]
    means = torch.nn.functional.interpolate(pixels, (HEIGHT, WIDTH), mode="area")
    return means[0, 0].round().to(torch.uint8).numpy()
