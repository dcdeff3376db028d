"""Checks the data that data modules return, for all clients at once."""

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data.examples import Examples
from lit_cfl.data.federated import Division, FederatedData
from lit_cfl.data.index import ClientIndex
from lit_cfl.errors import InputError, Notice, count_noun, join_ids, prefix_errors

_BLOCK = 2**24  # numbers that are checked at a time
_LARGE_INPUT = 10  # root mean square above which SGD with a rate of 0.1 is unstable on a linear net


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
    with prefix_errors(who):
        _require_labels(examples)
        _require_inputs(examples)


def _require_labels(examples: Examples) -> None:
    inputs, labels, size = examples.inputs, examples.labels, examples.num_labels
    if len(inputs) != len(labels) or labels.ndim not in (1, 2) or not len(examples):
        raise InputError(
            f"inputs have shape {tuple(inputs.shape)}, labels have shape {tuple(labels.shape)}; give [N, ...] and [N] "
            "with N at least 1 (for several labels per example: [N, L])"
        )
    if examples.label_kind == "multi-label":
        require_several(labels)
    elif examples.label_kind == "numbers":
        if not (good := labels.isfinite()).all():
            raise InputError(f"example {int(good.int().argmin())} has no finite label; drop the example")
    elif labels.dtype != torch.int64:
        raise InputError(f"labels have dtype {labels.dtype}; give classes as int64")
    elif len(wrong := ((labels < 0) | (labels >= max(1, size))).nonzero().flatten()):
        raise InputError(
            f"example {int(wrong[0])} has label {int(labels[wrong[0]])}, but num_labels is {size}: give classes "
            "from 0 to num_labels - 1, floats if they are numbers to predict, or zeros if there are no labels"
        )


def _require_inputs(examples: Examples) -> None:
    inputs, size = examples.inputs, examples.vocabulary
    if inputs.is_floating_point():
        for start, block in _blocks(inputs):
            if not (good := block.isfinite().flatten(1).all(1)).all():
                first = start + int(good.int().argmin())
                raise InputError(f"example {first} has NaN or infinite inputs; replace them, or drop the example")
    elif inputs.dtype not in (torch.uint8, torch.int32, torch.int64):
        raise InputError(f"inputs have dtype {inputs.dtype}; give floats, uint8, int32 or int64")
    elif size and not 0 <= int(inputs.min()) <= int(inputs.max()) < size:
        low, high = map(int, inputs.aminmax())
        raise InputError(f"inputs hold token ids from {low} to {high}, but vocabulary is {size}; give 0 to {size - 1}")
    if examples.embeddings is not None and (rows := len(examples.embeddings)) != size:
        raise InputError(f"embeddings has {rows} rows, but vocabulary is {size}; give one row per token id")


def require_several(labels: Tensor, what: str = "labels") -> None:
    """Raises InputError unless multi-label targets `[N, L]` are bool, or floats from 0 to 1."""
    if labels.dtype == torch.bool:
        return
    if not labels.is_floating_point():
        raise InputError(f"{what} have dtype {labels.dtype} and shape {tuple(labels.shape)}; give bool or floats")
    good = (labels >= 0) & (labels <= 1)  # False for NaN
    if not good.all():
        row, column = (int(place) for place in (~good).nonzero()[0])
        found = f"{float(labels[row, column]):g} in row {row}, column {column}"
        raise InputError(f"{what} hold {found}; give multi-label values between 0 and 1")


