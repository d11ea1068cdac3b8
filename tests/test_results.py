"""Results: files that survive any crash, statistics that agree with scipy, exact quotations."""

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from unrolled import results
from unrolled.results import Claim, Interval, ResultError, Verdict

finite = st.floats(-1e6, 1e6)


def unit(seed=0, **more):
    return {
        "experiment": "demo.toy",
        "preset": "laptop",
        "seed": seed,
        "config_hash": "abc",
        **more,
    }


# --- files ------------------------------------------------------------------------------------


def test_append_and_read_return_the_same_rows_in_order(tmp_path):
    path = tmp_path / "new folder" / "rows.jsonl"
    rows = [unit(seed, text="π ≈ 3\nnew line\u2028", curve=[1, 0.5, None]) for seed in range(3)]
    assert all(results.append(path, row) for row in rows)
    assert results.read(path) == results.read(str(path)) == rows
    assert len(path.read_bytes().splitlines()) == 3


def test_rows_are_strict_json_of_plain_values(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {
        "loss": np.float32(0.5),
        "steps": np.int64(3),
        "collapsed": np.bool_(True),
        "norm": torch.tensor(2.0),
        "curve": torch.tensor([1.0, math.inf]),
        "lost": math.nan,
        "pair": (1, 2),
    }
    results.append(path, row)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    (line,) = path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse) == {
        "loss": 0.5,
        "steps": 3,
        "collapsed": True,
        "norm": 2.0,
        "curve": [1.0, None],
        "lost": None,
        "pair": [1, 2],
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": {"b": 1}}, "a = {'b': 1} cannot stand in a row"),
        ({"a": [[1]]}, r"a = \[1\] cannot stand in a row"),
        ({"a b": 1}, "'a b' of a row's column must be one word"),
        ({3: 1}, "3 of a row's column"),
    ],
)
def test_a_row_that_is_not_flat_is_refused_and_nothing_is_written(tmp_path, row, message):
    with pytest.raises(TypeError, match=message):
        results.append(tmp_path / "rows.jsonl", row)
    assert list(tmp_path.iterdir()) == []


def test_a_torn_last_line_is_repaired_wherever_it_was_torn(tmp_path, capsys):
    """Cut the file at every byte: what was whole stays, the next row is whole, and it is said."""
    path = tmp_path / "rows.jsonl"
    for seed in range(2):
        results.append(path, unit(seed, text="é"))
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        capsys.readouterr()
        results.append(path, unit(9))
        seeds = [row["seed"] for row in results.read(path)]
        whole = [0] * (cut >= first - 1) + [1] * (cut >= len(content) - 1)
        assert seeds == [*whole, 9], cut
        torn = cut not in (0, first - 1, first, len(content) - 1, len(content))
        assert ("torn line" in capsys.readouterr().err) == torn, cut


