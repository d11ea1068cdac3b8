"""Several workers: the tests of one file go to one of them, which makes what they share once."""

from __future__ import annotations

import pytest

collect_ignore = ["conftest.py"]  # tests/book has one, too: no search for doctests imports both

# Long tests that share little: any worker takes the next of them.
APART = {"tests/notebooks/test_colab.py"}


def unit_of(test: str) -> str:
    """Return what a test is sent to a worker with: its file, or nothing else."""
    file = test.partition("::")[0]
    return test if file in APART else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Group by file where groups are asked for.

    Under pytest 9.2, `--dist loadgroup` of pytest-xdist 3.8 loses its groups and sends each test
    alone: every worker then builds each fixture of a module, loads each model, opens each page.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return Files(config, log)
