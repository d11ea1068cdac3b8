"""Images in colour: CIFAR-10 and CIFAR-100 in memory, ImageNet-1k from a folder.

CIFAR comes as `unrolled.data.images.LabelledImages`, which feeds
`unrolled.data.images.ImageBatches`. ImageNet does not fit into memory: `imagenet_1k` returns
the data sets of `torchvision`, which read an image when it is asked for. Shapes: B images of
H x W pixels in three channels as (B, 3, H, W), red, green, blue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset

from unrolled.data._extra import need
from unrolled.data.classification import spread
from unrolled.data.fetch import (
    FetchError,
    OfflineError,
    cache_folder,
    locked,
    offline,
    require_space,
)
from unrolled.data.images import LabelledImages

__all__ = ["ImageFolders", "cifar10", "cifar100", "imagenet_1k"]

VALIDATION_EVERY = 10  # every tenth image published for training
IMAGENET_VALIDATION_EVERY = 50
CIFAR_LICENCE = "Not stated; the author asks to be cited, so it is fetched and never passed on"
CIFAR_ATTRIBUTION = (
    "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009 "
    "(https://www.cs.toronto.edu/~kriz/cifar.html)."
)
IMAGENET_HELP = """ImageNet-1k is not at {folder}, and only you can get it.
What you can do:
- ask for access at https://image-net.org/download-images (non-commercial research and teaching),
  and accept the terms there;
- put ILSVRC2012_img_train.tar (148 GB), ILSVRC2012_img_val.tar (7 GB) and
  ILSVRC2012_devkit_t12.tar.gz (3 MB) into {folder}, and run the same again: they are compared with
  their published MD5 and unpacked;
