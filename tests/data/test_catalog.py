"""The list of data sets, the README beside the scripts, and the commands."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
import tiny_repositories
from typer.testing import CliRunner

from unrolled.__main__ import app
from unrolled.data import classification, corpora, footage, instructions
from unrolled.data.catalog import DATA_SETS, ORIGINAL, SMALL, DataSet, find
from unrolled.data.command import describe, get, script
from unrolled.data.reviews import LabelledTexts

FOLDER = Path(__file__).parents[2] / "data_scripts"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
EACH = pytest.mark.parametrize("found", ORIGINAL, ids=lambda found: found.name)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("UNROLLED_CACHE", str(folder))
    monkeypatch.delenv("UNROLLED_OFFLINE", raising=False)
    return folder


def readme_row(found):
    """Return the row of a data set in the table of the README."""
    link = f"[`{found.name}`]({found.name}.py)"
    cells = (link, found.title, found.how, f"`{found.source}`", found.size, found.checksum)
    return "| " + " | ".join([*cells, found.split, found.licence, found.may_pass_on]) + " |"


@EACH
def test_each_original_has_a_row_and_a_script(found):
    assert readme_row(found) in README.splitlines()
    text = (FOLDER / f"{found.name}.py").read_text(encoding="utf-8")
    assert f'script("{found.name}")' in text
    assert f"python data_scripts/{found.name}.py [--root DIR] [--subset N] [--check]" in text


def test_there_is_no_script_and_no_row_of_something_else():
    names = {found.name for found in ORIGINAL} | {"descent", "state_of_the_union"}
    assert {path.stem for path in FOLDER.glob("*.py")} <= names | {"social_iqa"}
    assert set(re.findall(r"^\| \[`(\w+)`\]", README, re.MULTILINE)) == {f.name for f in ORIGINAL}


@pytest.mark.parametrize("found", SMALL, ids=lambda found: found.name)
def test_each_small_set_is_in_the_tables_of_the_readme(found):
    assert f"{found.loader.rpartition(':')[2]}()`" in README


@pytest.mark.parametrize("found", DATA_SETS, ids=lambda found: found.name)
def test_each_loader_exists_and_takes_a_subset(found):
    module, _, function = found.loader.partition(":")
    options = inspect.signature(getattr(import_module(module), function)).parameters
    assert "subset" in options or found in SMALL or found.name == "commonsense"


def test_sources_and_checksums_are_those_of_the_code():
    hub = {"imdb": classification.IMDB, "mnli": classification.MNLI}
    hub |= {"fineweb_edu": corpora.FINEWEB_EDU, "wikitext2": corpora.WIKITEXT2}
    hub |= {"slimpajama": corpora.SLIMPAJAMA, "alpaca_eval": instructions.ALPACA_EVAL}
    for name, table in hub.items():
        assert find(name).source == f"hub:{table.repository}"
        for count in table.rows.values():
            told = find(name).split + find(name).title + find("mnli_mismatched").split
            assert f"{count:,}" in told or name == "wikitext2"
    films = {"avenue": footage.AVENUE, "ucsd_ped1": footage.UCSD, "ucsd_ped2": footage.UCSD}
    for name, archive in (films | {"shanghaitech": footage.SHANGHAITECH}).items():
        assert find(name).source == archive.sources[0].reference
        assert archive.sha256 in find(name).checksum


def test_md5_sums_are_those_of_torchvision():
    datasets = pytest.importorskip("torchvision.datasets")
    for name, loader in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        assert loader.tgz_md5 in find(name).checksum
        assert loader.url == find(name).source


def test_names_are_unique_and_unknown_ones_are_told():
    assert len({found.name for found in DATA_SETS}) == len(DATA_SETS)
    with pytest.raises(ValueError, match="name is 'IMDB', but must be one of state_of"):
        find("IMDB")
    with pytest.raises(ValueError, match="how is 'free'"):
        DataSet(*["x"] * 10, how="free")


@pytest.mark.parametrize("found", DATA_SETS, ids=lambda found: found.name)
def test_each_set_has_a_row_on_the_page(found):
    page = (FOLDER.parent / "book" / "data.md").read_text(encoding="utf-8").splitlines()
    cells = (f"`{found.name}`", found.title, found.how, found.size, found.split)
    assert "| " + " | ".join(cells) + " |" in page


# Commands


def run(*arguments):
    result = CliRunner().invoke(app, ["data", *arguments])
    return result.exit_code, result.output


def test_the_list_has_all_of_them():
    status, output = run("list")
    assert status == 0
    assert all(found.name in output for found in DATA_SETS)


def test_a_set_is_fetched_and_then_checked_without_the_network(tmp_path, cache):
    copy = tiny_repositories.imdb(tmp_path / "imdb")
    arguments = ["imdb", "--subset", "10", "--mirror", str(copy)]
    for command in ("get", "check"):
        status, output = run(command, *arguments)
        assert status == 0, output
        assert f"cache: {cache}" in output
        assert "test: 10 examples, 10 groups, 5 negative, 5 positive" in output
    assert list((cache / "hub").rglob("*.arrow"))


def test_the_root_is_where_it_is_kept(tmp_path, cache):
    copy = tiny_repositories.imdb(tmp_path / "imdb")
    status, _ = run("get", "imdb", "--root", str(tmp_path / "root"), "--mirror", str(copy))
    assert status == 0
    assert (tmp_path / "root" / "hub").is_dir()
    assert not cache.exists()


def test_what_is_not_here_cannot_be_checked():
    status, output = run("check", "imdb", "imagenet_1k", "cifar10")
    assert status == 1
    assert "imdb: stanfordnlp/imdb is not in the cache and UNROLLED_OFFLINE is set" in output
    assert "imagenet_1k: ImageNet-1k is not at" in output
    assert "cifar10: CIFAR10 is not whole" in output


def test_what_works_is_done_though_something_fails():
    status, output = run("get", "imdb2", "state_of_the_union")
    assert status == 1
    assert "imdb2: name is 'imdb2'" in output
    assert "187 documents" in output


def test_an_option_that_a_set_does_not_have_is_told():
    with pytest.raises(ValueError, match="subset is given, but moby_dick has no such option"):
        get("moby_dick", {"subset": 3, "mirror": None})
    with pytest.raises(ValueError, match="tokenizer is given, but imdb has no such option"):
        get("imdb", {"tokenizer": "bytes"})


def test_scripts_take_the_same_options(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(corpora, "VALIDATION_DOCUMENTS", 5)
    copy = tiny_repositories.corpus(tmp_path / "web", ["a text"] * 99, config="sample-100BT")
    options = ["--subset", "100", "--tokenizer", "bytes", "--mirror", str(copy)]
    for check in ([], ["--check"]):
        assert script("fineweb_edu", [*options, "--root", str(tmp_path / "root"), *check]) == 0
        printed = capsys.readouterr().out
        assert "train: 100 tokens" in printed
        assert "validation: 10 tokens" in printed
    assert "files of tokens are as they were written" in printed
    assert script("imagenet_1k", ["--check"]) == 1
    assert "only you can get it" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        script("imdb", ["--tokenizer", "bytes"])


def test_all_kinds_of_sets_are_described():
    assert describe(LabelledTexts("none", ("a",), ())) == []
    assert describe({"piqa": 1838}) == ["  piqa: 1,838 questions"]
