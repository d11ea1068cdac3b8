"""Real surveillance footage: split by time, cut into short sequences of patches, made noisy.

`surveillance_clip` fetches and decodes one clip of a fixed camera. `PatchBatches` cuts training
sequences out of a part of it, `evaluation_patches` cuts a part into sequences that do not overlap
and `assemble_patches` puts them together again. `gaussian_noise` is what a denoiser has to remove.
All are pure functions of their arguments, a seed and a step among them.

Shapes: F frames of H x W pixels; B sequences of T successive frames of one patch of P x P pixels,
as (B, T, P²). Units: one is the standard deviation of the grey levels of the training part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from unrolled.data._extra import need
from unrolled.data.fetch import RemoteFile, Source, derive, fetch
from unrolled.data.text import SPLITS

if TYPE_CHECKING:
    import av

__all__ = [
    "SURVEILLANCE_CLIP",
    "Footage",
    "PatchBatches",
    "assemble_patches",
    "evaluation_patches",
    "gaussian_noise",
    "surveillance_clip",
]

_CLIP_SHA256 = "45cddc9490be69345cbdab64ca583be65987e864ca408038e648db99e10516cf"
_PACKAGE_SHA256 = "4b12681df35878207ac7097dc66184b2ae552e4bf4ddd2af04a0f03ed0b8682a"
_IN_PACKAGE = "./usr/share/doc/opencv-doc/examples/data/vtest.avi"
_POOL = "pool/main/o/opencv/opencv-doc_4.6.0+dfsg-12_all.deb"
SURVEILLANCE_CLIP = RemoteFile(
    name="vtest.avi",
    sha256=_CLIP_SHA256,
    num_bytes=8_131_690,
    sources=(
        Source("deb:opencv-doc=4.6.0+dfsg-12", _PACKAGE_SHA256, _IN_PACKAGE),
        Source(
            "https://raw.githubusercontent.com/opencv/opencv/4.6.0/samples/data/vtest.avi",
            _CLIP_SHA256,
        ),
        Source(f"https://deb.debian.org/debian/{_POOL}", _PACKAGE_SHA256, _IN_PACKAGE),
        Source(
            f"https://snapshot.debian.org/archive/debian/20240101T000000Z/{_POOL}",
            _PACKAGE_SHA256,
            _IN_PACKAGE,
        ),
    ),
)
"""The clip, from the Debian package of OpenCV's samples (96 MB) or from OpenCV's repository."""

FRAMES, HEIGHT, WIDTH, SHRINK = 795, 96, 128, 6
FRAMES_PER_SECOND = 10.0
PARTS = {"train": range(500), "validation": range(516, 556), "test": range(597, 789)}
# Studio luma has black at 16 and white at 235.
FULL_RANGE = np.rint(((np.arange(256) - 16) * 255 / 219).clip(0, 255)).astype(np.uint8)
NOISE_STREAM = 1  # a second key: batches draw from the stream 0 of the same seed
RECIPE = "luma, full range, mean of 6 x 6"
ATTRIBUTION = "Clip vtest.avi of the samples of OpenCV (https://opencv.org)."
LICENCE = (
    "OpenCV's sources, which carry the clip, are declared Apache-2.0 and BSD-3-Clause; the terms "
    "of the footage itself are not stated, so it is fetched and never passed on"
)


@dataclass(frozen=True, eq=False)
class Footage:
    """The frames of one clip, z-scored, and the parts into which its time is split.

    Parameters
    ----------
    name : str
        Short name, used in result rows.
    grey : ndarray
        Grey levels 0 to 255, (F, H, W) uint8.
    parts : dict of str to range
        The frames of each split. They must not overlap.
    frames_per_second : float
        How fast the clip runs.
    licence, source, attribution : str
        Under which terms the clip may be used, where it was taken from, whom to name.

    Examples
    --------
    >>> grey = np.arange(6, dtype=np.uint8).reshape(6, 1, 1)
    >>> footage = Footage("tiny", grey, {"train": range(3), "test": range(4, 6)})
    >>> footage.mean, footage.part("test").flatten() * footage.std + footage.mean
    (1.0, tensor([4., 5.]))
    """

    name: str
    grey: np.ndarray
    parts: dict[str, range]
    frames_per_second: float = 1.0
    licence: str = ""
    source: str = ""
    attribution: str = ""

    def __post_init__(self):
        if self.grey.ndim != 3 or self.grey.dtype != np.uint8:
            found = f"{self.grey.dtype} {self.grey.shape}"
            raise ValueError(f"grey is {found}, but must be uint8 of the shape (F, H, W)")
        _check_parts(self.parts, len(self.grey))

    @cached_property
    def mean(self) -> float:
        """Mean grey level of the training part."""
        return float(self._training.mean(dtype=np.float64))

    @cached_property
    def std(self) -> float:
        """Standard deviation of the grey levels of the training part, the unit of `part`."""
        return float(self._training.std(dtype=np.float64))

    @property
    def _training(self) -> np.ndarray:
        return self.grey[self.parts["train"]]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have frames."""
        return tuple(split for split in SPLITS if split in self.parts)

    def part(self, split: str) -> Tensor:
        """Return the frames of a split, z-scored, (F, H, W) float32."""
        if split not in self.parts:
            raise ValueError(f"split is {split!r}, but {self.name} has {self.splits}")
        frames = torch.from_numpy(self.grey[self.parts[split]]).float()
        # (x - mean) / std
        return (frames - self.mean) / self.std

    def to_grey(self, frames: Tensor) -> Tensor:
        """Return z-scored frames of any shape as grey levels 0 to 255: what one can look at."""
        return (frames * self.std + self.mean).round().clamp(0, 255).to(torch.uint8)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the grey levels, which may differ by a rounding from one FFmpeg to another."""
        return hashlib.sha256(np.ascontiguousarray(self.grey).tobytes()).hexdigest()


def _check_parts(parts: dict[str, range], num_frames: int) -> None:
    if not {"train"} <= set(parts) <= set(SPLITS):
        raise ValueError(f"parts has {tuple(parts)}, but must have 'train', and only {SPLITS}")
    frames = [frame for part in parts.values() for frame in part]
    if len(frames) != len(set(frames)):
        raise ValueError(f"parts is {parts}, but must not have a frame twice")
    if not 0 <= min(frames) <= max(frames) < num_frames:
        raise ValueError(f"parts is {parts}, but there are {num_frames} frames")


@lru_cache(maxsize=1)
def surveillance_clip() -> Footage:
    """Return a clip of a fixed camera above a path that people cross: fetched, then cached.

    795 frames, 10 a second, of 768 x 576 pixels; here grey and 128 x 96: each pixel is the mean of
    6 x 6. Time is split with gaps of 1.6 and 4.1 seconds: frames 0 to 499 for training, 516 to 555
    for validation, 597 to 788 for testing. People move on, but the background is the same in all
    three. The frames for training have the mean 121.1 and the standard deviation 49.8.

    Returns
    -------
    Footage
        The decoded frames are kept in the cache folder, too.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    ModuleNotFoundError
        The library that decodes it is not installed.
    """
    return Footage(
        name="surveillance_clip",
        grey=_decoded(fetch(SURVEILLANCE_CLIP)),
        parts=dict(PARTS),
        frames_per_second=FRAMES_PER_SECOND,
        licence=LICENCE,
        source=SURVEILLANCE_CLIP.sources[0].reference,
        attribution=ATTRIBUTION,
    )


def _decoded(clip: Path) -> np.ndarray:
    """Return the grey levels of the clip, (795, 96, 128) uint8, from the cache if they are there.

    Decoders may differ by a rounding, so the name of the cached folder follows their version.
    """
    version = need("av", "decoding the clip").__version__
    key = hashlib.sha256(f"{_CLIP_SHA256} {RECIPE} {version}".encode()).hexdigest()
    folder = derive(
        f"vtest_{WIDTH}x{HEIGHT}_{key[:16]}",
        lambda folder: np.save(folder / "grey.npy", _decode(clip)),
    )
    return np.load(folder / "grey.npy", allow_pickle=False)


def _decode(path: Path) -> np.ndarray:
    av = need("av", "decoding the clip")
    with av.open(str(path)) as container:
        frames = np.stack([_shrink(_luma(frame)) for frame in container.decode(video=0)])
    if frames.shape != (FRAMES, HEIGHT, WIDTH):
        wanted = (FRAMES, HEIGHT, WIDTH)
        raise ValueError(f"av {av.__version__} decoded {frames.shape}, but the clip has {wanted}")
    return frames


def _luma(frame: av.VideoFrame) -> np.ndarray:
    """Return the grey levels of a decoded frame, (H, W) uint8: the first of its three planes."""
    if frame.format.name != "yuv420p":
        raise ValueError(f"the frames are {frame.format.name}, but must be yuv420p")
    return FULL_RANGE[frame.to_ndarray()[: frame.height]]


def _shrink(grey: np.ndarray) -> np.ndarray:
    """Return the mean of each SHRINK x SHRINK pixels, rounded, (H, W) uint8."""
    height, width = (size // SHRINK for size in grey.shape)
    rows = grey.reshape(height, SHRINK, -1).sum(axis=1, dtype=np.uint16)
    sums = rows.reshape(height, width, SHRINK).sum(axis=2, dtype=np.uint16)
    return ((sums + SHRINK**2 // 2) // SHRINK**2).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class PatchBatches:
    """Training sequences of patches as a pure function of (seed, step).

    Each sequence shows one patch in successive frames. Where and when it begins is uniform over
    all places at which it fits, to the pixel and to the frame, and is the output of a
    counter-based generator (Philox) whose key is the seed and whose counter is the step.

    Parameters
    ----------
    frames : Tensor
        The training part, (F, H, W), F >= length.
    batch_size : int
        Sequences per batch, B.
    seed : int
        Not negative.
    length : int
        Frames per sequence, T.
    patch : int
        Pixels along a side, P.

    Examples
    --------
    >>> frames = torch.arange(10.0)[:, None, None].expand(10, 16, 16)
    >>> batch = PatchBatches(frames, batch_size=2, seed=0)(7)
    >>> batch.shape, batch[0].diff(dim=0).unique()
    (torch.Size([2, 8, 64]), tensor([1.]))
    """

    frames: Tensor
    batch_size: int
    seed: int
    length: int = 8
    patch: int = 8

    def __post_init__(self):
        _check_frames(self.frames, self.length, self.patch)
        _check_least(1, batch_size=self.batch_size)
        _check_least(0, seed=self.seed)

    @property
    def num_offsets(self) -> tuple[int, int, int]:
        """In how many frames, rows and columns a sequence can begin."""
        sizes = (self.length, self.patch, self.patch)
        return tuple(whole - size + 1 for whole, size in zip(self.frames.shape, sizes, strict=True))

    def offsets(self, step: int) -> Tensor:
        """Return frame, row and column at which each sequence of a step begins, (B, 3)."""
        _check_least(0, step=step)
        random = np.random.Philox(key=self.seed, counter=[0, step, 0, 0])
        raw = random.random_raw(3 * self.batch_size).reshape(-1, 3)  # (B, 3) uint64
        return torch.from_numpy((raw % np.array(self.num_offsets, np.uint64)).astype(np.int64))

    def __call__(self, step: int) -> Tensor:
        """Return the clean sequences of a step, (B, T, P²)."""
        frame, row, column = self.offsets(step).T[..., None, None, None]  # each (B, 1, 1, 1)
        side = torch.arange(self.patch)
        times = frame + torch.arange(self.length)[:, None, None]  # (B, T, 1, 1)
        patches = self.frames[times, row + side[:, None], column + side]  # (B, T, P, P)
        return patches.flatten(start_dim=2)  # (B, T, P²)


def evaluation_patches(
    frames: Tensor, length: int = 8, patch: int = 8, max_windows: int | None = None
) -> Tensor:
    """Cut a part into sequences of patches that do not overlap, for evaluation.

    Parameters
    ----------
    frames : Tensor
        The part, (F, H, W); H and W are multiples of ``patch``. The last frames, which fill no
        window of ``length``, are left out.
    length : int
        Frames per sequence, T.
    patch : int
        Pixels along a side, P.
    max_windows : int, optional
        Keep only so many windows, spread evenly over the part.

    Returns
    -------
    Tensor
        (W N, T, P²) for W windows of N = H W / P² patches, in the order of a book: windows, and in
        a window rows from the top, each from the left. `assemble_patches` undoes it.

    Examples
    --------
    >>> evaluation_patches(torch.zeros(192, 96, 128)).shape  # 24 windows of 192 patches
    torch.Size([4608, 8, 64])
    """
    _check_frames(frames, length, patch)
    num_frames, height, width = frames.shape
    if height % patch or width % patch:
        raise ValueError(f"patch is {patch}, but must divide {height} and {width}")
    if max_windows is not None:
        _check_least(1, max_windows=max_windows)
    count = num_frames // length
    grid = (count, length, height // patch, patch, width // patch, patch)
    windows = frames[: count * length].reshape(grid)  # (W, T, rows, P, columns, P)
    keep = np.linspace(0, count - 1, min(count, max_windows or count)).round().astype(np.int64)
    sequences = windows[keep].permute(0, 2, 4, 1, 3, 5)  # (W, rows, columns, T, P, P)
    return sequences.reshape(-1, length, patch**2)


def assemble_patches(sequences: Tensor, height: int, width: int) -> Tensor:
    """Put the sequences of `evaluation_patches` together again.

    Parameters
    ----------
    sequences : Tensor
        (W N, T, P²).
    height, width : int
        Of the frames, H and W.

    Returns
    -------
    Tensor
        The frames of the windows one after the other, (W T, H, W).

    Examples
    --------
    >>> frames = torch.randn(16, 24, 32)
    >>> torch.equal(assemble_patches(evaluation_patches(frames), 24, 32), frames)
    True
    """
    _, length, pixels = sequences.shape
    patch = math.isqrt(pixels)
    rows, columns = height // patch, width // patch
    if (rows * patch, columns * patch, patch**2) != (height, width, pixels):
        raise ValueError(f"patches of {pixels} pixels do not fill {height} x {width}")
    if not len(sequences) or len(sequences) % (rows * columns):
        found = f"sequences has {len(sequences)} entries"
        raise ValueError(f"{found}, but each window needs {rows * columns}")
    grid = sequences.reshape(-1, rows, columns, length, patch, patch)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(-1, height, width)


def gaussian_noise(shape: Sequence[int], gamma: float | Tensor, seed: int, step: int = 0) -> Tensor:
    r"""Return Gaussian noise as a pure function of (seed, step).

    .. math:: \gamma \, \epsilon, \qquad \epsilon \sim \mathcal N(0, 1)

    The same seed and step give the same :math:`\epsilon` at every level, so that levels are
    compared on the same draws; they share none with a `PatchBatches` of that seed.

    Parameters
    ----------
    shape : sequence of int
        Of the clean frames or sequences.
    gamma : float or Tensor
        The level, in the unit of the frames, not negative: one number, or a tensor that
        broadcasts to ``shape``, such as (B, 1, 1) for a level of its own for each sequence.
    seed, step : int
        Not negative.

    Examples
    --------
    >>> gaussian_noise((1000, 8, 64), gamma=0.5, seed=0).std()
    tensor(0.50)
    """
    _check_least(0, seed=seed, step=step)
    gamma = torch.as_tensor(gamma, dtype=torch.float32)
    if not (gamma >= 0).all():
        raise ValueError(f"gamma is {gamma.tolist()}, but must not be negative")
    stream = np.random.Philox(key=[seed, NOISE_STREAM], counter=[0, step, 0, 0])
    epsilon = np.random.Generator(stream).standard_normal(tuple(shape), np.float32)
    # γ ε
    return gamma * torch.from_numpy(epsilon)


def _check_frames(frames: Tensor, length: int, patch: int) -> None:
    _check_least(1, length=length, patch=patch)
    if frames.ndim != 3:
        raise ValueError(f"frames has shape {tuple(frames.shape)}, but must be (F, H, W)")
    if length > len(frames) or patch > min(frames.shape[1:]):
        wanted = f"{length} frames of {patch} x {patch} pixels"
        raise ValueError(f"frames has shape {tuple(frames.shape)}, but {wanted} must fit")


def _check_least(least: int, **counts: int) -> None:
    for name, value in counts.items():
        if value < least:
            raise ValueError(f"{name} is {value}, but must be at least {least}")