- or link a folder there that has train/WNID/*.JPEG and val/WNID/*.JPEG."""


def cifar10(subset: int | None = None) -> LabelledImages:
    """Return CIFAR-10: 60,000 images of 32 x 32 pixels in ten classes, by `torchvision`.

    Of the 50,000 published for training every tenth is held out for validation. The archive and
    the files in it are compared with the MD5 sums that torchvision has, before the files, which
    are pickles, are read.

    Parameters
    ----------
    subset : int, optional
        Keep only so many images of each split, spread evenly; all by default.

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not cached and cannot be fetched; the message says why and what to do.
    """
    return _cifar("cifar10", "CIFAR10", subset)


def cifar100(subset: int | None = None) -> LabelledImages:
    """Return CIFAR-100: as `cifar10`, in a hundred classes of 600 images."""
    return _cifar("cifar100", "CIFAR100", subset)


def _cifar(name: str, kind: str, subset: int | None) -> LabelledImages:
    loader = getattr(need("torchvision.datasets", "reading CIFAR"), kind)
    folder = cache_folder() / name
    with locked(folder):
        train, test = _published(loader, folder)
    held_out = np.arange(len(train.targets)) % VALIDATION_EVERY == 0
    places = {"train": (train, ~held_out), "validation": (train, held_out)}
    places["test"] = (test, np.ones(len(test.targets), bool))
    pixels, labels = {}, {}
    for split, (part, chosen) in places.items():
        numbers = np.flatnonzero(chosen)
        numbers = numbers[spread(len(numbers), subset)]
        pixels[split] = part.data[numbers]
        labels[split] = np.array(part.targets)[numbers]
    return LabelledImages(
        name, tuple(train.classes), pixels, labels, CIFAR_LICENCE, loader.url, CIFAR_ATTRIBUTION
    )


def _published(loader: type, folder: Path) -> list[Any]:
    """Return what was published for training and for testing; fetch it if it is not here."""
    try:
        return [loader(str(folder), train=is_train) for is_train in (True, False)]
    except RuntimeError as error:  # of torchvision: not here, or another MD5
        if offline():
            raise OfflineError(
                f"{loader.__name__} is not whole in {folder} and UNROLLED_OFFLINE is set, so it "
                f"cannot be fetched.\nWhat you can do: run once with the network, or put "
                f"{loader.filename} (MD5 {loader.tgz_md5}) there and unpack it."
            ) from error
    require_space(folder, 400_000_000)
    try:
        return [loader(str(folder), train=is_train, download=True) for is_train in (True, False)]
    except (OSError, RuntimeError) as error:
        raise FetchError(
            f"{loader.url} could not be fetched: {error}\nWhat you can do: check the network and "
            f"run the same again, or put {loader.filename} (MD5 {loader.tgz_md5}) from another "
            f"place into {folder}.",
            {loader.url: error},
        ) from error


@dataclass(frozen=True, eq=False)
class ImageFolders:
    """Images that are read when they are asked for.

    Parameters
    ----------
    name : str
        Short name, used in result rows.
    classes : tuple of str
        Name of each label: a WordNet id.
    parts : dict of str to Dataset
        Of each split; an item is an image, as the transform returns it, and its label.
    licence, source, attribution : str
        Under which terms, from where, and whom to name.
    """

    name: str
    classes: tuple[str, ...]
    parts: dict[str, Dataset]
    licence: str = ""
    source: str = ""
    attribution: str = ""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are."""
        return tuple(self.parts)


def imagenet_1k(
    subset: int | None = None,
    *,
    train_transform: Callable | None = None,
    test_transform: Callable | None = None,
) -> ImageFolders:
    """Return ImageNet-1k from the folder ``imagenet_1k`` of the cache, where you have put it.

    The published validation split, whose labels are known, is the one for testing. Of the
    published training split every fiftieth image is held out for validation.

    Parameters
    ----------
    subset : int, optional
        Keep only so many images of each split, spread evenly; all by default.
    train_transform, test_transform : callable, optional
        Make of a `PIL.Image` what an item is to be; the second is for validation, too.

    Returns
    -------
    ImageFolders

    Raises
    ------
    unrolled.data.fetch.FetchError
        It is not there; the message says where to ask for it and where to put it.
    """
    folder = cache_folder() / "imagenet_1k"
    published = {part: _imagenet_part(folder, part) for part in ("train", "val")}
    count = len(published["train"])
    numbers = np.arange(count)
    held_out = numbers % IMAGENET_VALIDATION_EVERY == 0
    places = {
        "train": ("train", numbers[~held_out], train_transform),
        "validation": ("train", numbers[held_out], test_transform),
        "test": ("val", np.arange(len(published["val"])), test_transform),
    }
    parts = {
        split: Subset(
            _imagenet_part(folder, part, transform), chosen[spread(len(chosen), subset)].tolist()
        )
        for split, (part, chosen, transform) in places.items()
    }
    return ImageFolders(
        name="imagenet_1k",
        classes=tuple(sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())),
        parts=parts,
        licence="Non-commercial research and teaching only; not to be passed on",
        source="https://image-net.org",
        attribution="O. Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, "
        "IJCV 2015.",
    )


def _imagenet_part(folder: Path, part: str, transform: Callable | None = None) -> Dataset:
    """Return a folder of images by class, unpacked first where only the archives are there."""
    datasets = need("torchvision.datasets", "reading ImageNet")
    if not (folder / part).is_dir():
        if not (folder / f"ILSVRC2012_img_{part}.tar").exists():
            raise FetchError(IMAGENET_HELP.format(folder=folder))
        with locked(folder):
            _unpack_imagenet(datasets.ImageNet, folder, part)
    return datasets.ImageFolder(str(folder / part), transform)


def _unpack_imagenet(loader: type, folder: Path, part: str) -> None:
    require_space(folder, (folder / f"ILSVRC2012_img_{part}.tar").stat().st_size)
    try:
        loader(str(folder), part)
    except RuntimeError as error:  # of torchvision: another MD5, or no devkit
        raise FetchError(f"{error}\n{IMAGENET_HELP.format(folder=folder)}") from error
