"""The presets of the papers' scale, on tiny files in the layout of the papers' data."""

import inspect
import json
import pickle
import re
from dataclasses import replace
from hashlib import md5

import numpy as np
import pytest
import torch
from PIL import Image

from unrolled import results
from unrolled.catalog import load_experiment
from unrolled.data import corpora, fetch, footage, hub
from unrolled.data.fetch import FetchError
from unrolled.data.original import bytes_of, corpus_tokenizer, present
from unrolled.data.text import BpeTokenizer
from unrolled.data.video import evaluation_patches
from unrolled.descent import text, video
from unrolled.horst import language, vision
from unrolled.looped import diagnostics, instability, pretraining
from unrolled.looped.model import LoopedTransformer
from unrolled.plan import plan
from unrolled.transformer import count_parameters

datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")

MODULES = (text, video, vision, language, pretraining, instability)
COMMIT = "c" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    for module, load in (
        (text, text._load_batches),
        (text, text._tokenizer),
        (video, video.footage_of),
        (vision, vision.images_of),
        (language, language.load_original),
        (instability, instability.load_original),
    ):
        monkeypatch.setattr(module, load.__name__, load.__wrapped__)  # tests share no cache
    monkeypatch.setattr("os.fsync", lambda _: None)  # slow, and no power fails here
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


# What is published of a preset ------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.EXPERIMENT.name)
def test_rows_of_the_laptop_keep_their_names(module):
    experiment = module.EXPERIMENT
    path = results.file_of(experiment.name)
    if not path.is_file():
        pytest.skip(f"{experiment.name} has no rows yet")
    rows = [row for row in results.read(path) if row["preset"] == "laptop"]
    hashes = {unit.config_hash for unit in experiment.units("laptop", [0])}
    assert len(hashes & {row["config_hash"] for row in rows}) >= min(len(hashes), 3)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.EXPERIMENT.name)
@pytest.mark.parametrize("preset", ["colab", "paper"])
def test_the_hours_beside_a_preset_are_those_of_the_plan(module, preset):
    found = re.search(rf'# Plan, the longest unit: (.*)\n\s*"{preset}":', inspect.getsource(module))
    stated = dict(re.findall(r"(\d x \w+) ([\d.]+) h", found[1]))
    assert stated
    units = module.EXPERIMENT.units(preset, [0])
    *rows, _ = plan(
        module.EXPERIMENT, [units[0], units[-1]]
    )  # with most loops, where there are any
    for machine, hours in stated.items():
        longest = max(row[f"{machine}: hours"] for row in rows)
        assert float(hours) == pytest.approx(longest, rel=0.05)


def on_meta(build):
    with torch.device("meta"):
        return count_parameters(build())


@pytest.mark.parametrize(
    ("encoder", "millions"), [("distilbert", 66), ("roberta_base", 125), ("roberta_large", 355)]
)
def test_encoders_have_their_published_size(encoder, millions):
    config = text.encoder_config(encoder, 2)
    assert round(on_meta(lambda: transformers.AutoModel.from_config(config)) / 1e6) == millions
    settings = replace(text.EXPERIMENT.presets["paper"], encoder=encoder, task="mnli")
    model = text.classifier_on_meta(settings)
    assert model.config.num_labels == 3
    assert not text.embedding_layer(model).weight.requires_grad


@pytest.mark.parametrize(
    ("hidden_size", "num_heads", "millions"), [(192, 3, 5.7), (384, 6, 22.1), (768, 12, 86.6)]
)
def test_deit_has_its_published_size(hidden_size, num_heads, millions):
    changes = {"hidden_size": hidden_size, "num_heads": num_heads}
    settings = vision.EXPERIMENT.settings("paper", changes)
    assert round(on_meta(lambda: vision.build_model(settings, "vit")) / 1e6, 1) == millions


