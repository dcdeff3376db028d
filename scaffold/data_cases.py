"""Makes small data, with a task for each: kinds of data, tasks, partitions, skews and nets. Files go to one folder."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.data.augment import Augment
from lit_cfl.datamodules import (
    CIFAR10,
    FEMNIST,
    IID,
    MNIST,
    MNIST1000,
    ArrayData,
    Blurs,
    Brightnesses,
    ClassesPerClient,
    Colours,
    Digits,
    Dirichlet,
    DirichletSizes,
    Ditto500,
    DominantClass,
    EMNISTLetters,
    FashionMNIST,
    FederatedDataModule,
    FedProxFEMNIST,
    FreeRotations,
    HFDataset,
    Hybrid,
    InnerDirichlet,
    LabelGroups,
    LabelPermutations,
    LabelShifts,
    LabelSwaps,
    LogNormalSizes,
    Natural,
    NoiseLevels,
    PowerLawSizes,
    Rotations,
    Sent140,
    Shards,
    Synthetic,
    SyntheticMixture,
)
from lit_cfl.nets import (
    FEMNISTCNN,
    MCLR,
    MLP,
    MNISTCNN,
    VGG16,
    FashionCNN,
    FedGroupLSTM,
    LeNet,
    SattlerCNN,
    Sent140GRU,
    Sent140LSTM,
    StoCFLCNN,
)
from lit_cfl.tasks import Classification, MultiLabel, NextToken, Regression

Pair = tuple[Callable[[], Any], Callable[[], nn.Module]]  # makes the data, makes the task
FOLDER = Path("files")  # in the current folder, which is a temporary one
SGD = partial(torch.optim.SGD, lr=0.05)
OWNERS = np.repeat(np.arange(6), [8, 10, 12, 14, 16, 20])  # six clients of unequal sizes
N = len(OWNERS)


def _draws() -> np.random.Generator:
    return np.random.default_rng(0)


def _inputs(*shape: int) -> np.ndarray:
    return _draws().normal(size=(N, *shape)).astype(np.float32)


def _labels(number: int = 3) -> np.ndarray:
    return (np.arange(N) * 7 + OWNERS) % number


def _bytes(count: int, *shape: int) -> np.ndarray:
    return _draws().integers(0, 256, (count, *shape), dtype=np.uint8)


def own(**changes: Any) -> Callable[[], ArrayData]:
    """Returns a function that makes `ArrayData` of six clients: four inputs, three labels."""
    return lambda: ArrayData(**{"x": _inputs(4), "y": _labels(), "client": OWNERS, "test": 0.25} | changes)


def classes(net: Callable[[], nn.Module], **options: Any) -> Callable[[], nn.Module]:
    """Returns a function that makes a task of classification."""
    return lambda: Classification(net(), SGD, **options)


def linear(inputs: int = 4, labels: int = 3) -> Callable[[], nn.Module]:
    """Returns a function that makes a linear classifier."""
    return classes(lambda: MCLR([inputs], labels))


def _flat_mlp(shape: Sequence[int], labels: int) -> Callable[[], nn.Module]:
    return classes(lambda: MLP(8, shape, labels))


# --- tasks -----------------------------------------------------------------------------------------------------------


class Bigram(nn.Module):
    """Net with a table of the next token's logits, given the last token."""

    def __init__(self, vocabulary: int = 5) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


class Embedding(nn.Module):
    """Net that classifies sentences by the mean of their words' vectors."""

    def __init__(self, vocabulary: int, labels: int = 2) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(vocabulary, 6), nn.Linear(6, labels)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.words(tokens).mean(1))


def _several() -> np.ndarray:
    return (_inputs(4)[:, :3] > 0).astype(np.float32)


def _numbers() -> np.ndarray:
    return _inputs(4).sum(1) - 1


def _sentences() -> np.ndarray:
    tokens = _draws().integers(1, 5, (N, 6))
    tokens[np.arange(6)[None] >= (np.arange(N) % 4 + 3)[:, None]] = 0
    return tokens


