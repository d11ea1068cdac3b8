"""Footage of many clips, from tiny files in the formats of the published sets."""

import hashlib
import shutil
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from unrolled.data import footage
from unrolled.data.fetch import FetchError, OfflineError, Source
from unrolled.data.footage import (
    ClipBatches,
    Clips,
    anomalous_frames,
    avenue,
    shanghaitech,
    ucsd_ped1,
    ucsd_ped2,
)
from unrolled.data.video import evaluation_patches

av = pytest.importorskip("av")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("UNROLLED_CACHE", str(folder))
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    return folder


def level(clip, frame):
    """Return the grey level of a frame: each clip and each frame has its own."""
    return (40 * clip + 3 * frame) % 200 + 20


def film(path, clip, frames, size=(64, 48)):
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = *size, "yuvj420p"
        for number in range(frames):
            pixels = np.full((size[1], size[0], 3), level(clip, number), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def pictures(folder, clip, frames, kind, first=1, size=(60, 40)):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(frames):
        pixels = np.full(size[::-1], level(clip, number), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number + first:03d}{kind}")


def make_avenue(folder, clips=9):
    root = folder / "Avenue Dataset"
    for clip in range(clips):
        film(root / "training_videos" / f"{clip + 1:02d}.avi", clip, 10 + clip)
    for clip in range(2):
        film(root / "testing_videos" / f"{clip + 1:02d}.avi", clip, 17)
    (root / "training_vol").mkdir()
    return folder


def make_ucsd(folder):
    for number, count in ((1, 3), (2, 2)):
        root = folder / "UCSD_Anomaly_Dataset.v1p2" / f"UCSDped{number}"
        for clip in range(count):
            pictures(root / "Train" / f"Train{clip + 1:03d}", clip + 10 * number, 20, ".tif")
        pictures(root / "Test" / "Test001", 5, 9, ".tif")
        pictures(root / "Test" / "Test001_gt", 0, 9, ".bmp")
        (root / "Train" / "Train001" / "._001.tif").write_bytes(b"no picture")
        (root / "Train" / "Train001" / ".DS_Store").write_bytes(b"")
    return folder


def levels(grey):
    return [round(float(frame.mean())) for frame in grey]


def test_avenue_is_read_from_its_films(cache):
    make_avenue(cache / "avenue")
    clips = avenue()
    assert clips.grey.shape[1:] == (96, 128)
    assert {split: len(found) for split, found in clips.clips.items()} == {
        "train": 8,
        "validation": 1,
        "test": 2,
    }
    # 10 to 18 frames: what fills no window of eight is left out
    assert [len(clip) for clip in clips.clips["train"]] == [8] * 6 + [16, 16]
    first = clips.clips["train"][1]
    assert levels(clips.grey[first]) == pytest.approx([level(1, n) for n in range(8)], abs=2)
    held_out = clips.clips["validation"][0]
    assert levels(clips.grey[held_out])[0] == pytest.approx(level(7, 0), abs=2)
    assert clips.parts["test"] == range(len(clips.grey) - 32, len(clips.grey))
    assert clips.part("test").shape == (32, 96, 128)


def test_both_sets_of_ucsd_are_read_from_one_folder(cache):
    make_ucsd(cache / "ucsd")
    for load, number, count in ((ucsd_ped1, 1, 3), (ucsd_ped2, 2, 2)):
        clips = load()
        assert len(clips.clips["train"]) == count
        assert clips.splits == ("train", "test")
        first = clips.clips["train"][0]
        assert levels(clips.grey[first]) == [level(10 * number, n) for n in range(16)]
        assert len(clips.clips["test"]) == 1  # the masks are no clip


def test_shanghaitech_has_films_and_pictures(cache):
    for clip in range(2):
        path = cache / "shanghaitech" / "training" / "videos" / f"01_{clip:03d}.avi"
        film(path, clip, 9)
        folder = cache / "shanghaitech" / "testing" / "frames" / f"01_{clip:04d}"
        pictures(folder, clip, 12, ".jpg", first=0)
    clips = shanghaitech()
    assert {split: len(clips.clips[split]) for split in clips.splits} == {"train": 2, "test": 2}
    found = levels(clips.grey[clips.clips["test"][1]])
    assert found == pytest.approx([level(1, n) for n in range(8)], abs=2)


def test_frames_are_in_the_order_of_their_numbers(cache):
    root = cache / "shanghaitech"
    film(root / "training" / "videos" / "01_001.avi", 0, 8)
    folder = root / "testing" / "frames" / "01_0001"
    folder.mkdir(parents=True)
    for number in range(8, 16):  # without leading zeros, as some copies have them
        Image.fromarray(np.full((9, 9), 10 * number, np.uint8)).save(folder / f"{number}.png")
    clips = shanghaitech()
    assert levels(clips.grey[clips.clips["test"][0]]) == [10 * n for n in range(8, 16)]


def test_frames_shrink_to_the_means_of_areas():
    grey = np.random.default_rng(0).integers(0, 256, (192, 256), np.uint8)
    found = footage._shrink(grey)
    squares = grey.reshape(96, 2, 128, 2).mean(axis=(1, 3))
    assert np.abs(found - squares).max() <= 0.5


def test_frames_are_decoded_once(cache, monkeypatch):
    make_avenue(cache / "avenue", clips=2)
    first = avenue()
    monkeypatch.setattr(footage, "_decode", None)
    again = avenue()
    assert again.content_hash == first.content_hash
    with pytest.raises(TypeError):
        avenue(1)  # other clips are decoded anew


def test_a_subset_has_few_clips(cache):
    make_avenue(cache / "avenue")
    clips = avenue(2)
    assert {split: len(found) for split, found in clips.clips.items()} == {
        "train": 2,
        "validation": 1,
        "test": 2,
    }
    with pytest.raises(ValueError, match="subset is 0"):
        avenue(0)


def packed(path, folder):
    """Pack a folder as it was published, and return the address of the archive, with its sum."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file in files:
                archive.write(file, file.relative_to(folder))
    else:
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder, ".")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "kind", "make", "load", "count"),
    [
        ("AVENUE", ".zip", make_avenue, avenue, 8),
        ("UCSD", ".tar.gz", make_ucsd, ucsd_ped2, 2),
    ],
)
def test_the_published_archive_is_unpacked(
    cache, tmp_path, monkeypatch, name, kind, make, load, count
):
    published = getattr(footage, name)
    sha256 = packed(cache / published.name, make(tmp_path / "tree"))
    source = Source("https://example.org/archive", sha256)
    monkeypatch.setattr(footage, name, replace(published, sha256=sha256, sources=(source,)))
    assert len(load().clips["train"]) == count
    assert not list(cache.rglob("unpacked"))
    assert not list(cache.rglob("frames"))


def test_a_hostile_archive_leaves_nothing(cache, monkeypatch):
    path = cache / footage.AVENUE.name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("Avenue Dataset/training_videos/01.avi", b"")
        archive.writestr("../../evil", b"evil")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    source = Source("https://example.org/archive", sha256)
    monkeypatch.setattr(
        footage, "AVENUE", replace(footage.AVENUE, sha256=sha256, sources=(source,))
    )
    with pytest.raises(ValueError, match="must be a relative path"):
        avenue()
    assert {entry.name for entry in cache.iterdir() if entry.suffix != ".lock"} == {path.name}


def test_what_is_missing_is_told(cache):
    for load in (avenue, ucsd_ped1, shanghaitech):
        with pytest.raises(OfflineError, match=r"UNROLLED_OFFLINE is set(.|\n)*unpack it into"):
            load()
    (cache / "avenue" / "training_videos").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"has no \*\*/training_videos/\*\.avi"):
        avenue()
    film(cache / "avenue" / "training_videos" / "01.avi", 0, 3)
    film(cache / "avenue" / "testing_videos" / "01.avi", 0, 9)
    with pytest.raises(ValueError, match="has fewer than 8 frames"):
        avenue()


def test_archives_have_a_checksum_and_no_size():
    for archive in (footage.AVENUE, footage.UCSD, footage.SHANGHAITECH):
        assert archive.num_bytes is None
        assert {source.sha256 for source in archive.sources} == {archive.sha256}


# Batches


@pytest.fixture
def three():
    lengths = (8, 11, 16)
    stops = np.cumsum(lengths)
    clips = tuple(range(stop - n, stop) for n, stop in zip(lengths, stops, strict=True))
    grey = np.arange(35, dtype=np.uint8)[:, None, None] + np.zeros((1, 16, 24), np.uint8)
    return Clips.of("three", grey, {"train": clips})


def test_levels_are_those_of_the_training_part():
    grey = np.random.default_rng(0).integers(0, 256, (9000, 4, 4), dtype=np.uint8)
    grey[8500:] //= 4
    footage = Clips.of("tiny", grey, {"train": (range(8500),), "test": (range(8500, 9000),)})
    train = grey[:8500].astype(np.float64)
    assert (footage.mean, footage.std) == pytest.approx((train.mean(), train.std()))


def test_no_sequence_goes_from_clip_to_clip(three):
    batches = ClipBatches(three, batch_size=400, seed=0)
    assert batches.starts.tolist() == [0, *range(8, 12), *range(19, 28)]
    drawn = torch.cat([batches.offsets(step) for step in range(5)])
    assert set(drawn[:, 0].tolist()) == set(batches.starts.tolist())
    assert drawn[:, 1].max() == 8
    assert drawn[:, 2].max() == 16
    sequences = batches(0) * three.std + three.mean
    assert torch.allclose(sequences.diff(dim=1), torch.ones(()), atol=1e-4)


def test_windows_for_evaluation_lie_in_one_clip(cache):
    make_avenue(cache / "avenue")
    clips = avenue()
    windows = evaluation_patches(clips.part("train")) * clips.std + clips.mean
    steps = windows.mean(dim=2).diff(dim=1)
    assert ((steps - 3).abs() < 2).all()  # in a clip a frame is three levels brighter than the last


def test_batches_depend_on_seed_and_step_alone(three):
    one, two = (ClipBatches(three, batch_size=4, seed=seed) for seed in (0, 1))
    assert torch.equal(one(3), ClipBatches(three, batch_size=4, seed=0)(3))
    assert not torch.equal(one.offsets(3), two.offsets(3))
    assert one.offsets(0).tolist() == one.offsets(0).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 9}, "length is 9 and patch 8, but a clip has 8 frames of 16 x 24"),
        ({"patch": 17}, "patch 17"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_wrong_batches_are_refused(three, change, message):
    with pytest.raises(ValueError, match=message):
        ClipBatches(**({"footage": three, "batch_size": 2, "seed": 0} | change))
    with pytest.raises(ValueError, match="step is -1"):
        ClipBatches(three, 2, 0)(-1)


# What is unusual


def test_the_three_kinds_of_marks_are_read(tmp_path):
    from scipy.io import savemat

    masks = np.empty((1, 3), object)
    for number in range(3):
        masks[0, number] = np.full((4, 5), number == 1, np.uint8)
    savemat(tmp_path / "1_label.mat", {"volLabel": masks})
    assert anomalous_frames(tmp_path / "1_label.mat").tolist() == [False, True, False]
    np.save(tmp_path / "01_0014.npy", np.array([0, 1, 1], np.int8))
    assert anomalous_frames(tmp_path / "01_0014.npy").tolist() == [False, True, True]
    for number, grey in enumerate((0, 255)):
        (tmp_path / "Test001_gt").mkdir(exist_ok=True)
        picture = Image.fromarray(np.full((3, 3), grey, np.uint8))
        picture.save(tmp_path / "Test001_gt" / f"00{number}.bmp")
    assert anomalous_frames(tmp_path / "Test001_gt").tolist() == [False, True]
    shutil.rmtree(tmp_path / "Test001_gt")
    with pytest.raises(ValueError, match=r"must be a \.mat, a \.npy or a folder"):
        anomalous_frames(tmp_path / "Test001_gt")
    np.save(tmp_path / "evil.npy", np.array([print], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        anomalous_frames(tmp_path / "evil.npy")


def test_a_missing_set_is_a_fetch_error():
    assert issubclass(OfflineError, FetchError)