def test_gpt2_and_flt_have_their_published_sizes():
    gpt2 = language.EXPERIMENT.presets["paper"].config
    assert on_meta(lambda: language.build_model(gpt2)) == 124_439_808
    for changes, millions in (
        ({}, 127.1),
        ({"num_layers": 12, "hidden_size": 768, "num_heads": 6}, 317.9),
        ({"window": 256}, 127.1),
    ):
        config = pretraining.EXPERIMENT.settings("paper", changes).config
        size = on_meta(lambda config=config: LoopedTransformer(config, 12, "flt"))
        assert round(size / 1e6, 1) == millions
    grouped = pretraining.EXPERIMENT.settings("paper", {"num_kv_heads": 1}).config
    saved = 6 * 2 * 384 * (384 - 128)
    assert on_meta(lambda: LoopedTransformer(grouped, 12, "flt")) == 127_107_072 - saved


# What is absent ---------------------------------------------------------------------------------

ABSENT = {
    "descent.text": [("colab", {}, "imdb"), ("paper", {"task": "mnli"}, "mnli")],
    "descent.video": [
        ("colab", {}, "ucsd_ped2"),
        ("paper", {}, "avenue"),
        ("paper", {"footage": "shanghaitech"}, "shanghaitech"),
    ],
    "horst.vision": [
        ("colab", {}, "cifar10"),
        ("colab", {"data": "cifar100"}, "cifar100"),
        ("paper", {}, "imagenet_1k"),
    ],
    "horst.language": [
        ("colab", {}, "slimpajama --subset 100000000 --tokenizer openai-community/gpt2"),
        ("paper", {}, "slimpajama --tokenizer openai-community/gpt2"),
    ],
    "looped.instability": [("paper", {}, "fineweb_edu --tokenizer Qwen/Qwen3-0.6B-Base")],
    "looped.pretraining": [
        ("colab", {}, "fineweb_edu --subset 100000000 --tokenizer bytes"),
        ("paper", {}, "fineweb_edu --tokenizer Qwen/Qwen3-0.6B-Base"),
    ],
}
CASES = [(name, *case) for name, cases in ABSENT.items() for case in cases]


@pytest.mark.parametrize(("name", "preset", "changes", "data"), CASES)
def test_absent_data_is_told_before_any_work(name, preset, changes, data, monkeypatch):
    def begin(*_, **__):
        raise AssertionError("work began")

    monkeypatch.setattr(torch, "manual_seed", begin)
    experiment = load_experiment(name)
    unit = experiment.units(preset, [0], None, changes)[0]
    with pytest.raises(FetchError, match=rf"python -m unrolled data get {data}\n") as caught:
        experiment.measure_unit(unit)
    if data == "imagenet_1k":
        assert "ask for access at https://image-net.org" in str(caught.value)


def test_the_network_is_asked_again_behind_a_failure(monkeypatch):
    for before in (None, "0"):
        if before is not None:
            monkeypatch.setenv("UNROLLED_OFFLINE", before)
        with pytest.raises(FetchError):
            present("avenue")
        assert fetch.offline() is False


def test_absent_weights_are_told_and_another_head_is_refused(tmp_path):
    with pytest.raises(FetchError, match="hf download FacebookAI/roberta-base"):
        text.build_classifier("imdb", "pooler", 0.1, "roberta_base")
    with pytest.raises(FetchError, match="or name a folder that has it"):
        text.build_classifier("imdb", "pooler", 0.1, "distilbert", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="head must be one of"):
        text.build_classifier("imdb", "linear", 0.1, "roberta_base")


# Video ------------------------------------------------------------------------------------------


def grey_pictures(folder, count, first):
    folder.mkdir(parents=True)
    for number in range(count):
        rows, columns = np.mgrid[:96, :128]
        grey = (rows + 2 * columns + 5 * number + 30 * first) % 256
        Image.fromarray(grey.astype(np.uint8)).save(folder / f"{number + 1:03d}.tif")


def ucsd(folder):
    root = folder / "UCSD_Anomaly_Dataset.v1p2" / "UCSDped2"
    for clip in range(8):  # the eighth is held out
        grey_pictures(root / "Train" / f"Train{clip + 1:03d}", 9, clip)
    for clip in range(2):
        grey_pictures(root / "Test" / f"Test{clip + 1:03d}", 17, clip)