def test_reading_a_torn_file_says_so_and_changes_nothing(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    results.append(path, unit(0))
    torn = path.read_bytes() + b'{"seed": 1, "lo'
    path.write_bytes(torn)
    assert [row["seed"] for row in results.read(path)] == [0]
    assert "rows.jsonl ends with a torn line" in capsys.readouterr().err
    assert path.read_bytes() == torn


def test_a_last_line_without_line_end_is_whole(tmp_path, capsys):
    """An editor may strip the last line end; that must not cost a row."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(unit(0)))
    results.append(path, unit(1))
    assert [row["seed"] for row in results.read(path)] == [0, 1]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("broken", ["{not json}\n", "[1, 2]\n"])
def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path, broken):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(unit(0)) + "\n" + broken + json.dumps(unit(1)) + "\n")
    with pytest.raises(ResultError, match=r"rows\.jsonl, line 2: not"):
        results.read(path)


def test_a_write_cut_short_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    results.append(path, unit(0))
    before, write = path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[: len(data) // 2]))
    with pytest.raises(OSError, match="bytes of a row"):
        results.append(path, unit(1))
    assert path.read_bytes() == before


def test_many_writers_lose_and_mix_nothing(tmp_path):
    path = tmp_path / "rows.jsonl"
    long = "x" * 20_000  # longer than any buffer that a system writes at once by chance
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: results.append(path, unit(seed, text=long)), range(64)))
    assert sorted(row["seed"] for row in results.read(path)) == list(range(64))


def test_writers_and_a_remover_lose_nothing(tmp_path):
    """`remove` swaps the file; a writer that waits for the old one must not write there."""
    path = tmp_path / "rows.jsonl"

    def work(seed):
        results.append(path, unit(seed))
        if seed % 4 == 0:
            results.remove(path, lambda row: row["seed"] == seed)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(64)))
    kept = sorted(row["seed"] for row in results.read(path))
    assert kept == [seed for seed in range(64) if seed % 4]


def test_once_appends_a_unit_once(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert results.append(path, unit(0, loss=1), once=True)
    assert not results.append(path, unit(0, loss=2), once=True)
    assert results.append(path, unit(1), once=True)
    assert results.append(path, {**unit(0), "config_hash": "other"}, once=True)
    assert results.append(path, {**unit(0), "preset": "live"}, once=True)
    assert [row.get("loss") for row in results.read(path)] == [1, None, None, None]


def test_remove_counts_and_keeps_the_rest(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert results.remove(path, lambda row: True) == 0
    for seed in range(4):
        results.append(path, unit(seed))
    assert results.remove(path, lambda row: row["seed"] % 2 == 0) == 2
    assert [row["seed"] for row in results.read(path)] == [1, 3]
    assert list(tmp_path.iterdir()) == [path]


def test_the_folder_is_the_checkouts(tmp_path):
    assert results.folder() == results.checkout() / "book" / "results"
    assert results.file_of("looped.instability") == results.folder() / "looped_instability.jsonl"
    with pytest.raises(ResultError, match=r"no results file no_such\.jsonl"):
        results.read("no.such")
    with pytest.raises(ValueError, match="must be words"):
        results.read("../etc/passwd")


def test_committed_rows_are_those_of_the_laptop(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("unrolled.results.rows.folder", lambda: tmp_path)
    assert results.committed("demo.toy", "bench {}") == []
    assert "python -m unrolled bench demo.toy" in capsys.readouterr().out
    for preset in ("colab", "laptop"):
        results.append(tmp_path / "demo_toy.jsonl", {"experiment": "demo.toy", "preset": preset})
    assert [row["preset"] for row in results.committed("demo.toy")] == ["laptop"]
    assert capsys.readouterr().out == ""


def test_committed_rows_are_whole_and_of_one_kind():
    """Every committed row names its unit, and no unit stands there twice."""
    for path in results.folder().glob("*.jsonl"):
        rows = results.read(path)
        keys = [results.unit_key(row) for row in rows if "config_hash" in row]
        assert len(set(keys)) == len(keys), path.name
        for row in rows:
            assert results.plain_row(row) == row
            assert {"part", "experiment", "preset", "device", "torch", "version"} <= row.keys()
            assert row["preset"] not in ("smoke", "live"), path.name


def test_frame_has_a_column_per_key():
    table = results.frame([unit(0, loss=1.0), unit(1)])
    assert table["loss"].isna().tolist() == [False, True]


def test_select_is_exact_and_knows_the_columns():
    rows = [unit(0, k=1), unit(1, k=True), unit(2, k="1"), unit(3, k=2)]
    assert [row["seed"] for row in results.select(rows, k=1)] == [0]
    assert [row["seed"] for row in results.select(rows, k=[1, 2], seed=[0, 3])] == [0, 3]
    with pytest.raises(ResultError, match="no row has the column 'variant'; there are: config"):
        results.select(rows, variant="flt")
    assert results.select([], variant="flt") == []


# --- statistics -------------------------------------------------------------------------------


@given(st.lists(finite, min_size=2, max_size=12), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_mean_ci_agrees_with_scipy(values, level):
    interval = results.mean_ci(values, level)
    assert (interval.n, interval.level) == (len(values), level)
    assert interval.mean == pytest.approx(np.mean(values), abs=1e-9)
    error = scipy.stats.sem(values)
    if error > 1e-9:
        low, high = scipy.stats.t.interval(level, len(values) - 1, np.mean(values), error)
        assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-6, abs=1e-8)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    samples = np.random.default_rng(0).normal(3.0, 2.0, size=(2000, 4))
    covered = [abs(i.mean - 3.0) <= i.half_width for i in map(results.mean_ci, samples)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


def test_one_seed_has_no_interval_and_says_so():
    interval = results.mean_ci([1.25])
    assert interval.mean == 1.25
    assert math.isnan(interval.half_width)
    assert f"{interval:.2f}" == "1.25 (n = 1)"


def test_an_interval_prints_n():
    assert f"{Interval(1.234, 0.05, 5):.2f}" == "1.23 ± 0.05 (n = 5)"
    assert str(Interval(1.234, 0.05, 5)) == "1.23 ± 0.05 (n = 5)"


@pytest.mark.parametrize(
    ("values", "level", "message"),
    [([], 0.95, "empty"), ([1, math.nan], 0.95, "finite"), ([1, 2], 1.0, "between 0 and 1")],
)
def test_mean_ci_refuses(values, level, message):
    with pytest.raises(ValueError, match=message):
        results.mean_ci(values, level)


@given(st.lists(st.tuples(finite, finite), min_size=2, max_size=8), st.randoms())
def test_paired_difference_is_the_paired_t_interval(pairs, random):
    first = [{"seed": i, "loss": a} for i, (a, _) in enumerate(pairs)]
    second = [{"seed": i, "loss": b} for i, (_, b) in enumerate(pairs)]
    random.shuffle(second)  # the seed pairs them, not their order
    interval = results.paired_difference(first, second, "loss")
    a, b = np.array(pairs).T
    assert interval.mean == pytest.approx(np.mean(a - b), abs=1e-9)
    if np.std(a - b) > 1e-6:
        low, high = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
        assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-6, abs=1e-6)


def test_paired_difference_refuses_what_is_not_paired():
    two, three = [unit(s, loss=1.0) for s in range(2)], [unit(s, loss=1.0) for s in range(3)]
    with pytest.raises(ResultError, match=r"seeds of the sides differ: .*\[0, 1\].*\[0, 1, 2\]"):
        results.paired_difference(two, three, "loss")
    with pytest.raises(ResultError, match="second side has seed 0 twice"):
        results.paired_difference(two, [two[0], two[0]], "loss")
    with pytest.raises(ResultError, match="first side has no rows"):
        results.paired_difference([], two, "loss")
    with pytest.raises(ResultError, match="no column 'gain'"):
        results.paired_difference(two, two, "gain")


# --- quotations -------------------------------------------------------------------------------


@pytest.fixture
def committed(tmp_path, monkeypatch):
    """Rows of two variants at two depths with three seeds, in place of the book's."""
    monkeypatch.setattr("unrolled.results.rows.folder", lambda: tmp_path)
    for variant, base in (("original", 4.0), ("flt", 2.0)):
        for k in (6, 12):
            for seed in range(3):
                row = unit(
                    seed,
                    variant=variant,
                    num_loops=k,
                    loss=base + 0.1 * seed,
                    norms=[1.0, 10.0 * base],
                    collapsed=variant == "original" and seed > 0,
                    tokens=100 * (seed + 1),
                    missing=None if seed else 1.0,
                )
                row["config_hash"] = f"{variant}{k}"
                results.append(tmp_path / "demo_toy.jsonl", row)
    results.append(tmp_path / "demo_one.jsonl", unit(0, loss=0.417, zero=0.0, name="x"))
    return tmp_path


FLT = "variant=flt num_loops=12"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (f"demo_toy | mean loss | {FLT} | .2f", "2.10"),
        (f"demo.toy|mean   loss|{FLT}\n preset=laptop|.2f", "2.10"),
        (f"demo_toy | std loss | {FLT} | .1f", "0.1"),
        (f"demo_toy | min loss | {FLT} | .1f", "2.0"),
        (f"demo_toy | max loss | {FLT} | .1f", "2.2"),
        (f"demo_toy | median loss | {FLT} | .1f", "2.1"),
        (f"demo_toy | count loss | {FLT} | d", "3"),
        (f"demo_toy | max tokens | {FLT} | ,d", "300"),
        ("demo_toy | sum collapsed | variant=original num_loops=6 | d", "2"),
        (f"demo_toy | sum collapsed | {FLT} | d", "0"),
        ("demo_toy | mean collapsed | variant=original num_loops=6 | .0%", "67%"),
        (f"demo_toy | ci loss | {FLT} | .2f", "0.25"),
        (f"demo_toy | mean_ci loss | {FLT} | .2f", "2.10 ± 0.25"),
        (f"demo_toy | mean norms[-1] | {FLT} | .0f", "20"),
        (f"demo_toy | mean norms[0] | {FLT} | .0f", "1"),
        ("demo_toy | ratio norms[1] | variant=original~flt num_loops=12 | .1f", "2.0"),
        ("demo_toy | difference loss | variant=original~flt num_loops=12 | .1f", "2.0"),
        ("demo_toy | difference_ci loss | variant=original~flt num_loops=12 | .1f", "2.0 ± 0.0"),
        ("demo_toy | difference loss | variant=flt num_loops=12~6 | .1f", "0.0"),
        ("demo_toy | mean loss | variant=flt num_loops=12 seed=2 | .1f", "2.2"),
        ("demo_one | mean loss |  | .1%", "41.7%"),
        ("demo_one | mean_ci loss | seed=0 | .2f", "0.42 (n = 1)"),
    ],
)
def test_quote(committed, query, text):
    assert results.quote(query) == text


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("demo_toy | mean loss | .2f", "has 3 parts, not 4: FILE"),
        ("../demo | mean loss | | .2f", "not the name of a results file"),
        ("demo_no | mean loss | | .2f", r"no results file demo_no\.jsonl"),
        (f"demo_toy | average loss | {FLT} | .2f", "STAT one of mean, std"),
        (f"demo_toy | mean | {FLT} | .2f", "must be STAT METRIC"),
        ("demo_toy | mean loss | variant flt | .2f", "'variant' must have the form key=value"),
        ("demo_toy | mean loss | seed=1 seed=2 | .2f", "'seed' stands there twice"),
        ("demo_toy | mean loss | optimizer=muon | .2f", "no row has the column 'optimizer'"),
        ("demo_toy | mean loss | variant=flt num_loops=9 | .2f", "no row has variant=flt and num"),
        ("demo_toy | mean loss | variant=flt | .2f", "mixed; they differ in num_loops"),
        ("demo_toy | count loss | | d", "mixed; they differ in num_loops, variant"),
        (f"demo_toy | mean gain | {FLT} | .2f", "a row has no column 'gain'"),
        (f"demo_toy | mean loss[0] | {FLT} | .2f", "not a list"),
        (f"demo_toy | mean norms | {FLT} | .2f", "is not a number"),
        (f"demo_toy | mean norms[2] | {FLT} | .2f", "only 2 entries"),
        (f"demo_toy | mean loss.x | {FLT} | .2f", "must be NAME or NAME"),
        (
            f"demo_toy | mean missing | {FLT} | .2f",
            "missing of seed 1 is missing or was not finite",
        ),
        ("demo_one | mean name | | .2f", "'x' is not a number"),
        ("demo_one | std loss | | .2f", "needs at least two seeds"),
        ("demo_one | ratio loss | seed=0 | .2f", "condition of the form key=first~second"),
        ("demo_one | ratio zero | seed=0~0 | .2f", "zero, so a ratio has no meaning"),
        (f"demo_toy | mean loss | {FLT} | d", "format 'd' does not fit"),
        (f"demo_toy | mean loss | {FLT} | .2q", "format '.2q' does not fit"),
    ],
)
def test_quote_refuses_with_the_query_and_the_reason(committed, query, message):
    with pytest.raises(ResultError, match=message) as caught:
        results.quote(query)
    assert " ".join(query.split()) in str(caught.value)


