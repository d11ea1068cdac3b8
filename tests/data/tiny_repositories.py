"""Tiny repositories in the format of the hub: a README that names the tables, and parquet."""

from datasets import ClassLabel, Dataset, Features, Value

FILMS = ("a film of rare grace", "two hours of dust", "it sings", "it sinks", "no heart at all")


def write(folder, tables, config="default"):
    """Write tables by split, and the README that says which file is which split."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["---", "configs:", f"- config_name: {config}", "  data_files:"]
    for split, dataset in tables.items():
        dataset.to_parquet(str(folder / config / f"{split}-00000-of-00001.parquet"))
        lines += [f"  - split: {split}", f"    path: {config}/{split}-*"]
    (folder / "README.md").write_text("\n".join([*lines, "---", "A tiny copy.", ""]))
    return folder


def imdb(folder, train=200, test=40):
    """Write reviews as IMDb has them: the negative ones first."""
    names = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})

    def reviews(part, count):
        texts = [f"{FILMS[i % 5]}, {part} {i}" for i in range(count)]
        labels = [int(i >= count // 2) for i in range(count)]
        return Dataset.from_dict({"text": texts, "label": labels}, features=names)

    tables = {"train": reviews("train", train), "test": reviews("test", test)}
    tables["unsupervised"] = reviews("unsupervised", 4)
    return write(folder, tables, "plain_text")


def mnli(folder, premises=120):
    """Write pairs as GLUE has them, with -1 where the label is secret."""
    classes = ClassLabel(names=["entailment", "neutral", "contradiction"])
    kinds = {"premise": Value("string"), "hypothesis": Value("string"), "label": classes}
    features = Features({**kinds, "idx": Value("int32")})

    def pairs(part, count, secret=False):
        rows = [(f"premise {part} {i // 3}", f"hypothesis {i}", i % 3) for i in range(count)]
        columns = dict(zip(kinds, map(list, zip(*rows, strict=True)), strict=True))
        if secret:
            columns["label"] = [-1] * count
        return Dataset.from_dict({**columns, "idx": list(range(count))}, features=features)

    tables = {"train": pairs("train", 3 * premises)}
    for genre in ("matched", "mismatched"):
        tables[f"validation_{genre}"] = pairs(genre, 9)
        tables[f"test_{genre}"] = pairs(genre, 3, secret=True)
    return write(folder, tables, "mnli")


def corpus(folder, texts, splits=("train",), config="default", **columns):
    """Write documents with the column text, some to each split in turn."""
    tables = {}
    for number, split in enumerate(splits):
        chosen = list(texts[number :: len(splits)])
        more = {name: [value] * len(chosen) for name, value in columns.items()}
        tables[split] = Dataset.from_dict({"text": chosen, **more})
    return write(folder, tables, config)