def test_networks_learn_from_a_set_of_clips(cache):
    ucsd(cache / "ucsd")
    settings = replace(video.EXPERIMENT.presets["smoke"], footage="ucsd_ped2", steps=2)
    assert isinstance(video.clean_batches(settings, 4, 0), footage.ClipBatches)
    for network, method in (("dust", "exact"), ("ut_untied", "early"), ("none", "wiener")):
        row = video.measure(settings, {"network": network, "method": method}, 0, lambda *_: None)
        assert not row["diverged"]
        assert np.isfinite(row["rmse_by_gamma"]).all()


def test_windows_are_those_of_the_whole_part(cache):
    ucsd(cache / "ucsd")
    settings = replace(video.EXPERIMENT.presets["smoke"], footage="ucsd_ped2", test_windows=3)
    part = video.footage_of("ucsd_ped2").part("test")
    for name in ("ucsd_ped2", "toy"):
        settings = replace(settings, footage=name)
        part = video.footage_of(name).part("test")
        expected = evaluation_patches(part, max_windows=3)
        assert torch.equal(video.noisy_patches(settings, "test", 0.5)[0], expected)
    with pytest.raises(ValueError, match="split must be one of"):
        video.noisy_patches(settings, "tests", 0.5)


# Text -------------------------------------------------------------------------------------------


def keep(source, split, rows, classes):
    """Put a table where `unrolled.data.hub` keeps what it has loaded."""
    kinds = {name: datasets.Value("string") for name in source.columns if name != "label"}
    features = datasets.Features({**kinds, "label": datasets.ClassLabel(num_classes=classes)})
    table = datasets.Dataset.from_dict(rows, features=features)
    commit = source.revision or COMMIT
    name = f"hub/{source.repository.replace('/', '--')}/{source.config}-{split}-{commit[:16]}"
    fetch.derive(name, lambda folder: table.save_to_disk(str(folder)))
    know(source)


def know(source):
    """Say that a commit of a repository has been loaded."""
    commit = source.revision or COMMIT
    hub.lock_file().write_text(json.dumps({source.repository: {"revision": commit}}))


def tiny_imdb():
    from unrolled.data.classification import IMDB

    for part, count in (("train", 80), ("test", 24)):
        texts = [f"{'good' if i % 2 else 'bad'} film {part} {i}" for i in range(count)]
        labels = [i % 2 for i in range(count)]
        keep(IMDB, part, {"text": texts, "label": labels}, 2)


def tiny_mnli():
    from unrolled.data.classification import MNLI

    for part, count in (("train", 300), ("validation_matched", 24)):
        rows = {
            "premise": [f"good film {i // 3}" for i in range(count)],
            "hypothesis": [("good", "film", "bad")[i % 3] for i in range(count)],
            "label": [i % 3 for i in range(count)],
        }
        keep(MNLI, part, rows, 3)


