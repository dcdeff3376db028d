"""Places the clients of other data in the clusters of a run, after matching their labels and columns to the run's."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm, Assignment, State
from lit_cfl.client_scores import SplitScores, score_clients
from lit_cfl.clustering.cluster_scores import agreement
from lit_cfl.data import Examples, FederatedData
from lit_cfl.engines.check_module import mark_tokens
from lit_cfl.engines.engine import Engine
from lit_cfl.errors import InputError, Notice, join_ids, name_clients
from lit_cfl.experiment import PreparedRun
from lit_cfl.notebook import short_repr
from lit_cfl.seeds import generator


@dataclass(frozen=True, eq=False)
class PlacedNewcomers:
    """Newcomers and the models that the algorithm gives them.

    Args:
        assignment: Models `[K, d]` and the cluster of each newcomer `[n]`, -1 = could not be placed (no data); also
            `weights` if newcomers use mixtures of models.
        new: True if the cluster was created for newcomers, bool `[n]`; the run then has no cluster of that number.
        closeness: Closeness to the run's clusters `[n, clusters]`, larger is closer; None if the algorithm compares
            nothing.
        test: Scores of the placed newcomers on their test data; None if there are none.
        agreement: Agreement of the newcomers' clusters with the true clusters, by metric; empty if these are unknown.
        names: Names of the newcomers in their source; empty = none.
        engine: Engine that builds modules from models.
    """

    assignment: Assignment
    new: Tensor
    closeness: Tensor | None
    test: SplitScores | None
    engine: Engine
    agreement: Mapping[str, float] = field(default_factory=dict)
    names: Sequence[str] = ()

    __repr__ = short_repr

    def module(self, newcomer: int) -> LightningModule:
        """Builds a newcomer's LightningModule in evaluation mode.

        Raises:
            InputError: there is no such newcomer, or it could not be placed.
        """
        clusters = self.assignment.index
        if not 0 <= newcomer < len(clusters):
            raise InputError(f"there is no newcomer {newcomer}; newcomers are 0 to {len(clusters) - 1}")
        if clusters[newcomer] < 0:
            raise InputError(f"newcomer {newcomer} has no model: it could not be placed; give it training data")
        if self.assignment.weights is not None:
            raise InputError(
                f"newcomer {newcomer} uses a mixture of models, not a single one; take the module of each cluster from "
                "the run, and mix their outputs by assignment.weights with module.mix_outputs"
            )
        return self.engine.module(self.assignment.models[clusters[newcomer]]).eval()


def place_newcomers(
    prepared: PreparedRun, state: State, round: int, data: FederatedData, unlabelled: bool
) -> PlacedNewcomers:
    """Places the clients of other data by the algorithm's rule, and scores them on their test data.

    Args:
        prepared: The run's data and an engine.
        state: State of the algorithm after `round` rounds.
        data, unlabelled: See `SavedRun.assign`.

    Raises:
        InputError: see `SavedRun.assign`.
    """
    if not isinstance(data, FederatedData):
        raise InputError(
            f"data has the type {type(data).__name__}; give clients, such as ArrayData(...).federated(seed=0)"
        )
    algorithm, engine, mine = prepared.experiment.algorithm, prepared.engine, prepared.data
    data = mark_tokens(data, lambda: engine.template)
    if (known := _describe_known(data, mine)) is not None:
        warnings.warn(known, Notice, stacklevel=3)
    lacks_labels = data.examples.label_kind == "none" != mine.examples.label_kind
    if lacks_labels and not unlabelled:
        raise InputError(f"these clients have no labels; give labels, {_without_labels(algorithm)}")
    names, truth = data.names, data.true_clusters
    data = replace(data, examples=match_examples(data.examples, mine.examples))
    data = data.offset_clients(mine.num_clients)  # gives the clients ids that the run does not use
    clients = torch.arange(mine.num_clients, data.num_clients)
    index = round - 1  # algorithms count rounds from 0 (see `Round`)
    rng = generator(engine.seed, "assign", index)
    shown = replace(data, examples=data.examples.without_labels()) if unlabelled else data
    place = algorithm.place_unlabelled if unlabelled else algorithm.place
    with name_clients(data.names):
        served = algorithm.serve(state, torch.arange(mine.num_clients)).models
        state, info = place(state, clients, engine.at(index, shown), rng)
        found = algorithm.serve(state, clients)
        placed, test = found.index >= 0, None
        if placed.any() and data.test.sizes.any() and not lacks_labels:
            some = found.select(placed)
            test = score_clients(
                engine, some.models, some.index, clients[placed], data, "test", own=some.own, weights=some.weights
            )
    scored = placed & (truth >= 0)
    agreed = agreement(found.index[scored], truth[scored]) if scored.sum() > 1 else {}
    return PlacedNewcomers(found, _has_new_model(found, served), info.closeness, test, engine, agreed, names)


def _without_labels(algorithm: Algorithm) -> str:
    """Returns what to do with clients without labels, other than giving labels."""
    if type(algorithm).place_unlabelled is Algorithm.place_unlabelled:
        return f"since {type(algorithm).__name__} cannot place clients without them"
    return "or place them by their inputs with --unlabelled (in Python: unlabelled=True)"


def _describe_known(data: FederatedData, mine: FederatedData) -> str | None:
    """Explains why clients may not be new: the run trained on their test examples, or clients of their names."""
    if data.examples.fingerprint == mine.examples.fingerprint:
        trained = mine.train.select(mine.population).entries % len(mine.examples)
        known = int(torch.isin(data.test.entries % len(data.examples), trained).sum())
        if not known:
            return None
        return (
            f"{known} of the {len(data.test.entries)} test examples of these clients are training data of the run's "
            "clients, so their scores do not show how well new clients do; for that, set data.newcomers in the run, "
            "or give another source here"
        )
    names = {mine.names[client] for client in mine.population.tolist()} - {""} if mine.names else set()
    shared = [name for name in data.names if name in names]
    if not shared:
        return None
    return (
        f"among these clients are names of the run's clients ({join_ids(shared)}); if they are the same, they are not "
        "newcomers, and their test examples may have been trained on"
    )


def _has_new_model(found: Assignment, models: Tensor) -> Tensor:
    """Finds the clients assigned to a model that is not one of the run's `models`, bool `[n]`."""
    new = torch.ones(len(found.models), dtype=torch.bool)
    both = min(len(models), len(found.models))
    # compares values, since another model may have received a number that became free
    new[:both] = (found.models[:both] != models[:both]).any(1)
    return (found.index >= 0) & new[found.index]


