"""Real images with labels: Fashion-MNIST, split, batched and augmented.

`fashion_mnist` fetches the images; `ImageBatches` deals them out as a pure function of (seed,
step), with the transforms of `torchvision.transforms.v2`. Shapes: B images of H x W pixels in C
channels as (B, C, H, W). Units: mean 0 and standard deviation 1 over the training split, in each
channel.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unrolled.data._extra import need
from unrolled.data.fetch import RemoteFile, Source, derive, fetch
from unrolled.data.reviews import ShuffledBatches
from unrolled.data.text import SPLITS

__all__ = [
    "CLASSES",
    "FASHION_MNIST",
    "ImageBatches",
    "LabelledImages",
    "crop_and_flip",
    "fashion_mnist",
]

CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
"""The ten classes of Fashion-MNIST, in the order of their labels."""

_PACKAGE_SHA256 = "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
_VERSION = "0.0~git20200523.55506a9-1"
_POOL = f"pool/main/d/dataset-fashion-mnist/dataset-fashion-mnist_{_VERSION}_all.deb"
ATTRIBUTION = "Fashion-MNIST, copyright 2017 Zalando SE (Xiao, Rasul and Vollgraf), MIT licence."


def _file(name: str, num_bytes: int, sha256: str) -> RemoteFile:
    member = f"./usr/share/datasets/fashion-mnist/{name}"
    references = (
        f"deb:dataset-fashion-mnist={_VERSION}",
        f"https://deb.debian.org/debian/{_POOL}",
        f"https://snapshot.debian.org/archive/debian/20240101T000000Z/{_POOL}",
    )
    sources = tuple(Source(reference, _PACKAGE_SHA256, member) for reference in references)
    return RemoteFile(f"fashion_mnist/{name}", sha256, num_bytes, sources)


FASHION_MNIST = (
    _file(
        "train-images-idx3-ubyte.gz",
        26_421_856,
        "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    ),
    _file(
        "train-labels-idx1-ubyte.gz",
        29_491,
        "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    ),
    _file(
        "t10k-images-idx3-ubyte.gz",
        4_422_079,
        "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    ),
    _file(
        "t10k-labels-idx1-ubyte.gz",
        5_125,
        "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
    ),
)
"""Images and labels of training and test, from a package of Debian (30.9 MB)."""

VALIDATION_EVERY = 12  # every twelfth image of the published training set


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images with labels and their provenance, grey or in colour; C is their 1 or 3 channels.

    Parameters
    ----------
    name : str
        Short name, used in result rows.
    classes : tuple of str
        Name of each label, at most 256.
    pixels : dict of str to ndarray
        Of each split, (n, H, W) or (n, H, W, 3) uint8.
    labels_of : dict of str to ndarray
        Of each split, (n,).
    licence, source, attribution : str
        Under which terms, from where, and what must stand beside what is made from them.

    Raises
    ------
    ValueError
        If images and labels do not fit together.

    Examples
    --------
    >>> pixels = {"train": np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)}
    >>> tiny = LabelledImages("tiny", ("a", "b"), pixels, {"train": np.array([0, 1])})
    >>> tiny.images("train").shape, tiny.labels("train")
    (torch.Size([2, 3, 2, 2]), tensor([0, 1]))
    """

    name: str
    classes: tuple[str, ...]
    pixels: dict[str, np.ndarray]
    labels_of: dict[str, np.ndarray]
    licence: str = ""
    source: str = ""
    attribution: str = ""

    def __post_init__(self):
        if not 1 <= len(self.classes) <= 256:
            raise ValueError(f"classes are {len(self.classes)}, but must be from 1 to 256")
        if self.pixels.keys() != self.labels_of.keys() or "train" not in self.pixels:
            raise ValueError(
                f"labels_of has {sorted(self.labels_of)}, pixels {sorted(self.pixels)}"
            )
        sides = {images.shape[3:] for images in self.pixels.values()}
        if len(sides) > 1:
            raise ValueError(f"pixels has splits with other channels than others: {sides}")
        for split, images in self.pixels.items():
            self._check_split(split, images, self.labels_of[split])

    def _check_split(self, split: str, images: np.ndarray, labels: np.ndarray) -> None:
        is_image = images.ndim == 3 or images.shape[3:] == (3,)
        if images.dtype != np.uint8 or not is_image or len(images) != len(labels):
            found = images.dtype, images.shape, labels.shape
            raise ValueError(f"{split} is {found}, but must be (n, H, W[, 3]) uint8 and (n,)")
        if not np.isin(labels, range(len(self.classes))).all():
            raise ValueError(f"labels_of[{split!r}] must be from 0 to {len(self.classes) - 1}")

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are."""
        return tuple(split for split in SPLITS if split in self.pixels)

    @cached_property
    def mean(self) -> Tensor:
        """Mean of each channel of the training split, (C, 1, 1) float32."""
        return self._by_channel(self.pixels["train"].mean(axis=(0, 1, 2), dtype=np.float64))

    @cached_property
    def std(self) -> Tensor:
        """Standard deviation of each channel of the training split, (C, 1, 1) float32."""
        return self._by_channel(self.pixels["train"].std(axis=(0, 1, 2), dtype=np.float64))

    @staticmethod
    def _by_channel(values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32).reshape(-1, 1, 1)

    def images(self, split: str) -> Tensor:
        """Return the images of a split, z-scored by channel, (n, C, H, W) float32."""
        self._check(split)
        pixels = torch.from_numpy(self.pixels[split]).float()
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
        return ((pixels - self.mean) / self.std).contiguous()

    def labels(self, split: str) -> Tensor:
        """Return the labels of a split, (n,) int64."""
        self._check(split)
        return torch.from_numpy(self.labels_of[split].astype(np.int64))

    def _check(self, split: str) -> None:
        if split not in self.splits:
            raise ValueError(f"split is {split!r}, but {self.name} has {self.splits}")

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of all images and labels with their splits. Equal hashes mean equal sets."""
        digest = hashlib.sha256()
        for split in self.splits:
            digest.update(f"{split} {self.pixels[split].shape}\n".encode())
            digest.update(np.ascontiguousarray(self.pixels[split]).tobytes())
            digest.update(self.labels_of[split].astype(np.uint8).tobytes())
        return digest.hexdigest()