def test_quote_refuses_a_seed_that_stands_twice(committed):
    results.append(committed / "demo_one.jsonl", unit(0, loss=0.5))
    with pytest.raises(ResultError, match=r"a seed appears twice among the rows: \[0, 0\]"):
        results.quote("demo_one | mean loss | | .2f")


# --- claims -----------------------------------------------------------------------------------


def sides(differences, gap=0.0):
    """Paired rows whose differences (flt minus original) are the given ones."""
    flt = [unit(s, variant="flt", loss=5.0 + d + gap) for s, d in enumerate(differences)]
    return flt + [unit(s, variant="original", loss=5.0) for s in range(len(differences))]


@pytest.mark.parametrize(
    ("differences", "kind"),
    [
        ([-1.0, -1.1, -0.9], "reproduced"),
        ([-1.0, -2.2, 0.2], "trend"),
        ([-1.0, -3.0, 1.0], "not seen"),  # the mean is within its standard error
        ([-1.0], "trend"),
        ([0.0, 0.0, 0.0], "not seen"),
        ([1.0, 1.1, 0.9], "not seen"),
    ],
)
def test_judge_difference_follows_the_interval(differences, kind):
    pair = {"variant": "flt"}, {"variant": "original"}
    lower = results.judge_difference("loss", *pair, expect="lower")
    verdict = lower(sides(differences))
    assert verdict.kind == kind
    assert f"n = {len(differences)}" in verdict.evidence
    higher = results.judge_difference("loss", *pair, expect="higher")
    assert higher(sides([-d for d in differences])).kind == kind


