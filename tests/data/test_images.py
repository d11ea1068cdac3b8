"""Fashion-MNIST, its splits, batches as a function of the step, and the augmentation."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from unrolled.data import images
from unrolled.data.fetch import FetchError, fetch
from unrolled.data.images import FASHION_MNIST, ImageBatches, LabelledImages, fashion_mnist

# The first test that needs a file may have to fetch it.
pytestmark = pytest.mark.timeout(900)
README = (Path(__file__).parents[2] / "data_scripts" / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def clothes():
    pytest.importorskip("torchvision")
    try:
        return fashion_mnist()
    except FetchError as error:
        if any("SHA" in str(failure).upper() for failure in error.failures.values()):
            raise
        pytest.skip(f"not cached, and cannot be fetched: {error}")


def test_it_is_what_results_were_made_with(clothes):
    assert clothes.content_hash == (
        "e9f82d124ccabfec0770cc33528c6290913e7fb14215308381fadd40a6ef066d"
    )
    assert {split: len(clothes.labels(split)) for split in clothes.splits} == {
        "train": 55_000, "validation": 5_000, "test": 10_000
    }  # fmt: skip
    assert torch.equal(clothes.labels("test").bincount(), torch.full((10,), 1_000))


def test_pixels_and_labels_are_those_of_the_files(clothes):
    """Read once more by hand: a header of 16 or 8 bytes, then bytes."""
    raw = {file.name: gzip.decompress(fetch(file).read_bytes()) for file in FASHION_MNIST}
    test = np.frombuffer(raw["fashion_mnist/t10k-images-idx3-ubyte.gz"], np.uint8, offset=16)
    assert np.array_equal(clothes.pixels["test"].ravel(), test)
    labels = np.frombuffer(raw["fashion_mnist/train-labels-idx1-ubyte.gz"], np.uint8, offset=8)
    assert np.array_equal(clothes.labels_of["validation"], labels[::12])
    assert np.array_equal(clothes.labels_of["train"], np.delete(labels, np.arange(0, 60_000, 12)))


def test_units_are_those_of_the_training_split(clothes):
    train = clothes.images("train")
    assert train.shape == (55_000, 1, 28, 28)
    assert train.mean().item() == pytest.approx(0, abs=1e-4)
    assert train.std().item() == pytest.approx(1, abs=1e-4)
    back = clothes.images("test")[:5, 0] * clothes.std + clothes.mean
    assert np.array_equal(back.round().numpy().astype(np.uint8), clothes.pixels["test"][:5])


def test_the_readme_names_files_and_sums():
    for file in FASHION_MNIST:
        assert file.sha256 in README
        assert {source.sha256 for source in file.sources} == {images._PACKAGE_SHA256}
    assert images._PACKAGE_SHA256 in README


# --- batches --------------------------------------------------------------------------------------


def numbered(count, transform=None, **options):
    pictures = torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 6, 6)
    return ImageBatches(pictures, torch.arange(count), transform=transform, **options)


def test_an_epoch_has_every_image_once_with_its_label():
    batches = numbered(12, batch_size=4, seed=3)
    found = [batches(step) for step in range(3)]
    labels = torch.cat([y for _, y in found])
    assert torch.equal(labels.sort().values, torch.arange(12))
    assert torch.equal(torch.cat([x for x, _ in found])[:, 0, 0, 0].long(), labels)


def test_a_batch_depends_on_seed_and_step_alone():
    def noise(x):
        return x + torch.rand(1)

    batches = numbered(20, noise, batch_size=5, seed=1)
    torch.manual_seed(0)
    first = batches(2)[0]
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert torch.equal(batches(2)[0], first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(batches(3)[0] % 1, first % 1)
    other = numbered(20, noise, batch_size=5, seed=2)
    assert not torch.equal(other(2)[0] % 1, first % 1)


def test_a_batch_gets_as_many_draws_as_parts():
    batches = numbered(64, lambda x: 0 * x + torch.rand(1), batch_size=64, seed=0, parts=4)
    assert len(batches(0)[0][:, 0, 0, 0].unique()) == 4


def test_the_crop_moves_by_at_most_the_padding_and_fills_with_the_dark():
    picture = torch.full((1, 1, 9, 9), -0.5)
    picture[..., 4, 4] = 2.0
    places = set()
    torch.manual_seed(0)
    augment = images.crop_and_flip(padding=2)
    for _ in range(200):
        out = augment(picture)
        assert out.shape == picture.shape
        assert set(out.unique().tolist()) == {-0.5, 2.0}
        places.add(tuple(np.argwhere(out[0, 0].numpy() == 2.0)[0].tolist()))
    assert places == {(row, column) for row in range(2, 7) for column in range(2, 7)}


def test_it_flips_left_and_right_half_of_the_time():
    picture = torch.arange(3.0).expand(1, 1, 3, 3)
    augment = images.crop_and_flip(padding=0)
    torch.manual_seed(0)
    flipped = [torch.equal(augment(picture), picture.flip(-1)) for _ in range(300)]
    assert 110 < sum(flipped) < 190


def test_bad_values_are_named():
    grey, labels = np.zeros((2, 3, 3), np.uint8), np.array([0, 1])
    with pytest.raises(ValueError, match="labels_of\\['train'\\] must be from 0 to 0"):
        LabelledImages("x", ("a",), {"train": grey}, {"train": labels})
    with pytest.raises(ValueError, match=r"train is .* but must be"):
        LabelledImages("x", ("a", "b"), {"train": grey[:1]}, {"train": labels})
    with pytest.raises(ValueError, match="labels_of has"):
        LabelledImages("x", ("a", "b"), {"train": grey}, {"test": labels})
    with pytest.raises(ValueError, match="split is 'dev', but x has"):
        LabelledImages("x", ("a", "b"), {"train": grey}, {"train": labels}).images("dev")
    with pytest.raises(ValueError, match="padding is -1"):
        images.crop_and_flip(-1)
    with pytest.raises(ValueError, match="batch_size is 0"):
        numbered(3, batch_size=0, seed=0)
    with pytest.raises(ValueError, match="parts is 0"):
        numbered(3, batch_size=1, seed=0, parts=0)
    with pytest.raises(ValueError, match="images and labels are"):
        ImageBatches(torch.zeros(2, 1, 4, 4), torch.zeros(3), 1, 0)


def test_channels_are_z_scored_by_the_training_split():
    random = np.random.default_rng(0)
    pixels = {
        split: random.integers(0, 256, (50, 4, 4, 3), np.uint8) for split in ("train", "test")
    }
    pixels["train"][..., 2] //= 4
    labels = {split: np.arange(50) % 2 for split in pixels}
    images = LabelledImages("tiny", ("a", "b"), pixels, labels)
    train = images.images("train").double()
    assert train.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert train.std(dim=(0, 2, 3), correction=0).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    other = LabelledImages("tiny", ("a", "b"), {**pixels, "test": pixels["train"]}, labels)
    assert torch.equal(other.images("train"), images.images("train"))
    assert other.content_hash != images.content_hash


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (np.zeros((2, 4, 4, 2), np.uint8), [0, 1], r"must be \(n, H, W\[, 3\]\)"),
        (np.zeros((2, 4, 4, 3), np.float32), [0, 1], "must be"),
        (np.zeros((2, 4, 4, 3), np.uint8), [0], "must be"),
        (np.zeros((2, 4, 4, 3), np.uint8), [0, 2], "from 0 to 1"),
    ],
)
def test_what_does_not_fit_is_refused(pixels, labels, message):
    with pytest.raises(ValueError, match=message):
        LabelledImages("tiny", ("a", "b"), {"train": pixels}, {"train": np.array(labels)})
    fine = np.zeros((1, 4, 4, 3), np.uint8)
    with pytest.raises(ValueError, match="split is 'test'"):
        LabelledImages("t", ("a",), {"train": fine}, {"train": np.zeros(1, int)}).labels("test")
    with pytest.raises(ValueError, match="labels_of has"):
        LabelledImages("t", ("a",), {"train": fine}, {})
    with pytest.raises(ValueError, match="classes are 257"):
        LabelledImages("t", ("a",) * 257, {"train": fine}, {"train": np.zeros(1, int)})
    both, zeros = {"train": fine, "test": fine[..., 0]}, np.zeros(1, int)
    with pytest.raises(ValueError, match="other channels"):
        LabelledImages("t", ("a",), both, {"train": zeros, "test": zeros})
