"""CIFAR through torchvision's checked loader, and ImageNet from its folders and archives."""

import hashlib
import pickle
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from PIL import Image

from unrolled.data.fetch import FetchError, OfflineError
from unrolled.data.images import ImageBatches
from unrolled.data.pictures import cifar10, cifar100, imagenet_1k

torchvision = pytest.importorskip("torchvision")
from torchvision.datasets import CIFAR10, CIFAR100, imagenet  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("UNROLLED_CACHE", str(folder))
    monkeypatch.delenv("UNROLLED_OFFLINE", raising=False)
    return folder


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def dump(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content))
    return md5(path)


def batch(count, num_classes, first, key):
    """Return a batch as it was published: rows of 3,072 bytes, channel by channel."""
    rows = np.zeros((count, 3, 32, 32), np.uint8)
    for row in range(count):
        rows[row] = np.array([first + row, 100, 200 - row], np.uint8)[:, None, None]
    labels = [(first + row) % num_classes for row in range(count)]
    return {"data": rows.reshape(count, 3072), key: labels}


def tiny_cifar10(folder, monkeypatch):
    """Write five batches and one, and let torchvision know their sums."""
    root = folder / "cifar-10-batches-py"
    names = [f"data_batch_{i}" for i in range(1, 6)]
    sums = [dump(root / name, batch(8, 10, 8 * i, "labels")) for i, name in enumerate(names)]
    test = dump(root / "test_batch", batch(6, 10, 50, "labels"))
    meta = dump(root / "batches.meta", {"label_names": [f"class {i}" for i in range(10)]})
    monkeypatch.setattr(CIFAR10, "train_list", list(map(list, zip(names, sums, strict=True))))
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", test]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": meta})
    return root


def test_cifar10_is_read_by_torchvision(cache, monkeypatch):
    tiny_cifar10(cache / "cifar10", monkeypatch)
    images = cifar10()
    assert {split: len(images.labels(split)) for split in images.splits} == {
        "train": 36,
        "validation": 4,
        "test": 6,
    }
    assert images.labels("validation").tolist() == [0, 0, 0, 0]  # numbers 0, 10, 20, 30
    assert images.pixels["test"][1, 5, 7].tolist() == [51, 100, 199]
    assert images.classes[3] == "class 3"
    assert images.images("train").shape == (36, 3, 32, 32)
    grey, labels = ImageBatches(images.images("train"), images.labels("train"), 5, 0)(0)
    assert grey.shape == (5, 3, 32, 32)
    assert labels.shape == (5,)


def test_cifar100_has_fine_labels(cache, monkeypatch):
    root = cache / "cifar100" / "cifar-100-python"
    train = dump(root / "train", batch(20, 100, 0, "fine_labels"))
    test = dump(root / "test", batch(6, 100, 50, "fine_labels"))
    meta = dump(root / "meta", {"fine_label_names": [f"class {i}" for i in range(100)]})
    monkeypatch.setattr(CIFAR100, "train_list", [["train", train]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", test]])
    monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": meta})
    images = cifar100(3)
    assert {split: len(images.labels(split)) for split in images.splits} == {
        "train": 3,
        "validation": 2,
        "test": 3,
    }
    assert images.labels("test").tolist() == [50, 52, 55]


class Trap:
    """It runs code when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle with another sum was read",))


def test_a_pickle_with_another_sum_is_never_read(cache, monkeypatch):
    root = tiny_cifar10(cache / "cifar10", monkeypatch)
    dump(root / "data_batch_3", Trap())
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    with pytest.raises(OfflineError, match="CIFAR10 is not whole in"):
        cifar10()


def test_a_source_that_is_away_is_told(cache, monkeypatch):
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    with pytest.raises(FetchError, match=r"127\.0\.0\.1:9(.|\n)*c58f30108f718f92721af3b95e74349a"):
        cifar10()
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    with pytest.raises(OfflineError, match="UNROLLED_OFFLINE is set"):
        cifar10()


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def authors(tmp_path):
    """Serve a folder, as the authors do."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    server.daemon_threads, server.block_on_close = True, False
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_archive_is_fetched_and_unpacked(authors, cache, tmp_path, monkeypatch):
    root = tiny_cifar10(tmp_path / "tree", monkeypatch)
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(root, root.name)
    monkeypatch.setattr(CIFAR10, "url", f"{authors}/{archive.name}")
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(archive))
    assert len(cifar10().labels("train")) == 36
    monkeypatch.setattr(CIFAR10, "tgz_md5", "0" * 32)
    (cache / "cifar10" / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(FetchError, match="could not be fetched"):
        cifar10()


# ImageNet


def image(path, red):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 10, 3), (red, 0, 0), np.uint8)).save(path, quality=95)