def test_judge_difference_by_a_margin():
    judge = results.judge_difference(
        "loss", {"variant": "flt"}, {"variant": "original"}, expect="lower", by=0.5
    )
    assert judge(sides([-1.0, -1.1, -0.9])).kind == "reproduced"
    assert judge(sides([-0.3, -0.31, -0.29])).kind == "not seen"
    assert judge([]).kind == "not attempted"
    with pytest.raises(ValueError, match="expect = 'less'"):
        results.judge_difference("loss", {}, {}, expect="less")


@pytest.mark.parametrize(
    ("differences", "kind"),
    [
        ([0.1, 0.11, 0.09], "reproduced"),  # worse, and by less than is allowed
        ([0.2, 0.35, 0.05], "trend"),
        ([0.4, 0.41, 0.39], "not seen"),
        ([-1.0, -1.1, -0.9], "reproduced"),
    ],
)
def test_judge_cost_allows_a_little(differences, kind):
    pair = {"variant": "flt"}, {"variant": "original"}
    lower = results.judge_cost("loss", *pair, expect="lower", allowance=0.3)
    assert lower(sides(differences)).kind == kind
    assert "0.3 allowed" in lower(sides(differences)).evidence
    higher = results.judge_cost("loss", *pair, expect="higher", allowance=0.3)
    assert higher(sides([-d for d in differences])).kind == kind
    with pytest.raises(ValueError, match="allowance = 0"):
        results.judge_cost("loss", *pair, expect="lower", allowance=0)


