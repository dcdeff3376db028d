"""Makes tiny data of each kind, with what is expected of them computed from their sources and not by the package.

A kind describes its data module once, as in a YAML file but for paths and arrays; `built` makes it in Python. For
tests/datamodules/test_kinds_of_data.py, tests/datamodules/test_shifts.py and
tests/algorithms/test_algorithms_on_data.py: this is their only file that uses names which are not public.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import ClassLabel, Value
from hub import glove, pixels, tweets, write_images, write_split
from own_arrays import saved
from sklearn.datasets import load_digits
from torch import Tensor, nn

import lit_cfl.datamodules
import lit_cfl.tasks
from lit_cfl.algorithms import Algorithm, Assignment, Info
from lit_cfl.data import FederatedData
from lit_cfl.data.shift import Shift, ShiftLog, apply_shifts
from lit_cfl.datamodules import FederatedDataModule
from lit_cfl.evaluation import EvaluationPlan, evaluate
from lit_cfl.experiment import Experiment, LocalTraining, PreparedRun
from lit_cfl.nets import MCLR
from lit_cfl.rounds import Round
from lit_cfl.seeds import generator
from lit_cfl.storage.checkpoint import state_from_dict, state_to_dict

Description = dict[str, Any]  # a public class of `lit_cfl.datamodules` with its arguments, which may be such, too
Row = tuple[str, Any, tuple[float, ...]]  # client (empty = the source names none), label, and input

# Sources

SIZES = {"mo": 3, "al": 9, "ed": 1, "bo": 14, "cy": 6}  # ed is too small for test data, and is not the first client
SOUTH = {"al", "cy"}
WORDS = ("run", "sit", "walk")
# not in the order of the names; each client with three examples has all labels, and every example has another input
CLIENTS = ("bo al cy bo mo al bo " * 3 + "bo al cy bo ed bo al cy bo cy bo al").split()
LABELS = [WORDS[CLIENTS[:row].count(client) % 3] for row, client in enumerate(CLIENTS)]
X = np.stack([np.arange(33) / 8 - 2, (np.arange(33) * 7 % 33) / 16, np.array([label == "run" for label in LABELS])], 1)
NUMBERS = X @ [0.5, -1.0, 2.0]
SEVERAL = np.stack([X[:, 0] > 0, X[:, 1] > 1, np.arange(33) % 3 > 0], 1)
TOKENS = np.array([[1 + row % 3, 1 + row % 2, 1 + row // 3 % 3, 0] for row in range(33)])


def table(folder: Path, **columns: Any) -> Path:
    """Writes a .csv table with the columns of `X`, a user and further columns."""
    path = folder / "table.csv"
    inputs = {"height": X[:, 0], "weight": X[:, 1], "run?": X[:, 2]}
    pd.DataFrame({"user": CLIENTS} | inputs | columns).to_csv(path, index=False)
    return path


def hub_table(folder: Path) -> str:
    """Writes the rows in the Hub's form; the last nine are its test part."""
    columns = {"a": X[:, 0].tolist(), "b": X[:, 1].tolist(), "user": CLIENTS, "label": AS_NUMBERS}
    kinds = {"a": Value("float64"), "b": Value("float64"), "user": Value("string")}
    kinds["label"] = ClassLabel(names=list(WORDS))
    return str(write_split(folder / "hub", kinds, columns, train=24))


def photos(folder: Path) -> str:
    from PIL import Image

    (folder / "photos").mkdir()
    for row, image in enumerate(pixels(24, 4, 4, 3)):
        Image.fromarray(image).save(folder / "photos" / f"{row}.png")
    lines = [f"{row}.png,{WORDS[row % 3]},{'xyzw'[row % 7 % 4]}" for row in range(24)]
    (folder / "photos" / "metadata.csv").write_text("\n".join(["file_name,condition,town", *lines]) + "\n")
    return str(folder / "photos")