def tiny_imagenet(folder, train=30, val=4):
    for label, wnid in enumerate(("n01440764", "n01443537")):
        for number in range(train):
            image(folder / "train" / wnid / f"{wnid}_{number}.JPEG", 100 * label + number)
        for number in range(val):
            image(folder / "val" / wnid / f"ILSVRC2012_val_{number:08d}.JPEG", 100 * label)


def test_imagenet_is_read_from_folders(cache):
    tiny_imagenet(cache / "imagenet_1k")

    def size(found):
        return found.size

    images = imagenet_1k(train_transform=size, test_transform=lambda found: "test")
    assert {split: len(part) for split, part in images.parts.items()} == {
        "train": 58,
        "validation": 2,
        "test": 8,
    }
    assert images.classes == ("n01440764", "n01443537")
    assert images.parts["train"][0] == ((10, 8), 0)
    assert images.parts["validation"][1] == ("test", 1)
    assert images.parts["test"][7] == ("test", 1)
    assert len(imagenet_1k(3).parts["train"]) == 3


def test_who_may_have_imagenet_is_told(cache):
    with pytest.raises(FetchError, match=r"only you can get it(.|\n)*image-net\.org") as caught:
        imagenet_1k()
    assert str(cache / "imagenet_1k") in str(caught.value)


def test_an_archive_with_another_sum_is_refused(cache):
    (cache / "imagenet_1k").mkdir()
    for name in ("ILSVRC2012_img_train.tar", "ILSVRC2012_devkit_t12.tar.gz"):
        (cache / "imagenet_1k" / name).write_bytes(b"no archive")
    with pytest.raises(FetchError, match=r"corrupted(.|\n)*What you can do"):
        imagenet_1k()


def test_archives_are_unpacked_by_torchvision(cache, tmp_path, monkeypatch):
    """The devkit's tables are stood in for by the file that torchvision makes of them."""
    folder = cache / "imagenet_1k"
    tiny_imagenet(tmp_path / "tree", train=2, val=1)
    folder.mkdir()
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as outer:
        for wnid in sorted((tmp_path / "tree" / "train").iterdir()):
            with tarfile.open(tmp_path / f"{wnid.name}.tar", "w") as inner:
                for path in sorted(wnid.iterdir()):
                    inner.add(path, path.name)
            outer.add(tmp_path / f"{wnid.name}.tar", f"{wnid.name}.tar")
    wnids = ["n01440764", "n01443537"]
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as packed:
        for number, wnid in enumerate(wnids):
            path = tmp_path / "tree" / "val" / wnid / "ILSVRC2012_val_00000000.JPEG"
            packed.add(path, f"ILSVRC2012_val_{number:08d}.JPEG")
    torch.save(({wnid: (wnid,) for wnid in wnids}, wnids), folder / "meta.bin")
    sums = {
        part: (name, md5(folder / name))
        for part, name in (("train", "ILSVRC2012_img_train.tar"), ("val", "ILSVRC2012_img_val.tar"))
    }
    monkeypatch.setattr(imagenet, "ARCHIVE_META", {**imagenet.ARCHIVE_META, **sums})
    images = imagenet_1k()
    assert {split: len(part) for split, part in images.parts.items()} == {
        "train": 3,
        "validation": 1,
        "test": 2,
    }
    assert [label for _, label in images.parts["test"]] == [0, 1]