@pytest.mark.parametrize(
    ("collapsed", "expect", "kind"),
    [
        ([True] * 3, True, "reproduced"),
        ([True] * 2, True, "trend"),
        ([True, True, False], True, "trend"),
        ([True, False], True, "not seen"),
        ([False] * 3, True, "not seen"),
        ([False] * 3, False, "reproduced"),
        ([], True, "not attempted"),
    ],
)
def test_judge_share_counts_seeds(collapsed, expect, kind):
    rows = [unit(seed, collapsed=value) for seed, value in enumerate(collapsed)]
    verdict = results.judge_share("collapsed", {}, expect=expect)(rows)
    assert verdict.kind == kind
    if rows:
        assert f"{sum(collapsed)} of {len(collapsed)} seeds" in verdict.evidence


def test_comparison_table_judges_one_preset(committed):
    judge = results.judge_difference(
        "loss",
        {"variant": "flt", "num_loops": 12},
        {"variant": "original", "num_loops": 12},
        expect="lower",
    )
    query = f"demo_toy | mean_ci loss | {FLT} | .1f"
    claims = [
        Claim("looped", "FLT is better.", "38.44", query, judge),
        Claim("looped", "Nobody knows.", None, None, results.judge_share("unknown", {})),
    ]
    first, second = results.comparison_table("demo.toy", claims)
    assert first == {
        "paper": "looped",
        "claim": "FLT is better.",
        "paper_value": "38.44",
        "ours": "2.1 ± 0.2",
        "scale": "laptop, 3 seeds",
        "verdict": "reproduced",
        "evidence": first["evidence"],
    }
    assert "n = 3" in first["evidence"]
    assert (second["verdict"], second["ours"]) == ("not attempted", "")
    for table in (
        results.comparison_table("demo.toy", claims, preset="paper"),
        results.comparison_table("demo.none", claims),
        results.comparison_table("demo.toy", claims, rows=[]),
    ):
        assert [row["verdict"] for row in table] == ["not attempted"] * 2
        assert [row["ours"] for row in table] == ["", ""]


def test_a_verdict_is_one_of_four():
    with pytest.raises(ValueError, match="must be one of reproduced, trend, not seen"):
        Verdict("maybe", "")