def tiny_encoder(folder, kind):
    """Write weights and tokenizer as the hub has them: the encoder alone, without a classifier."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<s>", "<pad>", "</s>", "<unk>", "good", "bad", "film", "train", "test"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(str(folder))
    if kind == "distilbert":
        shape = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 9}
        config = transformers.DistilBertConfig(**shape, pad_token_id=1)
    else:
        config = transformers.RobertaConfig(
            vocab_size=9,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=40,
            type_vocab_size=1,
        )
    transformers.AutoModel.from_config(config).save_pretrained(str(folder))
    return str(folder)


@pytest.mark.parametrize(
    ("encoder", "task", "make", "classes"),
    [("distilbert", "imdb", tiny_imdb, 2), ("roberta_base", "mnli", tiny_mnli, 3)],
)
def test_encoders_learn_from_the_papers_texts(tmp_path, encoder, task, make, classes):
    make()
    folder = tiny_encoder(tmp_path / encoder, encoder)
    settings = replace(
        text.SMOKE, task=task, encoder=encoder, folder=folder, head="pooler", steps=3
    )
    case = {"method": "anchored", "readout": "cls", "training_noise": 1.0}
    row = text.measure(settings, case, 0, lambda *_: None)
    assert not row["diverged"]
    assert len(row["test_loss_by_layer"]) == 3
    assert 0 <= row["test_roc_auc"] <= 1
    assert len(set(text.special_tokens(settings))) == 4
    assert text.classifier_of(settings).config.num_labels == classes
    references = [c for c in text.cases(replace(settings, reference=True))
                  if c["method"] == "tfidf"]  # fmt: skip
    assert len(references) == (classes == 2)


def test_scores_of_three_classes():
    logits = 9.0 * torch.eye(3).repeat(2, 1)
    labels = torch.tensor([0, 1, 2, 0, 1, 1])
    found = text.scores(logits, labels)
    # each class against the rest; the last text, of class 1, is taken for one of class 2
    areas = [1, (2 * 3 + 3 / 2) / (3 * 3), (4 + 1 / 2) / (1 * 5)]
    assert found["accuracy"] == pytest.approx(5 / 6)
    assert found["roc_auc"] == pytest.approx(np.mean(areas))


# Vision -----------------------------------------------------------------------------------------


def tiny_cifar10(folder, monkeypatch):
    """Write five batches and one as they were published, and let torchvision know their sums."""
    cifar = pytest.importorskip("torchvision.datasets").CIFAR10
    root = folder / "cifar-10-batches-py"
    root.mkdir(parents=True)

    def dump(name, content):
        (root / name).write_bytes(pickle.dumps(content))
        return [name, md5((root / name).read_bytes()).hexdigest()]

    def batch(count):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 3_072), np.uint8)
        return {"data": pixels, "labels": [i % 10 for i in range(count)]}

    sums = [dump(f"data_batch_{i}", batch(8 + i)) for i in range(1, 6)]
    meta = dump("batches.meta", {"label_names": [str(i) for i in range(10)]})
    monkeypatch.setattr(cifar, "train_list", sums)
    monkeypatch.setattr(cifar, "test_list", [dump("test_batch", batch(6))])
    monkeypatch.setattr(cifar, "meta", {**cifar.meta, "md5": meta[1]})


def tiny_imagenet(folder):
    generator = np.random.default_rng(0)
    for part, count in (("train", 30), ("val", 3)):
        for wnid in ("n01440764", "n01443537"):
            (folder / part / wnid).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (20, 30, 3), np.uint8)
                Image.fromarray(pixels).save(folder / part / wnid / f"{number:08d}.JPEG")


@pytest.mark.parametrize(("data", "patch_size"), [("cifar10", 16), ("imagenet_1k", 112)])
def test_a_vit_learns_from_the_papers_images(cache, monkeypatch, data, patch_size):
    if data == "cifar10":
        tiny_cifar10(cache / "cifar10", monkeypatch)
    else:
        tiny_imagenet(cache / "imagenet_1k")
    smoke = vision.EXPERIMENT.presets["smoke"]
    settings = replace(
        smoke, data=data, patch_size=patch_size, steps=20, batch_size=4, test_images=4
    )
    case = {"model": "vit", "optimizer": "horst", "sparsity": 0.9}
    row = vision.measure(settings, case, 0, lambda *_: None)
    assert not row["diverged"]
    assert row["kept"] == pytest.approx(0.1, abs=0.01)
    assert 0 <= row["test_accuracy"] <= 1


def test_images_of_a_folder_depend_on_their_seed_alone(cache):
    tiny_imagenet(cache / "imagenet_1k")
    images, labels = vision.images_of("imagenet_1k", 4)["train"]
    one, two, three = (images.read([5, 7], draws) for draws in ([1, 2], [1, 2], [1, 3]))
    assert torch.equal(one, two)
    assert torch.equal(one[0], three[0])
    assert not torch.equal(one[1], three[1])
    assert torch.equal(images.read([5])[0], images.read([7, 5])[1])
    state = torch.random.get_rng_state()
    images.read([0], [4])
    assert torch.equal(torch.random.get_rng_state(), state)
    val, val_labels = vision.images_of("imagenet_1k", 4)["test"]
    assert [len(part) for part in val.split(3)] == [3, 1]
    assert val_labels.tolist() == [0, 0, 1, 1]  # of six evenly spread
    rows, chosen = vision.FolderBatches(labels, 6, 0)(3)
    assert torch.equal(labels[rows[:, 0]], chosen)
    assert not torch.equal(rows, vision.FolderBatches(labels, 6, 0)(4)[0])


# Language ---------------------------------------------------------------------------------------

DOCUMENTS = [f"Document {i} says: naïve words, {'more and more ' * (i % 5)}." for i in range(400)]


def byte_level_tokenizer(folder):
    """Write a byte-level tokenizer as those of GPT-2 and Qwen3 are, with an end of documents."""
    from tokenizers import Tokenizer

    learnt = BpeTokenizer.learn(DOCUMENTS[:50], 300).to_json()
    end = "<|endoftext|>"
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(learnt), eos_token=end
    )
    found.save_pretrained(str(folder))
    return str(folder)


def tokenised(monkeypatch, load, source, tokenizer):
    """Tokenise a tiny stream into the cache, as ``data get`` does."""
    know(source)
    rows = datasets.Dataset.from_dict({"text": DOCUMENTS}).to_iterable_dataset()
    with monkeypatch.context() as patched:
        patched.setattr(corpora, "VALIDATION_DOCUMENTS", 100)
        patched.setattr(corpora, "stream", lambda *_, **__: (rows, COMMIT))
        return load(4_000, tokenizer=tokenizer)


def test_a_gpt_learns_from_slimpajama(tmp_path, monkeypatch):
    name = byte_level_tokenizer(tmp_path / "tokenizer")
    corpus = tokenised(monkeypatch, corpora.slimpajama, corpora.SLIMPAJAMA, name)
    settings = replace(
        language.EXPERIMENT.presets["smoke"],
        corpus="slimpajama",
        tokenizer=name,
        vocab_size=301,
        corpus_tokens=4_000,
    )
    row = language.measure(settings, {"optimizer": "horst"}, 0, lambda *_: None)
    tokens, size = language.units_of(settings)
    bits = row["loss_by_sparsity"][0] * tokens / size / np.log(2)
    assert row["bits_per_byte_by_sparsity"][0] == pytest.approx(bits)
    with pytest.raises(ValueError, match="vocab_size must be at least 301"):
        language.text_of(replace(settings, vocab_size=300))
    piece = corpus.tokens["validation"][:200]
    words = corpus_tokenizer(name).decode(piece)  # leaves ends of documents out
    assert bytes_of(piece, name) == len(words.encode())


def test_flt_learns_from_fineweb_with_grouped_queries_and_a_window(monkeypatch):
    tokenised(monkeypatch, corpora.fineweb_edu, corpora.FINEWEB_EDU, "bytes")
    settings = replace(
        pretraining.EXPERIMENT.presets["smoke"],
        corpus="fineweb_edu",
        tokenizer="bytes",
        corpus_tokens=4_000,
        num_heads=2,
        num_kv_heads=1,
        window=8,
    )
    case = {"optimizer": "muon", "variant": "flt", "num_loops": 2, "learning_rate": 0.02}
    row = pretraining.measure(settings, case, 0, lambda *_: None)
    assert not row["diverged"]
    assert len(row["val_loss_by_inference_loops"]) == 3
    text = instability.text_of(settings)
    assert text.unigram_loss == pytest.approx(diagnostics.unigram_loss(text.train[:]))
    assert text.validation_bytes == int((text.validation[1] != 0).sum())
    assert settings.config.window == 8
    assert settings.config.num_kv_heads == 1


def test_a_loop_is_diagnosed_on_fineweb(monkeypatch):
    tokenised(monkeypatch, corpora.fineweb_edu, corpora.FINEWEB_EDU, "bytes")
    settings = replace(
        instability.EXPERIMENT.presets["smoke"],
        corpus="fineweb_edu",
        tokenizer="bytes",
        corpus_tokens=4_000,
        optimizer="muon",
    )
    row = instability.measure(settings, instability.cases(settings)[1], 0, lambda *_: None)
    assert not row["diverged"]
    text = instability.text_of(settings)
    assert row["unigram_loss"] == pytest.approx(diagnostics.unigram_loss(text.train[:]))
    bits = row["val_loss"] * text.validation[1].numel() / text.validation_bytes / np.log(2)
    assert row["val_bits_per_byte"] == pytest.approx(bits)