@lru_cache(maxsize=1)
def fashion_mnist() -> LabelledImages:
    """Return 70,000 images of clothes, 28 x 28 grey pixels in ten classes: fetched, then cached.

    Of the 60,000 published for training every twelfth is held out for validation: 55,000, 5,000
    and 10,000 images.

    Returns
    -------
    LabelledImages

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.

    References
    ----------
    H. Xiao, K. Rasul and R. Vollgraf (2017), "Fashion-MNIST: a Novel Image Dataset for
    Benchmarking Machine Learning Algorithms", arXiv 1708.07747.
    """
    published = _published()
    held_out = np.arange(len(published["train-labels"])) % VALIDATION_EVERY == 0
    splits = {"train": ("train", ~held_out), "validation": ("train", held_out)}
    pixels = {name: published[f"{part}-images"][rows] for name, (part, rows) in splits.items()}
    labels = {name: published[f"{part}-labels"][rows] for name, (part, rows) in splits.items()}
    return LabelledImages(
        name="fashion_mnist",
        classes=CLASSES,
        pixels={**pixels, "test": published["t10k-images"]},
        labels_of={**labels, "test": published["t10k-labels"]},
        licence="MIT",
        source=FASHION_MNIST[0].sources[0].reference,
        attribution=ATTRIBUTION,
    )


def _published() -> dict[str, np.ndarray]:
    """Return the four arrays as they were published, read by torchvision."""
    mnist = need("torchvision.datasets.mnist", "reading Fashion-MNIST")
    paths = [fetch(file) for file in FASHION_MNIST]
    key = hashlib.sha256("".join(file.sha256 for file in FASHION_MNIST).encode()).hexdigest()
    folder = derive(f"fashion_mnist_{key[:16]}", lambda folder: _unpack(paths, folder))
    found = {}
    for path in paths:
        name, kind = path.name.split("-")[:2]
        read = mnist.read_image_file if kind == "images" else mnist.read_label_file
        found[f"{name}-{kind}"] = read(str(folder / path.stem)).numpy()
    return found


def _unpack(paths: list[Path], folder: Path) -> None:
    # The content is verified, so its size is known not to be a trap.
    for path in paths:
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))


def crop_and_flip(padding: int = 2) -> Callable[[Tensor], Tensor]:
    """Return the usual augmentation: a random crop of the padded images, and a random flip.

    All images of a call are moved and flipped alike, see `ImageBatches`.

    Parameters
    ----------
    padding : int
        Pixels that are added on each side, as dark as the darkest of the images.

    Examples
    --------
    >>> crop_and_flip()(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 1, 28, 28])
    """
    v2 = need("torchvision.transforms.v2", "augmenting images")
    if padding < 0:
        raise ValueError(f"padding is {padding}, but must not be negative")
    flip = v2.RandomHorizontalFlip()

    def augment(images: Tensor) -> Tensor:
        fill = images.min().item()
        return flip(v2.RandomCrop(images.shape[-2:], padding=padding, fill=fill)(images))

    return augment


@dataclass(frozen=True, eq=False)
class ImageBatches:
    """Batches of images and labels as a pure function of the step.

    Parameters
    ----------
    images : Tensor
        (n, C, H, W).
    labels : Tensor
        (n,).
    batch_size : int
        Images per batch, B.
    seed : int
        Not negative; of the order and of the augmentation.
    transform : callable, optional
        Maps images to images and draws from torch's global generator, which is seeded by seed and
        step for the call and restored after it. It gets the batch in `parts` parts.
    parts : int
        How many different draws a batch gets.

    Examples
    --------
    >>> batches = ImageBatches(torch.zeros(9, 1, 4, 4), torch.arange(9), batch_size=3, seed=0)
    >>> images, labels = batches(7)
    >>> images.shape, torch.equal(labels, batches(7)[1])
    (torch.Size([3, 1, 4, 4]), True)
    """

    images: Tensor
    labels: Tensor
    batch_size: int
    seed: int
    transform: Callable[[Tensor], Tensor] | None = None
    parts: int = 8

    def __post_init__(self):
        if len(self.images) != len(self.labels):
            counts = len(self.images), len(self.labels)
            raise ValueError(f"images and labels are {counts}, but must be as many")
        if self.parts < 1:
            raise ValueError(f"parts is {self.parts}, but must be at least 1")
        self.places(0)  # bad sizes are refused here

    def places(self, step: int) -> Tensor:
        """Return the positions of the images of a step, (B,)."""
        return ShuffledBatches(len(self.labels), self.batch_size, self.seed)(step)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return images (B, C, H, W) and labels (B,) of a step."""
        places = self.places(step)
        images = self.images[places]
        if self.transform is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(_mixed(self.seed, step))
                parts = images.chunk(self.parts)
                images = torch.cat([self.transform(part) for part in parts])
        return images, self.labels[places]


def _mixed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)
