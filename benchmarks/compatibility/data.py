"""Tiny data for the scripts, made from a seed: python data.py KIND FOLDER, with the interpreter of the trial."""

from __future__ import annotations

import json
import pickle
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np

ADJECTIVES, NOUNS = ["small", "red", "blue", "old"], ["cat", "dog", "bird", "tree", "house", "river"]
WORDS = ["the", "a", "sees", "finds", "likes", "makes", "near", "under", "over", "and", *ADJECTIVES, *NOUNS]

METRIC = '''"""Accuracy, in the place of the published metric, which would be downloaded."""

import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        kinds = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="accuracy", citation="", inputs_description="", features=kinds)

    def _compute(self, predictions, references):
        return {"accuracy": sum(p == r for p, r in zip(predictions, references)) / len(references)}
'''


def sentences(number: int, rng: np.random.Generator) -> list[str]:
    """Random word sequences."""
    return [" ".join(rng.choice(WORDS, int(rng.integers(4, 10)))) for _ in range(number)]


def digits(folder: Path, train: int, test: int) -> None:
    """MNIST's four files: each class is a bright square in a place of its own, with noise."""
    rng = np.random.default_rng(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, number in (("train", train), ("t10k", test)):
        labels = rng.integers(0, 10, number).astype(np.uint8)
        images = rng.integers(0, 60, (number, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            row, column = 3 + 12 * (int(label) // 5), 1 + 5 * (int(label) % 5)
            image[row : row + 9, column : column + 5] += 180
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, number, 28, 28) + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, number) + labels.tobytes())


def mnist(folder: Path) -> None:
    """320 training digits and 100 more."""
    digits(folder, 320, 100)


def mnist_in_data(folder: Path) -> None:
    """The same in a folder `data`, 192 and 50 of them."""
    digits(folder / "data", 192, 50)


def pictures(folder: Path, where: str, size: int, number: int) -> None:
    """Folders of random PNG files, one folder a class."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in ("first", "second"):
        place = folder / where / label
        place.mkdir(parents=True)
        for index in range(number):
            coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8))
            coarse.resize((size, size)).save(place / f"image_{index + 1:04d}.png")


def images(folder: Path) -> None:
    """An ImageFolder of 208 pictures of 64 x 64."""
    pictures(folder, "images", 64, 104)


def caltech(folder: Path) -> None:
    """Caltech101's folders with two classes of JPEG files."""
    from PIL import Image

    pictures(folder, "data/caltech101/101_ObjectCategories", 64, 16)
    for path in folder.rglob("*.png"):
        Image.open(path).save(path.with_suffix(".jpg"))
        path.unlink()
    for place in ("Annotations", "101_ObjectCategories/BACKGROUND_Google"):
        (folder / "data/caltech101" / place).mkdir()


def names(folder: Path) -> None:
    """One text file a language, made of its own syllables."""
    rng = np.random.default_rng(0)
    syllables = {"Alpha": ["ka", "ro", "mi"], "Beta": ["stein", "burg", "hof"], "Gamma": ["ez", "ado", "illo"]}
    (folder / "names").mkdir(parents=True)
    for language, parts in syllables.items():
        lines = ["".join(rng.choice(parts, int(rng.integers(2, 4)))) for _ in range(80)]
        (folder / "names" / f"{language}.txt").write_text("\n".join(lines) + "\n")


def cora(folder: Path) -> None:
    """A citation graph in the two files of Cora: 1,700 nodes with 24 features, 7 classes; and their archive."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 7, 1700)
    features = (rng.random((1700, 24)) < 0.1).astype(int)
    features[np.arange(1700), labels] = 1
    place = folder / "cora"
    place.mkdir(parents=True)
    rows = (
        f"{i} {' '.join(map(str, row))} class{label}"
        for i, (row, label) in enumerate(zip(features, labels, strict=True))
    )
    (place / "cora.content").write_text("\n".join(rows) + "\n")
    edges = rng.integers(0, 1700, (4000, 2))
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
    (place / "cora.cites").write_text("\n".join(f"{a} {b}" for a, b in edges) + "\n")
    with tarfile.open(folder / "cora.tgz", "w:gz") as archive:
        archive.add(place, "cora")


def words(folder: Path) -> None:
    """Three text files, as WikiText has them, one of names, and one text for characters."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in (("train", 400), ("valid", 60), ("test", 60)):
        (folder / f"{name}.txt").write_text("\n".join(sentences(number, rng)) + "\n")
    (folder / "input.txt").write_text("O God, O God!\n" + "\n".join(sentences(300, rng)) + "\n")
    syllables = ["ka", "ro", "mi", "stein", "ez", "la", "no"]
    names_of = ("".join(rng.choice(syllables, int(rng.integers(2, 4)))) for _ in range(2000))
    (folder / "names.txt").write_text("\n".join(names_of) + "\n")


def tokens(folder: Path) -> None:
    """Two files of numbers below 30, as nanoGPT reads them."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in (("train", 20_000), ("val", 4_000)):
        rng.integers(0, 30, number).astype(np.uint16).tofile(folder / f"{name}.bin")


def bsds(folder: Path) -> None:
    """BSDS300's folders with a few pictures."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, number in (("train", 8), ("test", 2)):
        place = folder / "BSDS300" / "images" / part
        place.mkdir(parents=True)
        for index in range(number):
            coarse = Image.fromarray(rng.integers(0, 256, (16, 16, 3)).astype(np.uint8))
            coarse.resize((256, 256)).save(place / f"{index}.jpg")


def waves(folder: Path) -> None:
    """Sine waves in `traindata.pt`."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    phase = np.random.default_rng(0).integers(-80, 80, (12, 1))
    torch.save(np.sin((np.arange(60) + phase) / 20.0).astype("float64"), folder / "traindata.pt")


def cifar(folder: Path) -> None:
    """CIFAR-10's files, 32 pictures in all."""
    rng = np.random.default_rng(0)
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        number = 2 if name == "test_batch" else 6
        rows = rng.integers(0, 256, (number, 3072)).astype(np.uint8)
        batch = {"data": rows, "labels": [int(label) for label in rng.integers(0, 10, number)]}
        (place / name).write_bytes(pickle.dumps(batch))
    (place / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(number) for number in range(10)]}))