def tasks() -> dict[str, Pair]:
    """Returns each task, with each of its kinds of scores and nets that differ in how they train."""
    sentences = own(x=_sentences(), y=None, vocabulary=5)
    of_labels = own(y=_several())
    every = ["label_accuracy", "exact_match", "auroc", "f1", "auroc_1", "f1_0"]
    return {
        "Classification": (own(), linear()),
        "Classification, MLP": (own(), _flat_mlp([4], 3)),
        "Classification, scores of sets": (
            own(),
            classes(lambda: MCLR([4], 3), scores=["f1", "balanced_accuracy", "calibration_error"]),
        ),
        "Classification, kernel_l2": (own(), classes(lambda: MLP(8, [4], 3), kernel_l2=0.1, kernel_l2_layers="fc1")),
        "Classification, weights of PyTorch": (own(), classes(lambda: MLP(8, [4], 3), starting_weights="pytorch")),
        "MultiLabel": (of_labels, lambda: MultiLabel(MCLR([4], 3), SGD)),
        "MultiLabel, all scores": (of_labels, lambda: MultiLabel(MLP(8, [4], 3), SGD, scores=every)),
        "Regression": (own(y=_numbers()), lambda: Regression(MCLR([4], 1), SGD)),
        "Regression, all scores": (
            own(y=_numbers()),
            lambda: Regression(MLP(8, [4], 1), SGD, scores=["r2", "rmse", "mse", "mae"]),
        ),
        "NextToken": (sentences, lambda: NextToken(Bigram(), SGD)),
        "NextToken, no padding": (sentences, lambda: NextToken(Bigram(), SGD, padding=None)),
    }


# --- kinds of data ---------------------------------------------------------------------------------------------------


class OwnModule(FederatedDataModule):
    """Users' own data module, as the documentation describes it."""

    def load(self) -> Examples:
        return Examples(torch.from_numpy(_inputs(4)), torch.from_numpy(_labels()), 3)

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        train = ClientIndex.from_owners(torch.from_numpy(OWNERS), 6)
        test = ClientIndex.from_lists([one[:3] for one in train])
        return Division(ClientIndex.from_lists([one[3:] for one in train]), test, torch.arange(6) % 2)


