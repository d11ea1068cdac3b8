"""The project's own promises: pins agree, addresses agree, the folder holds what it should."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
TOP_LEVEL = {
    *("book", "notebooks", "src", "data_scripts", "tests"),
    *("_config.yml", "_toc.yml", "environment.yml", "README.md"),
    *("pyproject.toml", "requirements.lock", "Makefile", "LICENSE", "CITATION.cff"),
    *(".ci", ".github", ".gitignore"),
}


def lock() -> dict[str, set[str]]:
    """Return the pinned versions by normalised name."""
    pins: dict[str, set[str]] = {}
    for line in (ROOT / "requirements.lock").read_text("utf8").splitlines():
        if line and not line.startswith("#"):
            name, version = re.fullmatch(r"([\w.\-]+)==([^\s;]+)(?:\s*;.*)?", line).groups()
            pins.setdefault(normalise(name), set()).add(version)
    return pins


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    return listed.stdout.splitlines()


def test_top_level_holds_only_what_was_asked_for_and_what_tools_insist_on():
    assert {path.split("/")[0] for path in tracked()} <= TOP_LEVEL


def test_environment_yml_agrees_with_the_lock():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text("utf8"))["dependencies"]
    pip = next(entry["pip"] for entry in dependencies if isinstance(entry, dict))
    pins = dict(line.split("==") for line in pip if "==" in line)
    assert len(pins) > 10
    for name, version in pins.items():
        assert version in lock()[normalise(name)], f"{name}=={version} is not in requirements.lock"


def test_every_dependency_is_locked_within_its_range():
    from packaging.requirements import Requirement

    extras = PROJECT["optional-dependencies"].values()
    for text in [*PROJECT["dependencies"], *(entry for extra in extras for entry in extra)]:
        requirement = Requirement(text)
        versions = lock()[normalise(requirement.name)]
        assert all(version in requirement.specifier for version in versions), text


def test_run_time_dependencies_have_lower_bounds_only():
    for text in PROJECT["dependencies"]:
        assert re.fullmatch(r"[\w\-]+>=[\d.]+", text), f"{text} would pin a reader's Colab"


def test_the_lock_has_torch_for_both_processors():
    assert len(lock()["torch"]) == len(lock()["torchvision"]) == 2


def test_citation_follows_the_address_in_pyproject():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    assert citation["url"] == PROJECT["urls"]["Book"]
    assert citation["version"] == PROJECT["version"]
    assert len(citation["references"]) == 3


def test_readme_installs_from_the_address_in_pyproject():
    readme = (ROOT / "README.md").read_text("utf8")
    assert f'pip install "unrolled @ git+{PROJECT["urls"]["Repository"]}"' in readme


def test_version_is_the_same_in_package_and_project():
    import unrolled

    assert unrolled.__version__ == PROJECT["version"]


def test_the_repository_address_is_typed_in_one_place():
    address = PROJECT["urls"]["Repository"]
    generated = {"CITATION.cff", "README.md", "pyproject.toml", "book/index.md"}
    for path in tracked():
        if path in generated or path.endswith(".ipynb") or not (ROOT / path).is_file():
            continue
        if Path(path).suffix in (".py", ".md", ".yml", ".yaml", ".toml", ".cff"):
            assert address not in (ROOT / path).read_text("utf8"), path


@pytest.mark.parametrize("python", ["/no/such/python", "a python"])
def test_a_missing_prerequisite_gives_one_clear_line(tmp_path, python):
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text("utf8"), "utf8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(
        ["make", "book", f"PYTHON={python}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert told == [line for line in told if "Python 3.11 or newer is missing" in line]
    assert len(told) == 1
    assert python in told[0]


def test_pdf_reads_the_pages_in_the_order_of_the_contents():
    import sys

    sys.path.insert(0, str(ROOT / "book" / "tools"))
    from print_book import documents

    listed = re.findall(r"(?:root|file): (\S+)", (ROOT / "_toc.yml").read_text("utf8"))
    assert documents() == listed