SAID = ("good", "bad", "day", "night")
# a sentiment of 2 is neutral, and not read
TWEETS = [(f"{SAID[row % 4]} {SAID[row // 2 % 4]}", "abc"[row % 3], (0, 4, 2, 4)[row % 4]) for row in range(30)]
VECTORS = {"good": (1.0, 2.0), "bad": (-1.0, -2.5), "day": (3.0, 0.5)}


def made(name: str, **options: Any) -> Description:
    return {"class_path": name, "init_args": options}


def built(value: Any) -> Any:
    if isinstance(value, dict) and "class_path" in value:
        options = {key: built(part) for key, part in value["init_args"].items()}
        return getattr(lit_cfl.datamodules, value["class_path"])(**options)
    return [built(part) for part in value] if isinstance(value, list) else value


class OfTokens(nn.Module):
    """Net for token ids: a linear layer on their embeddings, or on the mean of these."""

    def __init__(self, vocabulary: int, outputs: int, mean: bool):
        super().__init__()
        self.embedding, self.mean = nn.Embedding(vocabulary, 3), mean
        self.fc1 = nn.Linear(3, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.embedding(tokens)
        return self.fc1(vectors.mean(1) if self.mean else vectors)


@dataclass(frozen=True)
class Kind:
    describe: Callable[[Path], Description]  # writes the files of the data into a folder, and describes the data module
    rows: Callable[[], list[Row]] | None  # every example, as a net should get it; None = they have no source: drawn
    clients: int
    test: Sequence[int] | int  # number of test examples of each client, in order; or of all clients together
    task: str = "Classification"
    net: str = "MCLR"
    clusters: Sequence[int] | None = None  # true cluster of each client, in order; None = unknown
    drawn: bool = True  # True if the clients depend on the seed; if not, they are the same under every seed
    cached: bool = False  # True if decoded arrays are cached, so that a second loading reads no source
    only_python: bool = False  # True if the data cannot be described in a file
    counts: Sequence[Sequence[int]] = ()  # number of examples of each label of each client, if there are no `rows`


def people(
    describe: Callable[[Path], Description], labels: Sequence[Any] = LABELS, inputs: np.ndarray = X, **more: Any
) -> Kind:
    """Makes the kind of all people; a quarter of 9, 14, 6, 1 and 3 examples are for testing, halves to even."""
    return Kind(describe, lambda: images_of(inputs, labels, CLIENTS, 1.0), 5, **{"test": [2, 4, 2, 0, 1]} | more)


def images_of(
    stored: np.ndarray, labels: Sequence[Any], clients: Sequence[str] | None = None, scale: float = 1 / 255
) -> list[Row]:
    """Returns the rows of images `[N, ...]`, scaled to 0 to 1."""
    owners = clients or [""] * len(stored)
    inputs = (stored.astype(np.float32) * np.float32(scale)).reshape(len(stored), -1).tolist()
    return list(zip(owners, labels, map(tuple, inputs), strict=True))


def tweet_rows(vectors: bool) -> list[Row]:
    """Returns the rows of tweets: of token ids only their client and label are known here."""
    read = [[(0.0, 0.0)] + [VECTORS.get(word, (0.0, 0.0)) for word in text.split()] for text, *_ in TWEETS]
    inputs = [tuple(number for word in words for number in word) if vectors else () for words in read]
    rows = zip(TWEETS, inputs, strict=True)
    return [(user, sentiment // 4, own) for (_, user, sentiment), own in rows if sentiment in (0, 4)]


def own(labels: Sequence[Any], inputs: np.ndarray, task: str, net: str = "MCLR", **options: Any) -> Kind:
    arrays = {name: options.pop(name) for name in ("x", "y") if name in options}

    def make(folder: Path) -> Description:
        return made("ArrayData", source=saved(folder / "own.npz", **arrays, client=CLIENTS), test=0.25, **options)

    return people(make, labels, inputs, task=task, net=net)


def tokens_kind(embeddings: bool) -> Callable[[Path], Description]:
    lines = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in VECTORS.items())
    given = {"length": 3, "partition": made("Natural", min_examples=1, test=0.25)}

    def make(folder: Path) -> Description:
        vectors = {"embeddings": glove(folder, lines)} if embeddings else {}
        return made("Sent140", source=tweets(folder, TWEETS), **given, **vectors)

    return make


NATURAL = made("Natural", test=0.25)
SEVERAL_READ = list(map(tuple, SEVERAL.astype(float).tolist()))
AS_NUMBERS = [WORDS.index(label) for label in LABELS]
CLUSTERS = [int(name in SOUTH) for name in sorted(SIZES)]  # al, bo, cy, ed, mo
TOWNS = ["xyzw"[row % 7 % 4] for row in range(24)]
PLACES = ["south" if name in SOUTH else "north" for name in CLIENTS]
NAMED = {"y": "what", "client": "user", "cluster": "place"}
DRAWN = {"num_clients": 4, "dimensions": 3}
SIZED = {"num_clusters": 3, "num_labels": 3, "min_size": 8, "mean_log_size": 2.0, "log_size_deviation": 0.5}
BOUNDED = {"mean_log_size": 1.0, "min_size": 6, "max_size": 12, "test_size": 3}
OF_TABLE = {"input_column": ["b", "a"], "label_column": "label", "client_column": "user"}
OF_PHOTOS = {"input_column": "image", "label_column": "condition", "client_column": "town"}


def part(folder: Path, low: int, clients: int) -> Description:
    """Describes clients with 30 grey images of uniform value, from `low` on, and labels in turn."""
    values = np.arange(low, low + 30, dtype=np.uint8)
    source = saved(folder / f"{low}.npz", x=np.tile(values[:, None, None], (1, 3, 3)), y=np.arange(30) % 3)
    return made("ArrayData", source=source, partition=made("IID", num_clients=clients, test=0.25))


KINDS = {
    "digits": Kind(
        lambda folder: made("Digits", num_clients=6, test=0.25),
        lambda: images_of(load_digits().images, load_digits().target.tolist(), scale=1 / 16),
        6, [75] * 6, clusters=[0, 1, 2, 3, 0, 1],
    ),
    "table": people(
        lambda folder: made("ArrayData", source=table(folder, what=LABELS, place=PLACES), columns=NAMED, test=0.25),
        clusters=CLUSTERS,
    ),
    "arrays": people(
        lambda folder: made("ArrayData", x=X, y=LABELS, client=CLIENTS, cluster=CLUSTERS, test=0.25),
        clusters=CLUSTERS, only_python=True,
    ),
    "numbers": own(np.float32(NUMBERS).tolist(), X, "Regression", x=X, y=NUMBERS),
    "several labels": own(SEVERAL_READ, X, "MultiLabel", x=X, y=SEVERAL),
    "sequences": own([0] * 33, TOKENS, "NextToken", "Next", x=TOKENS, vocabulary=4),
    "images": Kind(
        lambda folder: made("MNIST", source=str(write_images(folder / "images")), partition=made("IID", num_clients=4)),
        lambda: images_of(pixels(42, 28, 28), [str(row % 10) for row in range(42)]),
        4, 12, clusters=[0, 0, 0, 0], cached=True,
    ),
    "photos": Kind(
        lambda folder: made("HFDataset", source=photos(folder), partition=NATURAL, **OF_PHOTOS),
        lambda: images_of(pixels(24, 4, 4, 3).transpose(0, 3, 1, 2), [WORDS[row % 3] for row in range(24)], TOWNS),
        4, [1, 2, 2, 2], cached=True,
    ),
    "hub table": people(
        lambda folder: made("HFDataset", source=hub_table(folder), partition=NATURAL, **OF_TABLE),
        LABELS, X[:, [1, 0]], cached=True,
    ),
    "tweets": Kind(tokens_kind(False), lambda: tweet_rows(vectors=False), 3, [2, 2, 2], net="Bag", cached=True),
    "word vectors": Kind(tokens_kind(True), lambda: tweet_rows(vectors=True), 3, [2, 2, 2], cached=True),
    "hybrid": Kind(
        lambda folder: made("Hybrid", parts=[part(folder, 0, 2), part(folder, 100, 3)]),
        lambda: images_of(np.tile(np.uint8([*range(30), *range(100, 130)])[:, None], (1, 9)), [0, 1, 2] * 20),
        5, [4, 4, 2, 2, 2], clusters=[0, 0, 1, 1, 1],
    ),
    "synthetic": Kind(
        lambda folder: made("Synthetic", **DRAWN, **SIZED), None,
        4, [2, 1, 3, 2], clusters=[0, 1, 2, 0], counts=[[2, 12, 0], [0, 4, 6], [0, 0, 29], [6, 0, 7]],
    ),
    "mixture": Kind(
        lambda folder: made("SyntheticMixture", **DRAWN, **BOUNDED), None,
        4, [3, 3, 3, 3], drawn=False, counts=[[11, 4], [3, 6], [3, 6], [4, 7]],
    ),
}  # fmt: skip


def experiment_on(kind: Kind, module: FederatedDataModule, algorithm: Algorithm, **options: Any) -> Experiment:
    examples = module.examples
    nets = {
        "MCLR": lambda: MCLR(list(examples.input_shape), examples.num_outputs),
        "Bag": lambda: OfTokens(examples.vocabulary, examples.num_outputs, mean=True),
        "Next": lambda: OfTokens(examples.vocabulary, examples.vocabulary, mean=False),
    }
    usual: dict[str, Any] = {"rounds": 2, "cohort_size": 2, "seeds": [3], "local": LocalTraining(1, 10)}
    usual["task"] = lambda: getattr(lit_cfl.tasks, kind.task)(nets[kind.net](), partial(torch.optim.SGD, lr=0.05))
    return Experiment(data=module, algorithm=algorithm, **usual | options)


def reloaded(algorithm: Algorithm, completed: Round) -> Round:
    file = io.BytesIO()
    torch.save(state_to_dict(completed.state), file)
    file.seek(0)
    state = state_from_dict(algorithm.state_type, torch.load(file, weights_only=True))
    return replace(completed, state=state)


def score(prepared: PreparedRun, completed: Round) -> dict[str, float]:
    algorithm, engine, data = prepared.experiment.algorithm, prepared.engine, completed.data
    return evaluate(algorithm, completed.state, engine, data, EvaluationPlan(), round=completed.index).metrics


def place(prepared: PreparedRun, completed: Round, clients: Tensor) -> tuple[Assignment, Info]:
    work = prepared.engine.at(completed.index, completed.data)
    algorithm = prepared.experiment.algorithm
    state, info = algorithm.place(completed.state, clients, work, generator(prepared.seed, "assign", completed.index))
    return algorithm.serve(state, clients), info


def lists_of(data: FederatedData) -> dict[str, list[list[int]]]:
    """Returns the sorted example numbers of each client, by part; numbers of an additional view are higher."""
    parts = {name: getattr(data, name) for name in ("train", "validation", "test", "withheld")}
    return {
        name: [sorted(one.tolist()) for one in index] if index is not None else [[]] * data.num_clients
        for name, index in parts.items()
    }


def shifted(
    data: FederatedData, shifts: Sequence[Shift], rounds: int, seed: int = 0, warm: Tensor | None = None
) -> list[tuple[FederatedData, tuple[ShiftLog, ...]]]:
    """Returns the data and the log of each round; `warm` are the clients that have a model (None = all in training)."""
    after = []
    for round in range(rounds):
        data, moves = apply_shifts(data, shifts, round, seed, data.population if warm is None else warm)
        after.append((data, moves))
    return after