class Twins(FederatedDataModule):
    """Eight clients of which each two have the same examples, so that distances have ties."""

    def load(self) -> Examples:
        return Examples(torch.from_numpy(_inputs(4)), torch.from_numpy(_labels()), 3)

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        lists = [torch.arange(start, start + 12) for start in (0, 12, 24, 36)]
        both = ClientIndex.from_lists([one for one in lists for _ in range(2)])
        return Division(both, both, torch.arange(8) // 2)


def _table() -> pd.DataFrame:
    table = pd.DataFrame(_inputs(3), columns=["weight", "height", "age"])
    words = np.array(["red", "green", "blue"])
    places = np.array(["oslo", "rome", "bern", "lima", "kyiv", "cairo"])
    return table.assign(colour=words[_labels()], place=places[OWNERS], late=np.arange(N) % 4 == 0, kind=OWNERS % 2)


def _csv() -> ArrayData:
    FOLDER.mkdir(exist_ok=True)
    _table().to_csv(FOLDER / "table.csv", index=False)
    columns = {"y": "colour", "client": "place", "is_test": "late", "cluster": "kind"}
    return ArrayData(source=FOLDER / "table.csv", columns=columns)


def _frame() -> ArrayData:
    table = _table()
    return ArrayData(table[["weight", "height", "age"]], table["colour"], client=table["place"], test=0.25)


def _npz() -> ArrayData:
    FOLDER.mkdir(exist_ok=True)
    np.savez(FOLDER / "all.npz", x=_inputs(4), y=_labels(), client=OWNERS, cluster=OWNERS % 2)
    return ArrayData(source=FOLDER / "all.npz", test=0.25)


def _folder() -> ArrayData:
    folder = FOLDER / "clients"
    folder.mkdir(parents=True, exist_ok=True)
    for client in range(6):
        mine = client == OWNERS
        np.savez(folder / f"site-{client}.npz", x=_inputs(4)[mine], y=_labels()[mine], cluster=client % 2)
    return ArrayData(source=folder, test=0.25)


def _hub(name: str, features: Mapping[str, Any], **parts: Mapping[str, Sequence[Any]]) -> str:
    """Writes a data set in the Hub's format; returns its folder."""
    from datasets import Dataset, Features

    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    for split, columns in parts.items():
        file = folder / f"{split}-00000-of-00001.parquet"
        if not file.exists():
            Dataset.from_dict(dict(columns), features=Features(dict(features))).to_parquet(file)
    return str(folder)


def _picture(pixels: np.ndarray) -> dict[str, Any]:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def _hub_table() -> str:
    """Writes a table in the Hub's format with a column of each kind: images, classes, texts, numbers, lists, users."""
    import datasets
    from datasets import ClassLabel, List, Value

    features = {
        "image": datasets.Image(),
        "label": ClassLabel(names=["cat", "dog", "emu"]),
        "text": Value("string"),
        "weight": Value("float64"),
        "height": Value("float32"),
        "reading": List(Value("float32")),
        "topics": List(Value("string")),
        "user": Value("string"),
    }
    words, topics = np.array([*"abcdef"]), np.array(["news", "sports", "art"])
    columns = {
        "image": [_picture(one) for one in _bytes(N, 6, 6)],
        "label": _labels().tolist(),
        "text": [" ".join(words[[k % 6, k // 6 % 6, k * k % 6]]) for k in range(N)],
        "weight": _inputs(2)[:, 0].tolist(),
        "height": _inputs(2)[:, 1].tolist(),
        "reading": _inputs(4).tolist(),
        "topics": [topics[flags > 0].tolist() for flags in _several()],
        "user": [f"u{owner}" for owner in OWNERS],
    }
    return _hub("mixed", features, train=columns)


def _hf(inputs: str | list[str], label: str | None = "label", **options: Any) -> Callable[[], HFDataset]:
    natural = Natural(test=0.25)
    return lambda: HFDataset(_hub_table(), inputs, label, "user", **{"partition": natural} | options)


def _tweets(**options: Any) -> Callable[[], Sent140]:
    def make() -> Sent140:
        from datasets import Value

        words = np.array(["good", "bad", "day", "night", "so", "sad", "!", ","])
        texts = [" ".join(words[[k % 8, k // 8 % 8, k * k % 8]]) for k in range(N)]
        names = [f"u{owner}" for owner in OWNERS]
        columns = {"text": texts, "user": names, "sentiment": [4 * (k % 3 == 0) for k in range(N)]}
        features = {"text": Value("string"), "user": Value("string"), "sentiment": Value("int32")}
        return Sent140(_hub("tweets", features, train=columns), length=4, partition=Natural(test=0.25), **options)

    return make


def _tweets_with_vectors() -> Sent140:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "vectors.txt").write_text("good 1 2 3\nbad -1 -2.5 -3e0\nunheard 7 7 7\n, 4 5 6\nday 0.5 0 1\n")
    return _tweets(embeddings=(FOLDER / "vectors.txt").resolve())()


def _images(kind: Any, shape: Sequence[int], labels: int, column: str = "image", **options: Any) -> Callable[[], Any]:
    """Returns a function that makes an image set from random images in the Hub's format."""

    def make() -> Any:
        import datasets
        from datasets import ClassLabel, Value

        pictures = [_picture(one) for one in _bytes(160, *shape)]
        of_class = ClassLabel(names=[str(k) for k in range(labels)])
        features = {column: datasets.Image(), "label": Value("int64") if labels == 26 else of_class}
        values = [k % labels for k in range(160)]
        parts = {"train": slice(0, 120), "test": slice(120, 160)}
        columns = {name: {column: pictures[part], "label": values[part]} for name, part in parts.items()}
        folder = _hub(kind.__name__, features, **columns)
        return kind(folder, **{"partition": IID(6, 0.25), "skew": Rotations((0, 90))} | options)

    return make


def _writers(**options: Any) -> Callable[[], FEMNIST]:
    def make() -> FEMNIST:
        import datasets
        from datasets import ClassLabel, Value

        names = [*map(str, range(10)), *map(chr, range(65, 91)), *map(chr, range(97, 123))]
        characters = [names[(7 * k) % 20 + 30] for k in range(N)]
        features = {
            "image": datasets.Image(),
            "writer_id": Value("string"),
            "hsf_id": Value("int64"),
            "character": ClassLabel(names=names),
        }
        columns = {
            "image": [_picture(one) for one in _bytes(N, 28, 28)],
            "writer_id": [f"w{owner}" for owner in OWNERS],
            "hsf_id": [0] * N,
            "character": characters,
        }
        folder = _hub("writers", features, train=columns)
        return FEMNIST(folder, allow_unseen_labels=True, **{"partition": Natural(test=0.25)} | options)

    return make


def _flipped(batch: tuple[Tensor, Tensor], keys: Tensor) -> tuple[Tensor, Tensor]:
    """Mirrors the images with an odd key."""
    images, labels = batch
    return torch.where((keys % 2 == 1)[:, None, None, None], images.flip(-1), images), labels


def _hybrid() -> Hybrid:
    first = Digits(partition=IID(4, 0.2), skew=Rotations((0, 90)))
    return Hybrid([first, Digits(partition=Dirichlet(3, alpha=1.0))], validation=0.1)


def kinds() -> dict[str, Pair]:
    """Returns data of each kind, from each kind of source."""
    table, eight = linear(3), _flat_mlp([1, 8, 8], 10)
    words = own(y=np.array(["b", "a", "c"])[_labels()])
    of_bytes = own(x=_bytes(N, 6, 6))
    colours, last = own(x=_bytes(N, 3, 6, 6)), own(x=_bytes(N, 6, 6, 3))
    tokens = own(x=_sentences(), y=_labels(2), vocabulary=5)
    tiny = _flat_mlp([1, 28, 28], 10)
    return {
        "arrays": (own(), linear()),
        "arrays, no clients": (own(client=None), linear()),
        "arrays, integers": (own(x=_bytes(N, 4).astype(np.int64) // 64), linear()),
        "arrays, labels are words": (words, linear()),
        "arrays, given test part": (own(is_test=np.arange(N) % 4 == 0, test=None), linear()),
        "arrays, given clusters": (own(cluster=OWNERS % 2), linear()),
        "arrays, scaled": (own(scale=0.5), linear()),
        "arrays, soft labels": (own(y=_several() * 0.8 + 0.1), lambda: MultiLabel(MCLR([4], 3), SGD)),
        "arrays, numbers": (own(y=_numbers()), lambda: Regression(MCLR([4], 1), SGD)),
        "arrays, integers to predict": (own(num_labels=0), lambda: Regression(MCLR([4], 1), SGD)),
        "grey images": (of_bytes, _flat_mlp([1, 6, 6], 3)),
        "colour images": (colours, _flat_mlp([3, 6, 6], 3)),
        "colour images, channels last": (last, _flat_mlp([3, 6, 6], 3)),
        "token ids": (tokens, classes(lambda: Embedding(5))),
        "csv table": (_csv, table),
        "DataFrame": (_frame, table),
        "npz file": (_npz, linear()),
        "folder of clients": (_folder, linear()),
        "own module": (OwnModule, linear()),
        "newcomers and validation": (own(newcomers=0.2, validation=0.2), linear()),
        "seed of the partition": (own(partition_seed=4), linear()),
        "Digits": (partial(Digits, 8), eight),
        "Digits, copies": (lambda: Digits(partition=IID(3, 0.2), skew=Rotations((0, 90)), copies=True), eight),
        "Digits, augmented": (partial(Digits, 8, augment=Augment(crop=1, flip=True)), eight),
        "Digits, own augmentation": (partial(Digits, 8, augment=_flipped), eight),
        "Hybrid": (_hybrid, eight),
        "Synthetic": (partial(Synthetic, num_clients=6, dimensions=8, num_labels=3), linear(8)),
        "Synthetic, clusters": (
            partial(Synthetic, num_clients=6, dimensions=8, num_labels=3, num_clusters=2, population_seed=3),
            linear(8),
        ),
        "SyntheticMixture": (partial(SyntheticMixture, 6, dimensions=8, max_size=80, test_size=20), linear(8, 2)),
        "hub, images": (_hf("image"), _flat_mlp([1, 6, 6], 3)),
        "hub, texts": (_hf("text"), classes(lambda: Embedding(10_000, 3))),
        "hub, numbers": (_hf(["weight", "height"]), linear(2)),
        "hub, lists": (_hf("reading"), linear()),
        "hub, several labels": (_hf("reading", "topics"), lambda: MultiLabel(MCLR([4], 3), SGD)),
        "hub, numbers to predict": (_hf("reading", "weight", num_labels=0), lambda: Regression(MCLR([4], 1), SGD)),
        "tweets": (_tweets(max_words=8), classes(lambda: Embedding(10))),
        "tweets, padded at the end": (_tweets(max_words=6, padding="end"), classes(lambda: Embedding(10))),
        "tweets, word vectors": (_tweets_with_vectors, classes(lambda: MCLR([4, 3], 2))),
        "MNIST": (_images(MNIST, [28, 28], 10), tiny),
        "MNIST, centred": (_images(MNIST, [28, 28], 10, pixels="centred"), tiny),
        "MNIST, standardised": (_images(MNIST, [28, 28], 10, pixels="standardised"), tiny),
        "MNIST, standardised, pooled": (_images(MNIST, [28, 28], 10, pixels="standardised_pooled"), tiny),
        "MNIST, padded": (_images(MNIST, [28, 28], 10, pad=2), _flat_mlp([1, 32, 32], 10)),
        "FashionMNIST": (_images(FashionMNIST, [28, 28], 10), tiny),
        "CIFAR10": (_images(CIFAR10, [32, 32, 3], 10, "img"), _flat_mlp([3, 32, 32], 10)),
        "EMNISTLetters": (_images(EMNISTLetters, [28, 28], 26), _flat_mlp([1, 28, 28], 26)),
        "FEMNIST": (_writers(), _flat_mlp([1, 28, 28], 62)),
        "FEMNIST, a-j": (_writers(labels="a-j"), _flat_mlp([1, 28, 28], 10)),
    }


# --- partitions and skews --------------------------------------------------------------------------------------------


def _many(partition: Any, number: int = 72_500, labels: int = 10) -> Callable[[], ArrayData]:
    """Returns a function that makes many examples of two inputs; a seventh of them is the source's test part."""
    draws = np.random.default_rng(1)
    x, y = draws.normal(size=(number, 2)).astype(np.float32), np.arange(number) % labels
    return lambda: ArrayData(x, y, is_test=np.arange(number) % 7 == 0, partition=partition)


def partitions() -> dict[str, Pair]:
    """Returns each partition with its variants, most of them of digits."""
    four = ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9))
    of_digits: dict[str, Any] = {
        "IID": IID(8, 0.25),
        "LabelGroups": LabelGroups(groups=four, clients_per_group=2),
        "DominantClass": DominantClass(8, num_clusters=4),
        "DominantClass, beta 0.8": DominantClass(8, num_clusters=4, beta=0.8, examples_per_client=60),
        "Dirichlet": Dirichlet(8, alpha=0.5),
        "InnerDirichlet": InnerDirichlet(8),
        "InnerDirichlet, sizes": InnerDirichlet(4, sizes=[50, 100, 200, 30], alpha=1.0),
        "ClassesPerClient": ClassesPerClient(10, classes=3),
        "Shards": Shards(8, shards_per_client=3),
        "LogNormalSizes": LogNormalSizes(8, sigma=1.0),
        "PowerLawSizes": PowerLawSizes(8),
        "DirichletSizes": DirichletSizes(8, alpha=1.0),
    }
    flat, two = classes(lambda: MCLR([1, 8, 8], 10)), linear(2, 10)
    natural = Natural(min_examples=12, max_clients=4, test=0.25)
    cases = {name: (partial(Digits, partition=one), flat) for name, one in of_digits.items()}
    few = partial(_many, number=3000)
    return cases | {
        "Natural": (own(partition=Natural(), test=None), linear()),
        "Natural, few clients": (own(partition=natural, test=None), linear()),
        "MNIST1000": (_many(MNIST1000()), two),
        "MNIST1000, one digit": (_many(MNIST1000(classes=1)), two),
        "Ditto500": (_many(Ditto500()), two),
        "FedProxFEMNIST": (few(FedProxFEMNIST(num_clients=20)), two),
        "FedProxFEMNIST, no sharing": (_many(FedProxFEMNIST(20, sharing=False)), two),
    }


def skews() -> dict[str, Pair]:
    """Returns each skew, and a product of two."""
    shown = {
        "Rotations": Rotations((0, 180)),
        "FreeRotations": FreeRotations((0.0, 20.0, 110.0)),
        "LabelShifts": LabelShifts((0, 3)),
        "LabelPermutations": LabelPermutations(3),
        "LabelSwaps": LabelSwaps(((), (0, 1), (2, 5, 7))),
        "NoiseLevels": NoiseLevels((0.0, 0.3)),
        "Blurs": Blurs((0.0, 0.8)),
        "Brightnesses": Brightnesses((1.0, 0.4)),
        "product of two": [Rotations((0, 90)), LabelShifts((0, 5))],
    }
    flat = classes(lambda: MCLR([1, 8, 8], 10))
    cases = {name: (partial(Digits, partition=IID(8, 0.2), skew=one), flat) for name, one in shown.items()}
    colours = own(x=_bytes(N, 3, 6, 6), skew=Colours())
    return cases | {"Colours": (colours, _flat_mlp([3, 6, 6], 3))}


def nets() -> dict[str, Pair]:
    """Returns each net on images or sentences of its size."""
    grey, colour = own(x=_bytes(N, 1, 28, 28)), own(x=_bytes(N, 3, 32, 32))
    vectors, tokens = own(x=_inputs(5, 12), y=_labels(2)), own(x=_sentences(), y=_labels(2), vocabulary=5)
    cases: dict[str, Pair] = {
        kind.__name__: (grey, classes(partial(kind, [1, 28, 28], 3)))
        for kind in (MCLR, MNISTCNN, FEMNISTCNN, FashionCNN, StoCFLCNN, SattlerCNN)
    }
    recurrent = (Sent140GRU, Sent140LSTM, FedGroupLSTM)
    words = {
        f"{kind.__name__}, words": (tokens, classes(partial(kind, input_shape=[6], num_labels=2, vocabulary=5)))
        for kind in recurrent
    }
    of_vectors = {
        kind.__name__: (vectors, classes(partial(kind, input_shape=[5, 12], num_labels=2))) for kind in recurrent
    }
    vgg = partial(VGG16, hidden=[8], input_shape=[3, 32, 32], num_labels=3)
    return (
        cases
        | words
        | of_vectors
        | {
            "MLP": (grey, classes(lambda: MLP(8, [1, 28, 28], 3))),
            "MLP, batch norm": (grey, classes(lambda: MLP(8, [1, 28, 28], 3, batch_norm=True))),
            "LeNet": (colour, classes(partial(LeNet, [3, 32, 32], 3))),
            "VGG16": (colour, lambda: Classification(vgg(), partial(torch.optim.SGD, lr=0.001))),
        }
    )