def photographs(folder: Path) -> None:
    """Folders `train` and `val` with two classes."""
    for part, number in (("train", 12), ("val", 2)):
        pictures(folder, part, 64, number)


def tokenizer():
    """A word tokenizer with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<eos>"]
    vocabulary = {word: index for index, word in enumerate(special + WORDS)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="[UNK]",
        pad_token="[PAD]",
        eos_token="<eos>",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=64,
        chat_template="{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}",
    )


def language_model(folder: Path) -> None:
    """A two-layer GPT-2, its tokenizer, plain text to continue and pairs to prefer."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    words = tokenizer()
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64}
    ends = {"bos_token_id": words.eos_token_id, "eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(words), **shape, **ends)).save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    rng = np.random.default_rng(0)
    first, second, third = (sentences(96, rng) for _ in range(3))
    (folder / "text").mkdir()
    (folder / "pairs").mkdir()
    rows = [json.dumps({"text": line}) for line in first]
    (folder / "text" / "train.jsonl").write_text("\n".join(rows) + "\n")
    triples = zip(first, second, third, strict=True)
    rows = [json.dumps({"prompt": a, "chosen": " " + b, "rejected": " " + c}) for a, b, c in triples]
    (folder / "pairs" / "train.jsonl").write_text("\n".join(rows) + "\n")


def sentence_pairs(folder: Path) -> None:
    """A two-layer BERT and 160 pairs of sentences under the names the script loads."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    words = tokenizer()
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    shape["max_position_embeddings"] = 64
    BertForSequenceClassification(BertConfig(vocab_size=len(words), **shape)).save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    rng = np.random.default_rng(0)
    place = folder / "nyu-mll" / "glue"
    place.mkdir(parents=True)
    splits = {"train": 160, "validation": 32}
    for split, number in splits.items():
        ones, others = sentences(number, rng), sentences(number, rng)
        rows = []
        for index, (one, other) in enumerate(zip(ones, others, strict=True)):
            same = index % 2
            pair = {"sentence1": one, "sentence2": one if same else other, "label": same, "idx": index}
            rows.append(json.dumps(pair))
        (place / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    files = "".join(f"  - split: {split}\n    path: {split}.jsonl\n" for split in splits)
    (place / "README.md").write_text(f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n")
    (folder / "glue").mkdir()
    (folder / "glue" / "glue.py").write_text(METRIC)


def molecules(folder: Path) -> None:
    """64 chains as SMILES with a target, and two descriptors each in an npz file."""
    rng = np.random.default_rng(0)
    chains = ["".join(rng.choice(list("CCCNO"), int(rng.integers(3, 9)))) for _ in range(64)]
    values = [chain.count("N") - 0.5 * chain.count("O") + 0.1 * len(chain) for chain in chains]
    rows = [f"{chain},{value:.4f}" for chain, value in zip(chains, values, strict=True)]
    (folder / "molecules.csv").write_text("smiles,y\n" + "\n".join(rows) + "\n")
    np.savez(folder / "descriptors.npz", rng.normal(size=(64, 2)).astype(np.float32))


def molecules_with_inf(folder: Path) -> None:
    """The same; one descriptor of the sixth molecule is Inf (the package itself replaces NaN by 0)."""
    molecules(folder)
    values = np.load(folder / "descriptors.npz")["arr_0"]
    values[5, 0] = np.inf
    np.savez(folder / "descriptors.npz", values)


def nothing(folder: Path) -> None:
    """The script makes its own data."""


if __name__ == "__main__":
    target = Path(sys.argv[2])
    target.mkdir(parents=True)
    globals()[sys.argv[1]](target)
