"""The Colab copy: every construct becomes plain Markdown, with the numbers of the built page."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import project
import pytest
from colab_copy import colab_copy, convert, setup_source, write_text
from index import BookError, Index, Target, build_index, read_notebook
from IPython.core.inputtransformer2 import TransformerManager
from plain_inline import Context

from unrolled import hardware

ROOT = Path(__file__).parents[2]
EVERYTHING = "notebooks/part/everything"
BOOK = "https://someone.github.io/mini"
RAW = "https://raw.githubusercontent.com/someone/mini/main"


def quote(query: str) -> str:
    """Stand in for the committed rows."""
    if not query.startswith("rows | mean loss"):
        raise ValueError("no such row")
    return "1.23"


@pytest.fixture(scope="module")
def index(mini: Path) -> Index:
    return build_index(mini)


@pytest.fixture
def context(index: Index, mini: Path) -> Context:
    return Context(index, EVERYTHING, quote, mini)


@pytest.fixture(scope="module")
def copy(index: Index, mini: Path) -> nbformat.NotebookNode:
    return colab_copy(mini / f"{EVERYTHING}.py", index, quote, mini)


# --- Constructs -----------------------------------------------------------------------------

BIB = f"{BOOK}/book/bibliography.html"
INLINE = {
    "{eq}`eq-everything`": "[Eq. (2.1)](#eq-everything)",
    "{eq}`eq-first`": f"[Eq. (1.1)]({BOOK}/book/first.html#equation-eq-first)",
    "{eq}`eq-nested`": f"[Eq. (1.4)]({BOOK}/book/nested.html#equation-eq-nested)",
    "$a\n= b$": "$a = b$",
    "{numref}`fig-everything`": "[Fig. 2.1](#fig-everything)",
    "{numref}`Picture %s <fig-square>`": "[Picture 2.2](#fig-square)",
    "{numref}`nested-section`": f"[Section 1.3.1]({BOOK}/book/nested.html#nested-section)",
    "{numref}`first`": f"[Chapter 1]({BOOK}/book/first.html#first)",
    "{ref}`first`": f"[The first chapter]({BOOK}/book/first.html#first)",
    "{ref}`the *page* <nested>`": f"[the *page*]({BOOK}/book/nested.html#nested)",
    "{ref}`ex-everything`": "[Exercise 2.1](#ex-everything)",
    "{prf:ref}`th-everything`": "[Theorem 2.1](#th-everything)",
    "{doc}`/book/first`": f"[The first chapter]({BOOK}/book/first.html)",
    "{doc}`here <second>`": f"[here]({BOOK}/notebooks/part/second.html)",
    "{term}`fixed point`": f"[fixed point]({BOOK}/book/glossary.html#term-Fixed-point)",
    "{term}`points <Fixed point>`": f"[points]({BOOK}/book/glossary.html#term-Fixed-point)",
    "{cite:t}`many2022`": f"[Ek et al. (2022)]({BIB})",
    "{cite:p}`one2020,two2021`": f"([van der Berg, 2020]({BIB}); [Müller and Chen, 2021]({BIB}))",
    "{py:func}`~unrolled.results.quote`": (
        f"[`quote()`]({BOOK}/book/api.html#unrolled.results.quote)"
    ),
    "{py:mod}`unrolled.results`": (
        f"[`unrolled.results`]({BOOK}/book/api.html#module-unrolled.results)"
    ),
    "{py:class}`torch.nn.Module`": "`torch.nn.Module`",
    "{result}`rows | mean loss | a=b | .2f`": "1.23",
    "{math}`x^2`": "$x^2$",
    "{sub}`a` {sup}`b` {kbd}`C`": "<sub>a</sub> <sup>b</sup> <kbd>C</kbd>",
    "[a page](../../book/first.md#x)": f"[a page]({BOOK}/book/first.html#x)",
    "[a file](/pyproject.toml)": (
        "[a file](https://github.com/someone/mini/blob/main/pyproject.toml)"
    ),
    "[out](https://example.org/a_(b))": "[out](https://example.org/a_(b))",
    "![p](../../book/assets/square.svg)": f"![p]({RAW}/book/assets/square.svg?sanitize=true)",
    "`{eq}` and `` {eq}`eq-first` `` and $a_{eq}`b$": (
        "`{eq}` and `` {eq}`eq-first` `` and $a_{eq}`b$"
    ),
    "two words in\none {ref}`long\ntext <first>`": (
        f"two words in\none [long text]({BOOK}/book/first.html#first)"
    ),
}


@pytest.mark.parametrize("myst", INLINE, ids=list(INLINE))
def test_inline(myst: str, context: Context):
    assert convert(myst, context) == INLINE[myst]


BLOCKS = {
    "equation": (
        "Text.\n\n$$\nx\n$$ (eq-everything)\n\nMore.",
        'Text.\n\n<a id="eq-everything"></a>\n\n$$\nx\n\\tag{2.1}\n$$\n\nMore.',
    ),
    "equation without label": ("$$\nx\n$$", "$$\nx\n$$"),
    "target": ("(everything)=\n# T", '<a id="everything"></a>\n\n# T'),
    "comment": ("a\n\n% secret\n\nb", "a\n\nb"),
    "admonition": (":::{note}\nIt is\nso.\n:::", "> **Note**\n>\n> It is\n> so."),
    "titled": (":::{admonition} On $x$\n:class: tip\n\nSo.\n:::", "> **On $x$**\n>\n> So."),
    "equation in admonition stays on one line": (
        ":::{tip}\n$$\na\n= b\n$$ (eq-in-note)\n:::",
        '> **Tip**\n>\n> <a id="eq-in-note"></a>\n>\n> $$a = b \\tag{2.2}$$',
    ),
    "dropdown": (
        ":::{admonition} More `x`\n:class: dropdown\nSo.\n:::",
        "<details>\n<summary>More <code>x</code></summary>\n\nSo.\n\n</details>",
    ),
    "nested": (
        "::::{note}\nOuter.\n\n:::{tip}\nInner.\n:::\n::::",
        "> **Note**\n>\n> Outer.\n>\n> > **Tip**\n> >\n> > Inner.",
    ),
    "in a list": (
        "- a\n\n  :::{note}\n  b\n  :::\n- c",
        "- a\n\n  > **Note**\n  >\n  > b\n\n- c",
    ),
    "theorem": (
        ":::{prf:theorem} Growth\n:label: th-everything\n\nSo.\n:::",
        '<a id="th-everything"></a>\n\n> **Theorem 2.1** (Growth)\n>\n> So.',
    ),
    "proof": (":::{prf:proof}\nClear.\n:::", "> **Proof.**\n>\n> Clear."),
    "exercise": (
        ":::{exercise} Predict: $1$\n:label: ex-everything\n\nGo.\n:::",
        '<a id="ex-everything"></a>\n\n**Exercise 2.1** (Predict: $1$)\n\nGo.',
    ),
    "solution": (
        ":::{solution} ex-everything\n:class: dropdown\n\n```python\nx = 1\n```\n:::",
        "<details>\n<summary>Solution</summary>\n\n```python\nx = 1\n```\n\n</details>",
    ),
    "figure": (
        ":::{figure} /book/assets/square.svg\n:name: fig-square\n"
        ':alt: A "B"\n:width: 5%\n\nCap.\n:::',
        f'<a id="fig-square"></a>\n\n<img src="{RAW}/book/assets/square.svg?sanitize=true" '
        'alt="A &quot;B&quot;" width="5%">\n\n*Fig. 2.2: Cap.*',
    ),
    "table": (
        ":::{table} Two\n:name: tab-two\n\n| a |\n|---|\n| {eq}`eq-first` |\n:::",
        '<a id="tab-two"></a>\n\n*Table 2.1: Two*\n\n| a |\n|---|\n'
        f"| [Eq. (1.1)]({BOOK}/book/first.html#equation-eq-first) |",
    ),
    "code": (
        '```{code-block} python\nx = ":::{note}"\n```',
        '```python\nx = ":::{note}"\n```',
    ),
    "code is left alone": (
        "```python\n{eq}`x`\n\n\n:::{note}\n```",
        "```python\n{eq}`x`\n\n\n:::{note}\n```",
    ),
    "escaped bars in a table": (
        "| a |\n|---|\n| {result}`rows \\| mean loss \\| x=1 \\| .2f` |",
        "| a |\n|---|\n| 1.23 |",
    ),
    "quote": ("> By {eq}`eq-everything`.", "> By [Eq. (2.1)](#eq-everything)."),
}


@pytest.mark.parametrize("name", BLOCKS, ids=list(BLOCKS))
def test_block(name: str, context: Context):
    myst, plain = BLOCKS[name]
    assert convert(myst, context) == plain


WRONG = {
    "unknown equation": ("{eq}`eq-none`", "'eq-none'"),
    "equation where a figure is": ("{eq}`fig-square`", "'fig-square'"),
    "theorem with {ref}": ("{ref}`th-everything`", "'th-everything'"),
    "equation with {numref}": ("{numref}`eq-everything`", "'eq-everything'"),
    "exercise with {prf:ref}": ("{prf:ref}`ex-everything`", "'ex-everything'"),
    "unknown label": ("{ref}`none`", "'none'"),
    "no number": ("{numref}`eq-unnumbered`", "'eq-unnumbered'"),
    "unknown page": ("{doc}`/book/none`", "book/none"),
    "unknown term": ("{term}`none`", "'none'"),
    "unknown citation": ("{cite:t}`none1999`", "'none1999'"),
    "unknown module": ("{py:func}`unrolled.none.f`", "no such module"),
    "no row": ("{result}`other | mean loss | | .2f`", "no such row"),
    "unknown role": ("{bogus}`x`", "{bogus}"),
    "unknown directive": (":::{bogus}\nx\n:::", "{bogus}"),
    "missing image": ("![x](none.png)", "none.png"),
    "missing file": ("[x](none.md)", "none.md"),
    "solution of nothing": (":::{solution} ex-none\nx\n:::", "'ex-none'"),
    "bare environment": ("\\begin{align}\na\n\\end{align}", "write $$"),
    "definition list": ("a\n: b", "definition list"),
    "footnote": ("text[^1]\n\n[^1]: note", "footnote"),
    "equation inside a paragraph": ("text\n$$\nx\n$$ (eq-everything)", "not converted"),
    "attributes": ("![x](/book/assets/square.svg){width=5%}", "not converted"),
    "fence without braces": ("::: note\nx\n:::", "without braces"),
}


@pytest.mark.parametrize("name", WRONG, ids=list(WRONG))
def test_what_has_no_plain_form_is_an_error(name: str, context: Context):
    myst, message = WRONG[name]
    with pytest.raises(BookError, match=re.escape(message)):
        convert(myst, context)


def test_label_used_twice_is_an_error(mini_copy: Path):
    page = mini_copy / "book" / "before.md"
    page.write_text(page.read_text() + "\n$$\nx\n$$ (eq-first)\n")
    with pytest.raises(BookError, match="eq-first"):
        build_index(mini_copy)


# --- The whole copy -------------------------------------------------------------------------


def test_error_names_file_and_cell(mini_copy: Path, index: Index):
    source = mini_copy / f"{EVERYTHING}.py"
    source.write_text(source.read_text().replace("{eq}`eq-first`", "{eq}`eq-lost`"))
    with pytest.raises(BookError, match=r"everything\.py, cell 1: .*eq-lost"):
        colab_copy(source, index, quote, mini_copy)


def test_copy_is_valid_and_without_outputs(copy: nbformat.NotebookNode):
    nbformat.validate(copy)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in copy.cells)
    ids = [cell.id for cell in copy.cells]
    assert len(set(ids)) == len(ids)


def test_no_myst_is_left(copy: nbformat.NotebookNode):
    texts = [cell.source for cell in copy.cells if cell.cell_type == "markdown"]
    verbatim = r"```.*?```|``.*?``|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$"
    text = re.sub(verbatim, "", "\n\n".join(texts), flags=re.DOTALL)
    for pattern in (r":::", r"\{[a-z:]+\}", r"^\(.*\)=$", r"\$\$ *\(", r"^%"):
        assert not re.search(pattern, text, re.MULTILINE), pattern


def test_copy_is_the_same_every_time(copy: nbformat.NotebookNode, mini: Path):
    again = colab_copy(mini / f"{EVERYTHING}.py", build_index(mini), quote, mini)
    assert write_text(again) == write_text(copy)


def test_new_cell_changes_no_other_id(copy: nbformat.NotebookNode, mini_copy: Path, index: Index):
    source = mini_copy / f"{EVERYTHING}.py"
    source.write_text(source.read_text() + "\n# %%\nnew = 1\n")
    longer = colab_copy(source, index, quote, mini_copy)
    assert [cell.id for cell in longer.cells[:-1]] == [cell.id for cell in copy.cells]


def test_equal_cells_have_different_ids(mini_copy: Path, index: Index):
    source = mini_copy / f"{EVERYTHING}.py"
    source.write_text(source.read_text() + "\n# %%\nnew = 1\n" * 3)
    cells = colab_copy(source, index, quote, mini_copy).cells
    assert len({cell.id for cell in cells}) == len(cells)


def test_code_is_the_sources_code(copy: nbformat.NotebookNode, mini: Path):
    source = read_notebook(mini / f"{EVERYTHING}.py")
    ours = [cell.source for cell in source.cells if cell.cell_type == "code"]
    theirs = [
        cell.source
        for cell in copy.cells
        if cell.cell_type == "code" and "colab-setup" not in cell.metadata.get("tags", [])
    ]
    assert theirs == ours


def test_set_up_cell_comes_right_before_the_imports(copy: nbformat.NotebookNode):
    tags = [cell.metadata.get("tags", []) for cell in copy.cells if cell.cell_type == "code"]
    assert tags[:3] == [["colab-setup"], ["setup"], ["parameters"]]


def test_badges_stand_below_the_title(copy: nbformat.NotebookNode):
    lines = [line for line in copy.cells[0].source.split("\n") if line]
    assert lines[1] == "# Everything with $x$"
    assert (
        f"(https://colab.research.google.com/github/someone/mini/blob/main/{EVERYTHING}.ipynb)"
        in (lines[2])
    )
    assert f"({BOOK}/{EVERYTHING}.html)" in lines[2]


def test_caption_of_a_drawn_figure_follows_its_cell(copy: nbformat.NotebookNode):
    position = next(i for i, cell in enumerate(copy.cells) if "plt.show()" in cell.source)
    assert copy.cells[position + 1].source == (
        '<a id="fig-everything"></a>\n\n'
        "_Fig. 2.1: A *line* with $y$, see [Eq. (2.1)](#eq-everything)._"
    )


# --- The set-up cell ------------------------------------------------------------------------


class Shell:
    """Stands in for IPython and notes its magics."""

    def __init__(self):
        self.calls: list[str] = []

    def run_line_magic(self, name: str, line: str, **_: object) -> None:
        self.calls.append(f"{name} {line}")


def run_setup(monkeypatch: pytest.MonkeyPatch, mini: Path, *, on_colab: bool) -> list[str]:
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    if on_colab:
        monkeypatch.setitem(sys.modules, "google.colab", object())
    shell = Shell()
    code = TransformerManager().transform_cell(setup_source(mini))
    exec(compile(code, "setup", "exec"), {"get_ipython": lambda: shell})
    return shell.calls


def test_set_up_cell_installs_on_colab_alone(monkeypatch, mini, capsys):
    assert run_setup(monkeypatch, mini, on_colab=False) == []
    told = capsys.readouterr().out
    assert re.fullmatch(r"unrolled \d.*, torch \d.*, numpy \d.*; running on .*\n", told)


@pytest.mark.parametrize(
    ("device", "told"),
    [
        (hardware.CPU, 'PRESET = "live" suits it: there is no GPU. The cell of'),
        (hardware.Hardware("Tesla T4", (7, 5), 15.8e9), '"colab" suits it, mixed_precision fp16:'),
        (hardware.Hardware("NVIDIA L4", (8, 9), 23.8e9), '"colab" suits it, mixed_precision bf16:'),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_set_up_cell_picks_the_preset_for_the_hardware(monkeypatch, mini, capsys, device, told):
    monkeypatch.setattr(hardware, "found", lambda: device)
    run_setup(monkeypatch, mini, on_colab=True)
    said = capsys.readouterr().out
    assert f"running on {device}\n" in said
    assert told in said


def test_set_up_cell_leaves_torch_and_numpy_alone(monkeypatch, mini):
    package, others = run_setup(monkeypatch, mini, on_colab=True)
    assert "--no-deps" in package
    assert package.endswith('"unrolled @ git+https://github.com/someone/mini"')
    words = others.split()
    assert words[-2:] == ["pooch", "tqdm"]
    kept = [word for word in words if "torch" in word or "numpy" in word]
    assert kept == ["\"torch=={version('torch')}\"", "\"numpy=={version('numpy')}\""]


def add_extra(root: Path) -> None:
    file = root / "pyproject.toml"
    extra = '\n[project.optional-dependencies]\ndata = ["av>=14.0", "gguf>=0.10"]\n'
    file.write_text(file.read_text() + extra)


def with_packages(root: Path, packages: str) -> Path:
    """Return the notebook, after its set-up cell has named the packages."""
    source = root / f"{EVERYTHING}.py"
    text, count = re.subn(
        r'(# %% tags=\["setup".*\])', rf"\1 packages={packages}", source.read_text()
    )
    assert count == 1
    source.write_text(text)
    return source


def test_chapter_names_the_packages_that_it_needs(mini_copy: Path, index: Index):
    add_extra(mini_copy)
    source = with_packages(mini_copy, '["gguf"]')
    cells = colab_copy(source, index, quote, mini_copy).cells
    setup = next(cell for cell in cells if "colab-setup" in cell.metadata.get("tags", []))
    assert '"gguf>=0.10"' in setup.source
    assert "av>=" not in setup.source
    assert '"gguf>=0.10"' not in setup_source(mini_copy)


def test_unknown_package_is_an_error(mini_copy: Path, index: Index):
    add_extra(mini_copy)
    source = with_packages(mini_copy, '["gguff"]')
    with pytest.raises(BookError, match=r"gguff.*allowed: av, gguf"):
        colab_copy(source, index, quote, mini_copy)


def test_addresses_follow_pyproject(mini_copy: Path):
    file = mini_copy / "pyproject.toml"
    file.write_text(file.read_text().replace("someone/mini", "else/where"))
    assert "git+https://github.com/else/where" in setup_source(mini_copy)
    assert "/else/where/blob/" in project.colab_url("a/b", mini_copy)


# --- The numbers ----------------------------------------------------------------------------


def built_number(html: str, target: Target) -> str | None:
    """Return the number that a built page prints at a target."""
    before = r'eqno">\(|caption-number">[^<\d]*|section-number">'
    match = re.search(rf'id="{target.anchor}".*?(?:{before})([\d.]*\d)', html, re.DOTALL)
    return match[1] if match else None


def numbered(index: Index) -> list[Target]:
    """Return the targets which have both number and anchor."""
    return [target for target in index.targets.values() if target.number and target.anchor]


def differences(index: Index, html: Path) -> list[str]:
    """Return where our number is not the one on the page."""
    pages = {t.docname: (html / f"{t.docname}.html").read_text("utf8") for t in numbered(index)}
    found = ((t, built_number(pages[t.docname], t)) for t in numbered(index))
    return [f"{t.label}: ours {t.number_text}, page {n}" for t, n in found if n != t.number_text]


JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"


def links(root: Path) -> set[tuple[str, str]]:
    """Return page and fragment of every link from the Colab copies to the online book."""
    book = re.escape(project.project_urls(root)["book"])
    pattern = re.compile(rf'{book}/([^)#"\s\\]+)(?:#([^)"\s\\]+))?')
    texts = [path.read_text("utf8") for path in root.glob("notebooks/*/*.ipynb")]
    return {match for text in texts for match in pattern.findall(text)}


def dead_links(root: Path, html: Path) -> list[str]:
    """Return the links which lead nowhere."""
    dead = []
    for page, fragment in sorted(links(root)):
        text = (html / page).read_text("utf8") if (html / page).is_file() else ""
        if not text or (fragment and f'id="{fragment}"' not in text):
            dead.append(f"{page}#{fragment}")
    return dead


@pytest.mark.slow
def test_numbers_are_those_of_sphinx(mini_copy: Path, index: Index):
    for source in sorted(mini_copy.glob("notebooks/part/*.py")):
        notebook = read_notebook(source)
        for cell in notebook.cells:
            if "mystnb" in cell.metadata:  # a page numbers only pictures that are there
                shutil.copy(mini_copy / "book/assets/square.svg", source.parent)
                svg = (mini_copy / "book/assets/square.svg").read_text()
                cell.outputs = [nbformat.v4.new_output("display_data", {"image/svg+xml": svg})]
        nbformat.write(notebook, source.with_suffix(".ipynb"))
        source.unlink()
    command = [sys.executable, "-c", JUPYTER_BOOK, "build", ".", "-q"]
    build = subprocess.run(command, cwd=mini_copy, capture_output=True, text=True, timeout=200)
    assert build.returncode == 0, build.stderr
    assert differences(index, mini_copy / "_build" / "html") == []


@pytest.fixture
def built() -> Path:
    """Return the built site, if it is newer than its sources."""
    html = ROOT / "_build" / "html"
    sources = [*ROOT.glob("notebooks/*/*.py"), *ROOT.glob("book/*.md"), ROOT / "_toc.yml"]
    if not (html / "index.html").is_file():
        pytest.skip("there is no _build/html; `make book` builds it")
    if any(path.stat().st_mtime > (html / "searchindex.js").stat().st_mtime for path in sources):
        pytest.skip("_build/html is older than its sources; `make book` builds it anew")
    return html


def test_numbers_are_those_of_the_built_book(built: Path):
    assert differences(build_index(ROOT), built) == []


def test_links_of_the_copies_lead_to_pages_of_the_built_book(built: Path):
    assert dead_links(ROOT, built) == []