def match_examples(theirs: Examples, mine: Examples) -> Examples:
    """Returns newcomers' examples with the labels of the run's examples `mine`.

    Raises:
        InputError: the run's models cannot take these examples.
    """
    theirs = renumber_labels(theirs, mine)
    require_same_inputs(mine, theirs)  # names columns, so it comes before the shapes
    kinds = mine.label_kind, theirs.label_kind
    alike = kinds[0] == kinds[1] and mine.labels.shape[1:] == theirs.labels.shape[1:]
    fit = "none" in kinds or (alike and theirs.num_labels <= mine.num_labels)
    if mine.input_shape != theirs.input_shape or not fit:
        raise InputError(
            f"the run's examples have shape {mine.input_shape} and {mine.labels_in_words}, but these data have "
            f"{theirs.input_shape} and {theirs.labels_in_words}: the run's models cannot take them"
        )
    if mine.embeddings is None and mine.words != theirs.words:
        raise InputError(
            "the run's token ids stand for other words than those of these data, so its models cannot read "
            "these data; train a run that holds out the new clients from its own source (data.newcomers), or one "
            "with embeddings"
        )
    if mine.label_names:
        _require_known(theirs.label_names, mine.label_names)
    mine.require_same_labels(theirs, "these data")
    if theirs.vocabulary > mine.vocabulary:
        raise InputError(
            f"the run's data have {mine.vocabulary} token ids, but these data have {theirs.vocabulary}: its "
            "models cannot take them; give clients of the run's own source"
        )
    if mine.label_kind == "none":
        return theirs.without_labels()
    if theirs.label_kind == "none":
        return theirs
    # uses the run's label space, as these clients may lack some labels
    return replace(theirs, num_labels=mine.num_labels, label_names=mine.label_names)


def renumber_labels(theirs: Examples, mine: Examples) -> Examples:
    """Renumbers labels to match a run's numbers, by label name; if neither has label names, nothing changes.

    If only one of them has label names, the numbers of the other are its names: a word is not a number.

    Raises:
        InputError: an example has a label whose name the run does not know.
    """
    if theirs.label_names or mine.label_names:
        theirs, mine = _with_names(theirs), _with_names(mine)
    named = theirs.label_names and mine.label_names and theirs.label_kind == mine.label_kind == "classes"
    if not named or theirs.label_names == mine.label_names:
        return theirs
    numbers = {name: number for number, name in enumerate(mine.label_names)}
    present = theirs.labels.unique().tolist()
    _require_known([theirs.label_names[label] for label in present], mine.label_names)
    if any(view.label_map for view in theirs.views):
        return theirs
    new = [numbers.get(name, 0) for name in theirs.label_names]  # 0: no example has that label
    labels = torch.tensor(new, device=theirs.labels.device)[theirs.labels]
    return replace(theirs, labels=labels, num_labels=mine.num_labels, label_names=mine.label_names)


def _with_names(examples: Examples) -> Examples:
    """Names labels that have no names by their numbers."""
    if examples.label_names or examples.label_kind != "classes":
        return examples
    return replace(examples, label_names=tuple(map(str, range(examples.num_labels))))


def _require_known(names: Sequence[str], known: Sequence[str]) -> None:
    """Raises InputError if a label's name is not one of the run's."""
    unknown = [name for name in names if name not in known]
    if unknown:
        labels = "label" if len(unknown) == 1 else "labels"
        raise InputError(
            f"these data have the {labels} {', '.join(map(repr, unknown))}, but the run has only "
            f"{', '.join(map(repr, known))}, and its models cannot predict others; leave out their examples, or spell "
            "labels as in the run"
        )


def require_same_inputs(mine: Examples, theirs: Examples) -> None:
    """Raises InputError if the run's and other examples are tables with different input columns."""
    ours, others = mine.input_names, theirs.input_names
    if ours and others and ours != others:
        lacking = [name for name in ours if name not in others]
        parts = {
            "lack the column": lacking,
            "have the additional column": [name for name in others if name not in ours],
        }
        found = [f"{what} {', '.join(map(repr, names))}" for what, names in parts.items() if names]
        raise InputError(
            f"these data {' and '.join(found) or 'have the columns in another order'}, unlike those of the run; give "
            "the same columns in the same order"
        )
