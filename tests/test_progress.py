"""Progress: one honest line, also for units that run side by side."""

import io

import pytest

from unrolled.progress import ProgressLine


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_time_left_counts_parts_of_units_that_run_side_by_side(clock):
    with ProgressLine(4, shown=False, clock=clock) as line:
        assert line.seconds_left() is None
        clock.now = 10.0
        line.report(0, 5, 10)
        line.report(1, 1, 2)
        assert line.seconds_left() == pytest.approx(30.0)  # one unit's worth in 10 s, 3 to go
        line.finish(0, "")
        line.finish(1, "")
        assert line.seconds_left() == pytest.approx(10.0)
        assert line.finished == 2


def test_progress_never_runs_backwards_or_beyond(clock):
    with ProgressLine(2, shown=False, clock=clock) as line:
        clock.now = 1.0
        line.report(0, 3, 4)
        line.report(0, 1, 4)
        assert line.parts[0] == 0.75
        line.report(0, 9, 4)
        line.report(0, 1, 0)
        assert line.parts[0] == 1.0


def test_a_log_gets_one_line_per_finished_unit(capsys, clock):
    with ProgressLine(2, plain=True, clock=clock) as line:
        clock.now = 60.0
        line.report(0, 1, 2)
        line.finish(0, "seed=0")
    assert capsys.readouterr().err == "[1/2] seed=0, 1 min 0 s gone, about 1 min 0 s left\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_one_line(monkeypatch, clock):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.setattr("sys.stderr", screen := Terminal())
    with ProgressLine(2, plain=True, clock=clock) as line:
        for i in range(2):
            clock.now += 30.0
            line.finish(i, "seed")
    text = screen.getvalue()
    assert text.count("\n") <= 1
    assert "\r" in text


@pytest.mark.parametrize("why", ["asked", "no terminal", "TQDM_DISABLE"])
def test_silence(monkeypatch, capsys, why, clock):
    if why == "TQDM_DISABLE":
        monkeypatch.setenv("TQDM_DISABLE", "1")
        monkeypatch.setattr("sys.stderr", Terminal())
    with ProgressLine(1, shown=False if why == "asked" else None, clock=clock) as line:
        line.finish(0, "seed")
    assert capsys.readouterr().err == ""
