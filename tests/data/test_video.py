"""The surveillance clip, its parts, sequences of patches, and noise."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unrolled.data import video
from unrolled.data.fetch import FetchError, fetch
from unrolled.data.video import (
    SURVEILLANCE_CLIP,
    Footage,
    PatchBatches,
    assemble_patches,
    evaluation_patches,
    gaussian_noise,
    surveillance_clip,
)

# The first test that needs a file may have to fetch it.
pytestmark = pytest.mark.timeout(900)
README = (Path(__file__).parents[2] / "data_scripts" / "README.md").read_text(encoding="utf-8")
FRAMES = torch.arange(20 * 16 * 24, dtype=torch.float32).view(20, 16, 24)


@pytest.fixture(scope="module")
def clip():
    pytest.importorskip("av")
    try:
        return surveillance_clip()
    except FetchError as error:
        if any("SHA" in str(failure).upper() for failure in error.failures.values()):
            raise
        pytest.skip(f"not cached, and cannot be fetched: {error}")


# The clip


def test_the_clip_is_the_one_that_results_were_made_with(clip):
    """Decoders may differ by a rounding, so this asks for no exact bytes."""
    assert clip.grey.shape == (795, 96, 128)
    assert clip.mean == pytest.approx(121.10, abs=0.05)
    assert clip.std == pytest.approx(49.83, abs=0.05)
    assert clip.grey[:, ::32, ::32].mean(axis=(1, 2))[::200] == pytest.approx(
        [133.7, 133.5, 133.0, 129.8], abs=0.5
    )


def test_the_camera_stands_still_and_people_walk(clip):
    frames = clip.part("train")
    spread = frames.std(dim=0)
    assert spread.median() < 0.1
    assert spread.max() > 0.5


def test_frames_agree_with_another_way_to_shrink_them(clip):
    """The scaler of FFmpeg takes means of areas too, and rounds on the way."""
    import av

    with av.open(str(fetch(SURVEILLANCE_CLIP))) as container:
        frame = next(container.decode(video=0))
    luma = frame.reformat(128, 96, "yuv420p", interpolation="AREA").to_ndarray()[:96].astype(float)
    assert np.abs((luma - 16) * 255 / 219 - clip.grey[0]).mean() < 1.5


def test_each_pixel_is_the_mean_of_a_square():
    grey = np.random.default_rng(0).integers(0, 256, (12, 18), np.uint8)
    found = video._shrink(grey)
    for row in range(2):
        for column in range(3):
            square = grey[6 * row : 6 * row + 6, 6 * column : 6 * column + 6]
            assert found[row, column] == math.floor(square.mean() + 0.5)
    assert (video._shrink(np.full((6, 6), 255, np.uint8)) == 255).all()


def test_parts_are_those_of_the_plan_with_gaps_between(clip):
    assert {split: len(clip.part(split)) for split in clip.splits} == {
        "train": 500,
        "validation": 40,
        "test": 192,
    }
    train, validation, test = (clip.parts[split] for split in clip.splits)
    assert validation.start - train.stop == 16
    assert test.start - validation.stop == 41
    first = (clip.grey[597].astype(float) - clip.mean) / clip.std
    assert clip.part("test")[0].numpy() == pytest.approx(first, abs=1e-5)


def test_the_unit_is_the_spread_of_the_training_part_alone(clip):
    frames = clip.part("train").double()
    assert frames.mean().item() == pytest.approx(0, abs=1e-5)
    assert frames.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    other = clip.grey.copy()
    other[597:] = 0
    assert Footage("other", other, clip.parts).std == clip.std


def test_frames_come_back_as_grey_levels(clip):
    frames = clip.part("validation")
    assert torch.equal(clip.to_grey(frames), torch.tensor(clip.grey[516:556]))
    assert clip.to_grey(torch.tensor([-1e3, 1e3])).tolist() == [0, 255]


def test_provenance_is_recorded(clip):
    assert "never passed on" in clip.licence
    assert clip.source == "deb:opencv-doc=4.6.0+dfsg-12"
    assert "OpenCV" in clip.attribution
    assert len(clip.content_hash) == 64
    for checksum in (SURVEILLANCE_CLIP.sha256, *(s.sha256 for s in SURVEILLANCE_CLIP.sources)):
        assert checksum in README
    assert f"{SURVEILLANCE_CLIP.num_bytes:,} bytes" in README


def test_the_clip_is_decoded_once(clip, tmp_path, monkeypatch):
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path))
    decoded = []
    monkeypatch.setattr(video, "_decode", lambda path: decoded.append(path) or clip.grey)
    for _ in range(2):
        assert np.array_equal(video._decoded(tmp_path / "vtest.avi"), clip.grey)
    assert decoded == [tmp_path / "vtest.avi"]
    monkeypatch.setattr("av.__version__", "0.0")
    video._decoded(tmp_path / "vtest.avi")
    assert len(decoded) == 2


def test_another_clip_is_refused(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "short.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 768, 576, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((576, 768, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(ValueError, match=r"decoded \(1, 96, 128\), but the clip has \(795"):
        video._decode(path)


def test_a_missing_decoder_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ModuleNotFoundError, match=r"decoding the clip needs .* pip install av"):
        video._decode(tmp_path / "vtest.avi")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"test": range(2)}, "must have 'train'"),
        ({"train": range(2), "dev": range(2, 4)}, "and only"),
        ({"train": range(3), "test": range(2, 5)}, "must not have a frame twice"),
        ({"train": range(21)}, "there are 20 frames"),
    ],
)
def test_wrong_parts_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        Footage("f", np.zeros((20, 8, 8), np.uint8), parts)


def test_wrong_frames_and_a_wrong_split_are_refused():
    with pytest.raises(ValueError, match=r"grey is float32 \(20, 8, 8\)"):
        Footage("f", np.zeros((20, 8, 8), np.float32), {"train": range(2)})
    with pytest.raises(ValueError, match=r"split is 'test', but f has \('train',\)"):
        Footage("f", np.zeros((20, 8, 8), np.uint8), {"train": range(2)}).part("test")


# Sequences of patches


def test_a_sequence_is_one_patch_in_successive_frames():
    batches = PatchBatches(FRAMES, batch_size=16, seed=0, length=5, patch=4)
    batch = batches(3)
    assert batch.shape == (16, 5, 16)
    for sequence, (frame, row, column) in zip(batch, batches.offsets(3).tolist(), strict=True):
        expected = FRAMES[frame : frame + 5, row : row + 4, column : column + 4]
        assert torch.equal(sequence, expected.reshape(5, 16))


def test_a_batch_depends_on_seed_and_step_alone():
    forwards = [PatchBatches(FRAMES, 4, seed=3)(step) for step in range(5)]
    batches = PatchBatches(FRAMES, 4, seed=3)
    backwards = [batches(step) for step in reversed(range(5))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forwards, backwards, strict=True))
    assert not torch.equal(forwards[0], PatchBatches(FRAMES, 4, seed=4)(0))


def test_the_order_of_batches_never_changes():
    """These places are part of every committed result."""
    batches = PatchBatches(torch.zeros(500, 96, 128), batch_size=2, seed=0)
    assert batches.offsets(0).tolist() == [[459, 28, 16], [461, 47, 91]]
    assert batches.offsets(1000).tolist() == [[164, 7, 93], [28, 68, 40]]


def test_each_place_is_equally_likely():
    batches = PatchBatches(torch.zeros(9, 10, 11), batch_size=400, seed=1)
    assert batches.num_offsets == (2, 3, 4)
    drawn = torch.cat([batches.offsets(step) for step in range(30)])
    places = drawn @ torch.tensor([12, 4, 1])
    counts = torch.bincount(places, minlength=24)
    assert len(counts) == 24
    # 12,000 draws: chi-square with 23 degrees of freedom is above 49.7 once in a thousand seeds
    assert ((counts - 500) ** 2 / 500).sum() < 49.7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"length": 0}, "length is 0"),
        ({"length": 21}, "21 frames of 8 x 8 pixels must fit"),
        ({"patch": 17}, "8 frames of 17 x 17 pixels must fit"),
        ({"frames": FRAMES[0]}, r"frames has shape \(16, 24\)"),
    ],
)
def test_wrong_batches_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        PatchBatches(**({"frames": FRAMES, "batch_size": 4, "seed": 0} | change))
    with pytest.raises(ValueError, match="step is -1"):
        PatchBatches(FRAMES, 4, 0)(-1)


@given(
    windows=st.integers(1, 3),
    rest=st.integers(0, 2),
    length=st.integers(3, 5),
    patch=st.integers(1, 4),
    grid=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
@settings(max_examples=50, deadline=None)
def test_patches_fill_each_window_once(windows, rest, length, patch, grid):
    height, width = grid[0] * patch, grid[1] * patch
    frames = torch.randn(windows * length + rest, height, width)
    sequences = evaluation_patches(frames, length, patch)
    assert sequences.shape == (windows * grid[0] * grid[1], length, patch**2)
    assert torch.equal(assemble_patches(sequences, height, width), frames[: windows * length])


def test_evaluation_sequences_are_in_the_order_of_a_book():
    sequences = evaluation_patches(FRAMES, length=8, patch=8)
    assert torch.equal(sequences[0], FRAMES[:8, :8, :8].reshape(8, 64))
    assert torch.equal(sequences[1], FRAMES[:8, :8, 8:16].reshape(8, 64))
    assert torch.equal(sequences[3], FRAMES[:8, 8:16, :8].reshape(8, 64))
    assert torch.equal(sequences[6], FRAMES[8:16, :8, :8].reshape(8, 64))


def test_few_windows_are_spread_over_the_part():
    sequences = evaluation_patches(FRAMES, length=2, patch=8, max_windows=3).view(3, 6, 2, 64)
    assert torch.equal(sequences[:, 0, 0, 0], FRAMES[[0, 8, 18], 0, 0])


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="patch is 5, but must divide 16 and 24"):
        evaluation_patches(FRAMES, patch=5)
    with pytest.raises(ValueError, match="max_windows is 0"):
        evaluation_patches(FRAMES, max_windows=0)
    sequences = evaluation_patches(FRAMES)
    with pytest.raises(ValueError, match="sequences has 12 entries, but each window needs 8"):
        assemble_patches(sequences, 16, 32)
    with pytest.raises(ValueError, match="patches of 64 pixels do not fill 16 x 25"):
        assemble_patches(sequences, 16, 25)
    with pytest.raises(ValueError, match="patches of 63 pixels"):
        assemble_patches(sequences[..., :63], 16, 24)


# Noise


def test_noise_is_gaussian_of_the_level():
    noise = gaussian_noise((200, 8, 64), gamma=0.5, seed=1, step=3).flatten().double()
    n = len(noise)
    assert noise.mean().abs() < 4 * 0.5 / n**0.5
    assert (noise.std() - 0.5).abs() < 4 * 0.5 / (2 * n) ** 0.5
    standard = noise / 0.5
    assert (standard**3).mean().abs() < 4 * (15 / n) ** 0.5
    assert ((standard**4).mean() - 3).abs() < 4 * (96 / n) ** 0.5


def test_levels_share_their_draws():
    one = gaussian_noise((6, 8, 64), 1.0, seed=0)
    assert torch.equal(gaussian_noise((6, 8, 64), 0.25, seed=0), 0.25 * one)
    levels = torch.linspace(0, 2, 6).view(6, 1, 1)
    assert torch.equal(gaussian_noise((6, 8, 64), levels, seed=0), levels * one)
    assert not gaussian_noise((6, 8, 64), 0.0, seed=0).any()


def test_noise_depends_on_seed_and_step_alone():
    draws = [gaussian_noise((4,), 1.0, seed, step) for seed in (0, 1) for step in (0, 1, 2**40)]
    assert len({tuple(draw.tolist()) for draw in draws}) == 6
    assert torch.equal(gaussian_noise((4,), 1.0, 0, 1), draws[1])
    assert draws[0].dtype == torch.float32


def test_noise_never_changes():
    """It is part of every committed result."""
    expected = [[-1.4315, 1.6707], [-0.4027, -1.2956]]
    assert gaussian_noise((2, 2), 1.0, seed=0).numpy() == pytest.approx(
        np.array(expected), abs=1e-4
    )
    expected = [[1.0490, -0.2332], [0.3405, -0.1166]]
    noise = gaussian_noise((2, 2), 1.0, seed=0, step=1000)
    assert noise.numpy() == pytest.approx(np.array(expected), abs=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": -0.1}, r"gamma is -0\.1"),
        ({"gamma": torch.tensor([1.0, math.nan])}, "gamma is"),
        ({"seed": -1}, "seed is -1"),
        ({"step": -1}, "step is -1"),
    ],
)
def test_wrong_noise_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        gaussian_noise(**({"shape": (2,), "gamma": 1.0, "seed": 0} | change))
