"""The table of all claims: whole, in step with the experiments, and readable by programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from unrolled.catalog import EXPERIMENTS, all_claims, load_experiment
from unrolled.results import comparison_table, folder

sys.path.insert(0, str(Path(__file__).parents[2] / "book" / "_ext"))

import verdicts


@pytest.fixture(scope="module")
def claims():
    return all_claims()


def test_no_claim_of_an_experiment_is_left_out(claims):
    stated = {name: len(load_experiment(name).claims) for name in EXPERIMENTS}
    for name, number in stated.items():
        assert sum(claim["experiment"] == name for claim in claims) == number


def test_a_claim_says_what_the_table_of_its_experiment_says(claims):
    name = "looped.instability"
    table = comparison_table(name, load_experiment(name).claims)
    found = [claim for claim in claims if claim["experiment"] == name]
    assert [claim["verdict"] for claim in found] == [row["verdict"] for row in table]
    assert [claim["ours"] for claim in found] == [row["ours"] for row in table]


def test_every_verdict_but_not_attempted_has_its_rows(claims):
    for claim in claims:
        assert claim["command"] == f"python -m unrolled run {claim['experiment']} --preset laptop"
        if claim["verdict"] != "not attempted":
            assert (folder() / claim["rows_file"]).is_file()


def test_the_counts_add_up(claims):
    lines = verdicts.count_lines(claims)[2:]
    numbers = [int(cell) for line in lines for cell in line.split("|")[2:-1]]
    assert sum(numbers) == len(claims)


def test_kinds_choose_the_rows_of_the_table(claims):
    number = sum(claim["verdict"] == "not seen" for claim in claims)
    lines = verdicts.table_lines(claims, verdicts.kinds_of("not seen"))
    assert len(lines) == number + 2
    assert len(verdicts.table_lines(claims, verdicts.kinds_of(None))) == len(claims) + 2


def test_an_unknown_verdict_is_named():
    with pytest.raises(ValueError, match="'maybe'; allowed: reproduced"):
        verdicts.kinds_of("reproduced, maybe")


def test_programs_read_the_same(claims, tmp_path):
    app = SimpleNamespace(builder=SimpleNamespace(name="html"), outdir=tmp_path)
    verdicts.write_results(app, None)
    assert json.loads((tmp_path / "results.json").read_text("utf8")) == {"claims": claims}


def test_a_build_that_failed_writes_nothing(tmp_path):
    app = SimpleNamespace(builder=SimpleNamespace(name="html"), outdir=tmp_path)
    verdicts.write_results(app, OSError("no space"))
    assert not list(tmp_path.iterdir())