def _blocks(inputs: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yields inputs in blocks, each with the index of its first example."""
    rows = max(1, _BLOCK // max(1, inputs[0].numel()))
    return ((start, inputs[start : start + rows]) for start in range(0, len(inputs), rows))


def warn_of_large_inputs(examples: Examples) -> None:
    """Warns of inputs, and of labels to predict, whose numbers are so large that nets train badly on them.

    Integers that may be token ids are left to `mark_tokens`, unless they are images.

    Args:
        examples: Examples that a data module has loaded.
    """
    if examples.inputs.ndim == 4 or not examples.num_tokens:
        warn_of_large_numbers(examples)
    if examples.label_kind == "numbers" and examples.labels.numel():
        _note_if_large("the labels", float(examples.labels.double().square().mean().sqrt()))


def warn_of_large_numbers(examples: Examples) -> None:
    """Warns of large inputs, including integers that the net reads as numbers; in a table, each column counts."""
    inputs, scale = examples.inputs, examples.scale
    is_plain = not isinstance(scale, Tensor) and isinstance(examples.offset, float | int) and examples.offset == 0
    if inputs.ndim < 2 or inputs.dtype == torch.uint8 or examples.vocabulary or not is_plain:
        return
    sizes = float(scale) * _root_mean_square(inputs)
    if inputs.ndim > 2:
        _note_if_large("the images" if inputs.ndim == 4 else "the inputs", float(sizes.square().mean().sqrt()))
        return
    names = examples.input_names or range(len(sizes))
    large = [repr(name) for name, size in zip(names, sizes.tolist(), strict=True) if size > _LARGE_INPUT]
    _note_if_large(f"input column{'s' * (len(large) > 1)} {join_ids(large)}", float(sizes.max()))


def _note_if_large(what: str, size: float) -> None:
    if size > _LARGE_INPUT:
        warnings.warn(
            f"{what}: large numbers (root mean square {size:.3g}), on which most nets train badly; standardise them: "
            "subtract the mean, divide by the standard deviation (of each column; new clients need the same numbers), "
            "or give ArrayData a scale",
            Notice,
            stacklevel=4,
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
    with prefix_errors(who):
        _require_parts(division)
    train, test = (_check_lists(getattr(division, name), examples, f"{who}: {name}") for name in ("train", "test"))
    for name, lists in {"train": train, "test": test}.items():
        _warn_of_repeats(*lists, len(examples) * len(examples.views), f"{who}: {name}")
    _warn_of_overlap(division.train, *test, len(examples), who)


def _require_parts(division: Division) -> None:
    clients, truth = len(division.train), division.true_clusters
    if not clients:
        raise InputError("divide returns no clients; return at least one")
    if len(division.test) != clients:
        others = len(division.test)
        raise InputError(
            f"train has lists for {clients} clients, but test for {others}; give both a list for each client"
        )
    if truth.dtype != torch.int64 or truth.shape != (clients,):
        found = f"dtype {truth.dtype} and shape {tuple(truth.shape)}"
        raise InputError(f"true_clusters has {found}; give int64 [{clients}], one for each client")
    if (truth < -1).any():
        raise InputError(f"true_clusters holds {int(truth.min())}; give numbers from 0, and -1 if unknown")
    if len(division.names) not in (0, clients):
        raise InputError(f"names has {len(division.names)} names for {clients} clients; give one for each, or none")
    if division.skew not in ("feature", "label", "other"):
        raise InputError(f"skew is {division.skew!r}; give feature, label or other")


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
    for what, count in counts.items():
        if count != number:
            raise InputError(
                f"{who}: step returns {what} of {count} clients, but there are {number}; return one for each"
            )
    for name, one in lists.items():
        _check_lists(one.select(clients), data.examples, f"{who}: {name}", clients)


def _check_lists(
    index: ClientIndex, examples: Examples, what: str, ids: Tensor | None = None
) -> tuple[ClientIndex, Tensor]:
    """Checks the lists of an index and returns the distinct ones, and the list of each client `[clients]`.

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
    most, (lists, which) = len(examples) * len(examples.views), index.distinct()
    entries = lists.entries
    wrong = (entries < 0) | (entries >= most)
    if wrong.any():
        place = int(wrong.int().argmax())
        views = "" if len(examples.views) == 1 else f" ({len(examples)} examples under {len(examples.views)} views)"
        client = int((which == lists.owners[place]).int().argmax())
        client = client if ids is None else int(ids[client])
        raise InputError(
            f"{what}: client {client} has the example {int(entries[place])}, but examples are 0 to {most - 1}{views}"
        )
    return lists, which


def _warn_of_repeats(index: ClientIndex, which: Tensor, most: int, what: str) -> None:
    """Warns of clients that have an example more than once.

    Args:
        index: Distinct lists; shared lists occur once.
        which: List of each client, `[clients]`.
        most: Upper bound of the indices.
    """
    entries = index.entries
    if not len(entries) or int(torch.bincount(entries).max()) == 1:
        return  # no example occurs twice, so there is no need to sort
    keys = np.sort((index.owners * most + entries).numpy())
    twice = torch.from_numpy(keys[1:][keys[1:] == keys[:-1]])
    if not len(twice):
        return
    clients = torch.isin(which, twice // most).nonzero().flatten().tolist()
    _note_clients(what, clients, "with repeated examples, and each repeat counts", int(twice[0]) % most)


def _warn_of_overlap(train: ClientIndex, test: ClientIndex, which: Tensor, num_examples: int, who: str) -> None:
    """Warns of clients that are tested on an example on which they train, under any view.

    Args:
        test: Distinct test lists; shared lists occur once.
        which: Test list of each client, `[clients]`.
    """
    trained, tested = train.entries % num_examples, test.entries % num_examples
    seen = torch.zeros(num_examples, dtype=torch.bool)
    seen[tested] = True
    asked = seen[trained].nonzero().flatten()
    if not len(asked):
        return
    owners = train.owners[asked]
    both = torch.isin(which[owners] * num_examples + trained[asked], test.owners * num_examples + tested)
    if not both.any():
        return
    clients = owners[both].unique().tolist()
    _note_clients(who, clients, "tested on training examples, so the scores are too good", int(trained[asked[both][0]]))


def _note_clients(who: str, clients: Sequence[int], text: str, example: int) -> None:
    warnings.warn(
        f"{who}: {count_noun(len(clients), 'client')} {text} ({join_ids(clients)}; such as example {example})",
        Notice,
        stacklevel=5,
    )
