"""The tool behind `make results`: which commands make rows again, and what differs."""

import remake_results
from remake_results import commands, differences, remakable

RUN = "python -m unrolled run demo.toy --preset laptop --seeds 0"


def row(seed, command=RUN, **columns):
    unit = {"experiment": "demo.toy", "preset": "laptop", "seed": seed, "config_hash": "a"}
    return {**unit, "command": command, "loss": 1.0, **columns}


def test_rows_of_one_preset_are_made_together(tmp_path):
    (command,) = commands([row(0), row(1)], tmp_path / "out.jsonl", jobs=2)
    assert command[1:6] == ["-m", "unrolled", "run", "demo.toy", "--preset"]
    assert command[command.index("--seeds") + 1] == "0,1"


def test_a_row_with_settings_of_its_own_is_made_by_its_own_command(tmp_path):
    own = row(0, f"{RUN} --cases rate=0.03 --set rates=0.03")
    together, apart = commands([row(0), own], tmp_path / "out.jsonl", jobs=1)
    assert "--set" not in together
    assert apart[apart.index("--set") + 1] == "rates=0.03"
    assert apart[-2:] == ["--output", str(tmp_path / "out.jsonl")]


def test_differences_name_the_columns():
    assert differences([row(0)], [row(0, seconds=9.0)]) == []
    assert differences([row(0)], [row(0, loss=2.0)]) == [f"differs in loss: {RUN}"]
    assert differences([row(0)], [row(1)]) == [f"not made again: {RUN}"]


def test_times_are_not_expected_to_come_out_the_same(tmp_path):
    for name in ("looped_depth", "looped_bench"):
        (tmp_path / f"{name}.jsonl").touch()
    assert [path.stem for path in remakable(tmp_path)] == ["looped_depth"]


def test_the_sources_have_a_name_of_their_own():
    assert len(remake_results.state_of_sources()) == 12
