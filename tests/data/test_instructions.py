"""The prompts of AlpacaEval from a tiny copy, and tasks of lm-eval where it is installed."""

import json
import sys
from functools import cache

import datasets
import pytest

from unrolled.data import instructions
from unrolled.data.fetch import FetchError
from unrolled.data.instructions import COMMONSENSE, alpaca_eval, commonsense

TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    validation: {path}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNROLLED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNROLLED_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow")
    return tmp_path / "cache"


@pytest.fixture
def copy(tmp_path):
    folder = tmp_path / "alpaca"
    folder.mkdir()
    rows = [
        {"instruction": f"Do {i}.", "output": f"Done {i}.", "generator": "g", "dataset": "helpful"}
        for i in range(9)
    ]
    (folder / "alpaca_eval.json").write_text(json.dumps(rows))
    (folder / "other.json").write_text(json.dumps([{"instruction": "no"}]))
    return folder


def test_prompts_keep_their_order_and_their_references(copy):
    found = alpaca_eval(mirror=copy)
    assert [prompt.instruction for prompt in found.prompts] == [f"Do {i}." for i in range(9)]
    assert found.prompts[8].reference == "Done 8."
    assert (found.prompts[0].generator, found.prompts[0].origin) == ("g", "helpful")
    assert [prompt.instruction for prompt in alpaca_eval(3, mirror=copy).prompts] == [
        "Do 0.",
        "Do 4.",
        "Do 8.",
    ]
    assert found.counts() == {"test": {"examples": 9}}
    assert found.licence == "CC BY-NC 4.0"


def test_without_lm_eval_the_reader_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with pytest.raises(ModuleNotFoundError, match=r"the commonsense tasks needs .* lm_eval"):
        commonsense()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Two tasks of our own; lm-eval reads its own thousands of files once for all tests."""
    library = pytest.importorskip("lm_eval.tasks")
    tmp_path = tmp_path_factory.mktemp("lm_eval")
    folder = tmp_path / "tasks"
    folder.mkdir()
    rows = [{"question": f"{i}?", "choices": ["yes", "no"], "label": i % 2} for i in range(7)]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    for name, path in (("tiny", tmp_path / "rows.json"), ("lost", tmp_path / "nowhere.json")):
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, path=path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "TaskManager", cache(library.TaskManager))
        yield folder


def test_lm_eval_loads_the_data_of_its_tasks(tasks):
    assert commonsense(["tiny"], include_path=tasks) == {"tiny": 7}


def test_lm_eval_knows_all_names_and_says_what_it_could_not_load(tasks):
    with pytest.raises(ValueError, match=r"names has \['commonsense_2'\]"):
        commonsense([*COMMONSENSE, "commonsense_2"], include_path=tasks)
    with pytest.raises(FetchError, match=r"the data of the task lost could not be loaded"):
        commonsense(["lost"], include_path=tasks)


def test_the_switch_of_the_hub_is_put_back(monkeypatch):
    import huggingface_hub

    before = huggingface_hub.constants.HF_HUB_OFFLINE
    with instructions._offline_if_asked():
        assert huggingface_hub.constants.HF_HUB_OFFLINE
    monkeypatch.setenv("UNROLLED_OFFLINE", "0")
    with instructions._offline_if_asked():
        assert before == huggingface_hub.constants.HF_HUB_OFFLINE
