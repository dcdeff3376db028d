"""Checks the data that data modules return, for all clients at once."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data.examples import Examples
from lit_cfl.data.federated import Division, FederatedData
from lit_cfl.data.index import ClientIndex
from lit_cfl.errors import InputError, Notice, count_noun, join_ids

_BLOCK = 2**24  # numbers that are checked at a time
_LARGE_INPUT = 10  # root mean square above which SGD with a rate of 0.1 is unstable on a linear net


def _refuse(who: str, faults: Iterable[str]) -> None:
    """Raises InputError for the first fault; `who` is the name of the class that gave the data."""
    for fault in faults:
        raise InputError(f"{who}: {fault}")


def require_examples(examples: object, who: str) -> None:
    """Checks a pool of examples: its inputs, labels and token ids.

    Args:
        examples: Examples that `load` returned.
        who: Name of the data module, for errors.

    Raises:
        InputError: the value is not an `Examples`, or its parts do not fit together.
    """
    if not isinstance(examples, Examples):
        kind = type(examples).__name__
        raise InputError(f"{who}: load returns a {kind}; return Examples(inputs, labels, num_labels)")
    _refuse(who, _find_faults_of_examples(examples))
    labels = examples.labels
    if examples.label_kind == "classes" and bool((labels == labels[0]).all()):
        warnings.warn(
            f"{who}: all examples have the label {examples.label_name(int(labels[0]))}: a net that always "
            "predicts it has an accuracy of 1",
            Notice,
            stacklevel=3,
        )


def _find_faults_of_examples(examples: Examples) -> Iterator[str]:
    inputs, labels = examples.inputs, examples.labels
    if len(inputs) != len(labels) or labels.ndim not in (1, 2) or not len(examples):
        yield (
            f"inputs have shape {tuple(inputs.shape)}, labels have shape {tuple(labels.shape)}; give [N, ...] and [N] "
            "with N at least 1 (for several labels per example: [N, L])"
        )
    yield from _find_faults_of_inputs(examples)
    if examples.label_kind == "multi-label":
        yield from _find_faults_of_several(labels, "labels")
    elif examples.label_kind == "numbers":
        if not (good := labels.isfinite()).all():
            yield f"example {int(good.int().argmin())} has no finite label; drop the example"
    else:
        yield from _find_faults_of_classes(labels, examples.num_labels)


def _find_faults_of_inputs(examples: Examples) -> Iterator[str]:
    inputs, size = examples.inputs, examples.vocabulary
    if inputs.is_floating_point():
        for start, block in _blocks(inputs):
            if not (good := block.isfinite().flatten(1).all(1)).all():
                first = start + int(good.int().argmin())
                yield f"example {first} has NaN or infinite inputs; replace these values, or drop the example"
    elif inputs.dtype not in (torch.uint8, torch.int32, torch.int64):
        yield f"inputs have dtype {inputs.dtype}; give floats, uint8, int32 or int64"
    elif size:
        for end in map(int, inputs.aminmax()):
            if not 0 <= end < size:
                yield f"inputs hold the token id {end}, but vocabulary is {size}; give ids of 0 to {size - 1}"
    if examples.embeddings is not None and (rows := len(examples.embeddings)) != size:
        yield f"embeddings has {rows} rows, but vocabulary is {size}; give one row per token id"


def _find_faults_of_classes(labels: Tensor, size: int) -> Iterator[str]:
    if labels.dtype != torch.int64:
        yield f"labels have dtype {labels.dtype}; give classes as int64"
    wrong = ((labels < 0) | (labels >= max(1, size))).nonzero().flatten()
    if len(wrong):
        remedy = "give the number of classes, floats if they are numbers to predict, or zeros if there are no labels"
        remedy = f"classes are 0 to {size - 1}; relabel them" if size else remedy
        yield f"example {int(wrong[0])} has label {int(labels[wrong[0]])}, but num_labels is {size}: {remedy}"


def require_several(labels: Tensor, what: str) -> None:
    """Raises InputError unless multi-label targets `[N, L]` are bool, or floats from 0 to 1."""
    for fault in _find_faults_of_several(labels, what):
        raise InputError(fault)


def _find_faults_of_several(labels: Tensor, what: str) -> Iterator[str]:
    if labels.dtype == torch.bool:
        return
    if not labels.is_floating_point():
        yield f"{what} have dtype {labels.dtype} and shape {tuple(labels.shape)}; give bool or floats"
    good = (labels >= 0) & (labels <= 1)  # False for NaN
    if not good.all():
        row, column = (int(place) for place in (~good).nonzero()[0])
        found = f"{float(labels[row, column]):g} in row {row}, column {column}"
        yield f"{what} hold {found}; give multi-label values between 0 and 1"


def _blocks(inputs: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yields inputs in blocks, each with the index of its first example."""
    rows = max(1, _BLOCK // max(1, inputs[0].numel()))
    return ((start, inputs[start : start + rows]) for start in range(0, len(inputs), rows))


def warn_of_large_inputs(examples: Examples) -> None:
    """Warns of inputs, and of labels to predict, whose numbers are so large that nets train badly on them.

    In a table `[N, columns]` each column counts, otherwise all inputs together. Integers that may be token ids are left
    to `mark_tokens`, unless they are images.

    Args:
        examples: Examples that a data module has loaded.
    """
    if examples.inputs.ndim == 4 or not examples.num_tokens:
        warn_of_large_numbers(examples)
    if examples.label_kind == "numbers" and examples.labels.numel():
        size = float(examples.labels.double().square().mean().sqrt())
        if size > _LARGE_INPUT:
            low, high = map(float, examples.labels.aminmax())
            warnings.warn(
                f"the labels are large numbers (root mean square {size:.3g}; from {low:.5g} to {high:.5g}), from which "
                "training by squared errors often diverges; standardise them: subtract their mean, divide by their "
                "standard deviation",
                Notice,
                stacklevel=3,
            )


def warn_of_large_numbers(examples: Examples) -> None:
    """Warns of large inputs as `warn_of_large_inputs` does, including integers that the net reads as numbers."""
    inputs, scale = examples.inputs, examples.scale
    is_plain = not isinstance(scale, Tensor) and isinstance(examples.offset, float | int) and examples.offset == 0
    if inputs.ndim < 2 or inputs.dtype == torch.uint8 or examples.vocabulary or not is_plain:
        return
    if inputs.ndim == 2:
        text = _describe_large_columns(examples)
    else:
        text = _describe_large_whole(inputs, float(scale))
    if text:
        warnings.warn(text, Notice, stacklevel=4)


def _describe_large_columns(examples: Examples) -> str:
    sizes = float(examples.scale) * _root_mean_square(examples.inputs)  # [columns]
    names = examples.input_names
    large = (sizes > _LARGE_INPUT).nonzero().flatten().tolist()
    if not large:
        return ""
    named = [repr(names[column]) if names else str(column) for column in large]
    shown = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
    largest = max(large, key=lambda column: float(sizes[column]))
    low, high = (float(examples.scale) * float(end) for end in examples.inputs[:, largest].aminmax())
    return (
        f"input column{'s' * (len(large) > 1)} {shown}: large numbers (root mean square up to "
        f"{float(sizes[largest]):.3g}; {named[large.index(largest)]} ranges from {low:.5g} to {high:.5g}), on which "
        "most nets train badly; standardise each column: subtract its mean, divide by its standard deviation (for a "
        "table of new clients, use those of the run's own table)"
    )


def _describe_large_whole(inputs: Tensor, scale: float) -> str:
    most = scale * max(abs(float(end)) for end in inputs.aminmax())
    size = scale * float(_root_mean_square(inputs).square().mean().sqrt())
    if size <= _LARGE_INPUT and (inputs.is_floating_point() or most <= 255):
        return ""
    what = "images" if inputs.ndim == 4 else "inputs"
    return (
        f"the {what} are {'floats' if inputs.is_floating_point() else 'integers'} up to {most:.4g} (root mean square "
        f"{size:.3g}), on which most nets train badly; only bytes (uint8) are scaled automatically, so multiply them "
        f"by {scale / most:.3g} (ArrayData: scale: {scale / most:.3g})"
    )


def _root_mean_square(inputs: Tensor) -> Tensor:
    """Computes the root mean square of each input position `[...]` over all examples, in blocks of examples."""
    total = torch.zeros(inputs.shape[1:], dtype=torch.float64)
    for _, block in _blocks(inputs):
        exact = block if block.dtype in (torch.float32, torch.float64) else block.float()
        total += torch.linalg.vector_norm(exact, dim=0).double().square()
    return (total / len(inputs)).sqrt()


def require_division(division: object, examples: Examples, who: str) -> None:
    """Checks a division: lists, true clusters and names. Warns of repeats, and of training examples in test data.

    Args:
        division: Division that `divide` returned.
        examples: Pool of examples.
        who: Name of the data module, for errors.

    Raises:
        InputError: the value is not a `Division`, its parts do not fit together, or an example is not in the pool.
    """
    if not isinstance(division, Division):
        kind = type(division).__name__
        raise InputError(f"{who}: divide returns a {kind}; return Division(train, test, true_clusters)")
    _refuse(who, _find_faults_of_division(division))
    train, test = (_check_lists(getattr(division, name), examples, f"{who}: {name}") for name in ("train", "test"))
    for name, lists in {"train": train, "test": test}.items():
        _warn_of_repeats(lists, len(examples) * len(examples.views), f"{who}: {name}")
    _warn_of_overlap(division.train, test, len(examples), who)


def _find_faults_of_division(division: Division) -> Iterator[str]:
    clients, truth = len(division.train), division.true_clusters
    if not clients:
        yield "divide returns no clients; return at least one"
    if len(division.test) != clients:
        others = len(division.test)
        yield f"train has lists for {clients} clients, but test for {others}; give both a list for each client"
    if truth.dtype != torch.int64 or truth.shape != (clients,):
        found = f"dtype {truth.dtype} and shape {tuple(truth.shape)}"
        yield f"true_clusters has {found}; give int64 [{clients}], one for each client"
    if (truth < -1).any():
        yield f"true_clusters holds {int(truth.min())}; give numbers from 0, and -1 if unknown"
    if len(division.names) not in (0, clients):
        yield f"names has {len(division.names)} names for {clients} clients; give one for each, or none"
    if division.skew not in ("feature", "label", "other"):
        yield f"skew is {division.skew!r}; give feature, label or other"


@dataclass(frozen=True, eq=False)
class _Lists:
    """The distinct lists of all clients: shared lists occur once.

    Args:
        index: Index of the lists.
        which: List of each client, int64 `[clients]`.
    """

    index: ClientIndex
    which: Tensor

    def clients_of(self, lists: Tensor) -> list[int]:
        """Finds the ids of the clients that have any of these lists, ascending."""
        return torch.isin(self.which, lists).nonzero().flatten().tolist()


def require_shifted(before: FederatedData, data: FederatedData, clients: Tensor, who: str) -> None:
    """Checks the data after a shift against the data before it.

    Args:
        before, data: Data without and with the shift.
        clients: Ids of the clients that the shift changed, int64 `[n]`.
        who: Name of the shift, for errors.

    Raises:
        InputError: the number of clients changed, or a shifted client has an example that is not in the pool.
    """
    number, lists = before.num_clients, {"train": data.train, "validation": data.validation, "test": data.test}
    counts = {"true clusters": len(data.true_clusters), **{f"{name} lists": len(one) for name, one in lists.items()}}
    _refuse(
        who,
        (
            f"step returns {what} of {count} clients, but there are {number}; return one for each client"
            for what, count in counts.items()
            if count != number
        ),
    )
    for name, one in lists.items():
        _check_lists(one.select(clients), data.examples, f"{who}: {name}", clients)


def _check_lists(index: ClientIndex, examples: Examples, what: str, ids: Tensor | None = None) -> _Lists:
    """Checks the lists of an index and returns the distinct ones.

    Args:
        ids: Ids of the clients; None = 0, 1, ...

    Raises:
        InputError: a list lies outside of the index's values, or a value is not a number of an example in the pool.
    """
    for part in (index.values, index.starts, index.sizes):
        if part.dtype != torch.int64:
            raise InputError(f"{what} is a ClientIndex of {part.dtype}; give int64")
    ends = index.starts + index.sizes
    if bool(((index.sizes < 0) | ((index.sizes > 0) & ((index.starts < 0) | (ends > len(index.values))))).any()):
        raise InputError(
            f"{what} has lists that reach beyond its {len(index.values)} values; build it with ClientIndex.from_lists"
        )
    most, lists = len(examples) * len(examples.views), _Lists(*index.distinct())
    entries = lists.index.entries
    wrong = (entries < 0) | (entries >= most)
    if wrong.any():
        place = int(wrong.int().argmax())
        views = "" if len(examples.views) == 1 else f" ({len(examples)} examples under {len(examples.views)} views)"
        client = lists.clients_of(lists.index.owners[place])[0]
        client = client if ids is None else int(ids[client])
        raise InputError(
            f"{what}: client {client} has the example {int(entries[place])}, but examples are 0 to {most - 1}{views}"
        )
    return lists


def _warn_of_repeats(lists: _Lists, most: int, what: str) -> None:
    """Warns of clients that have an example more than once.

    Args:
        most: Upper bound of the indices.
    """
    entries = lists.index.entries
    if not len(entries) or int(torch.bincount(entries).max()) == 1:
        return  # no example occurs twice, so there is no need to sort
    keys = np.sort((lists.index.owners * most + entries).numpy())
    twice = torch.from_numpy(keys[1:][keys[1:] == keys[:-1]])
    if not len(twice):
        return
    clients = lists.clients_of(twice // most)
    has = "has" if len(clients) == 1 else "have"
    warnings.warn(
        f"{what}: {count_noun(len(clients), 'client')} {has} an example more than once ({join_ids(clients)}; such as "
        f"example {int(twice[0]) % most}), and each repeat counts",
        Notice,
        stacklevel=4,
    )


def _warn_of_overlap(train: ClientIndex, test: _Lists, num_examples: int, who: str) -> None:
    """Warns of clients that are tested on an example on which they train, under any view."""
    trained, tested = train.entries % num_examples, test.index.entries % num_examples
    seen = torch.zeros(num_examples, dtype=torch.bool)
    seen[tested] = True
    asked = seen[trained].nonzero().flatten()
    if not len(asked):
        return
    owners = train.owners[asked]
    both = torch.isin(test.which[owners] * num_examples + trained[asked], test.index.owners * num_examples + tested)
    if not both.any():
        return
    clients = owners[both].unique().tolist()
    are = "is" if len(clients) == 1 else "are"
    warnings.warn(
        f"{who}: {count_noun(len(clients), 'client')} {are} tested on examples that they also train on "
        f"({join_ids(clients)}; such as example {int(trained[asked[both][0]])}), so their scores are too good",
        Notice,
        stacklevel=4,
    )
