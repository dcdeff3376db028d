"""Several data sets with a common label space: clusters of clients differ in their data set."""

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import ClientIndex, Division, Examples
from lit_cfl.datamodules.federated import FederatedDataModule
from lit_cfl.datamodules.pooled import join_divisions
from lit_cfl.datamodules.skew import skew_name
from lit_cfl.errors import InputError


class Hybrid(FederatedDataModule):
    """Several data modules in one: the clients of the first, then those of the second, and so on.

    StoCFL's Hybrid MNIST: 100 clients with MNIST and 100 with Fashion-MNIST, whose labels are the same ten numbers
    (Zeng et al. Stochastic Clustered Federated Learning. arXiv:2303.00897, section A.1).

    A client's true cluster is the pair of its part and its true cluster there; a part without true clusters is one
    cluster. The skew is `feature`, as the inputs of the parts differ, or `other` if a part has a `label` skew. A Hybrid
    of one part has the skew of that part.

    Args:
        parts: Data modules whose inputs have one shape, dtype and scale, and which have equally many labels. Options
            that all data modules have (validation, newcomers, shift, ...) are set on the Hybrid, not on its parts.
        options: Options of `FederatedDataModule`.
    """

    def __init__(self, parts: list[FederatedDataModule], **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(parts, Sequence) or not parts:
            raise InputError(f"parts is {parts!r}; give a Hybrid a list of one or more data modules")
        for place, part in enumerate(parts):
            _require_no_options(part, f"parts[{place}] ({type(part).__name__})")
        self.parts = tuple(parts)

    def load(self) -> Examples:
        pools = [part.examples for part in self.parts]
        for place, pool in enumerate(pools):
            _require_alike(pools[0], pool, f"parts[{place}] ({type(self.parts[place]).__name__})")
        self.commit = ", ".join(part.commit for part in self.parts if part.commit) or None
        inputs, labels = torch.cat([pool.inputs for pool in pools]), torch.cat([pool.labels for pool in pools])
        names = pools[0].label_names if len({pool.label_names for pool in pools}) == 1 else ()
        views = tuple(dict.fromkeys(view for pool in pools for view in pool.views))
        return replace(pools[0], inputs=inputs, labels=labels, views=views, label_names=names)

    def divide(self, examples: Examples, rng: np.random.Generator) -> Division:
        pools = [part.examples for part in self.parts]
        divisions, before = [], 0
        for part, pool, own_rng in zip(self.parts, pools, rng.spawn(len(pools)), strict=True):
            division = part.divide(pool, own_rng)
            train, test = (_renumber(index, pool, before, examples) for index in (division.train, division.test))
            divisions.append(replace(division, train=train, test=test))
            before += len(pool)
        kinds = [division.skew for division in divisions]
        joined = join_divisions(divisions)
        clusters = number_clusters([division.true_clusters for division in divisions])
        return replace(joined, true_clusters=clusters, skew=skew_name(*kinds, *["feature"] * (len(kinds) > 1)))


def number_clusters(clusters: Sequence[Tensor]) -> Tensor:
    """Renumbers the true clusters of all parts from 0 without gaps, part by part.

    Args:
        clusters: Clusters of each part, int64 `[clients]`; -1 = unknown, which stays -1 unless the part has no others.
    """
    numbers, count = [], 0
    for part in clusters:
        values, place = part.unique(return_inverse=True)
        place = place - int(len(values) > 1 and values[0] < 0)  # -1 (unknown) is the lowest value, and stays -1
        numbers.append(place.where(place < 0, place + count))
        count += int(place.max()) + 1
    return torch.cat(numbers)


def _renumber(index: ClientIndex, pool: Examples, before: int, whole: Examples) -> ClientIndex:
    """Converts a part's indices to those of the joint pool.

    Args:
        pool: Examples of the part, preceded by `before` others.
        whole: Examples of the whole.
    """
    places = torch.tensor([whole.views.index(view) for view in pool.views])
    view, example = index.values // len(pool), index.values % len(pool)
    return replace(index, values=places[view] * len(whole) + before + example)


def _require_no_options(part: FederatedDataModule, where: str) -> None:
    if not isinstance(part, FederatedDataModule):
        raise InputError(f"{where} is {part!r}; give a data module, such as Digits()")
    for name, option in signature(FederatedDataModule).parameters.items():
        if (value := getattr(part, name)) != option.default:
            raise InputError(f"{name} is {value!r} in {where}, where it has no effect; set it on the Hybrid")


def _require_alike(first: Examples, other: Examples, where: str) -> None:
    """Raises InputError unless the examples of a part fit those of the first one."""
    facts = _facts_of(first)
    for name, value in _facts_of(other).items():
        unnamed = name == "columns" and not (value and facts[name])
        if not unnamed and facts[name] != value:
            mine, others = (str(one)[:60] for one in (facts[name], value))
            raise InputError(f"{name} of parts[0]: {mine}; of {where}: {others}; make them equal")
    first.require_same_labels(other, where)


def _facts_of(examples: Examples) -> dict[str, Any]:
    """Returns what must be equal in all parts, as values that `==` compares."""
    numbers = {name: getattr(examples, name) for name in ("scale", "offset", "vocabulary", "embeddings")}
    return {
        **{name: one.tolist() if isinstance(one, Tensor) else one for name, one in numbers.items()},
        "dtype of inputs": examples.inputs.dtype,
        "shape of inputs": examples.input_shape,
        "columns": examples.input_names,
        "labels": examples.labels_in_words,
        "words of token ids": examples.words,
    }
