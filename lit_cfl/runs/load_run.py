"""Opens a finished or interrupted run in a notebook: its files as tables, its models ready to predict."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm, Assignment, OwnLayers, State
from lit_cfl.client_scores import SplitScores, score_clients
from lit_cfl.clustering.cluster_scores import agreement
from lit_cfl.config.files import code_folders
from lit_cfl.config.own_code import announce_own_code
from lit_cfl.data import FederatedData
from lit_cfl.data.federated import with_lists
from lit_cfl.engines.check_module import mark_tokens
from lit_cfl.engines.engine import Engine
from lit_cfl.errors import InputError, Notice, join_ids, name_clients
from lit_cfl.experiment import Experiment, PreparedRun
from lit_cfl.runs.client_rounds import read_parts
from lit_cfl.runs.resume import (
    disagreements,
    require_agreement,
    require_same_data,
    require_same_run,
    with_own_partition,
    with_stored_plan,
)
from lit_cfl.seeds import generator
from lit_cfl.storage.checkpoint import Checkpoint, state_from_dict
from lit_cfl.storage.config_file import require_config
from lit_cfl.storage.csv_log import Mark, read_frame, read_up_to_mark
from lit_cfl.storage.digests import require_undamaged

if TYPE_CHECKING:
    from pandas import DataFrame


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


@dataclass(frozen=True, eq=False, repr=False)
class SavedRun:
    """A finished or interrupted run, opened by `load_run`.

    Args:
        path: Run directory.
        config: Content of `config.yaml`.
        experiment: Experiment built from this configuration.
        round: Last saved round, 1 to T.
        state: State of the algorithm at that round.
        lists: Examples of each client at that round; None if no data shift.
        mark: Length of `metrics.csv` at that round.
    """

    path: Path
    config: Mapping[str, Any]
    experiment: Experiment
    round: int
    state: State
    lists: Mapping[str, Tensor] | None
    mark: Mark

    def __repr__(self) -> str:
        tensors = {f.name: getattr(self.state, f.name) for f in fields(self.state)}
        shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in tensors.items() if isinstance(part, Tensor))
        of = f"{type(self.experiment.algorithm).__name__}, round {self.round} of {self.experiment.rounds}"
        return f"<SavedRun {self.path}: {of}; {shapes}>"

    @property
    def metrics(self) -> "DataFrame":
        """`metrics.csv` up to the saved round: one row per evaluated round; blanks are nan."""
        return read_frame(BytesIO(read_up_to_mark(self.path / "metrics.csv", self.mark)))

    @property
    def clients(self) -> "DataFrame":
        """`clients.csv`: one row per client, in order, with `name` if the source has names; blanks are nan."""
        return read_frame(self._written_at_the_end("clients.csv"), "name")

    @property
    def client_rounds(self) -> "DataFrame":
        """`client_rounds.parquet` up to the saved round: one row per evaluated round and client."""
        return read_parts(self.path, self.round)

    @property
    def memberships(self) -> dict[str, np.ndarray]:
        """Arrays `rounds` [R], `cluster` [R, clients] (-1 = none) and `true_cluster` [clients] (-1 = unknown)."""
        with np.load(self._written_at_the_end("memberships.npz")) as arrays:
            return dict(arrays)

    def _written_at_the_end(self, name: str) -> Path:
        if not (self.path / name).exists():
            raise InputError(
                f"{self.path} has no {name} yet: it is written at the end; resume with --resume {quote(str(self.path))}"
            )
        require_undamaged(self.path, name)
        return self.path / name

    @cached_property
    def prepared(self) -> PreparedRun:
        """The run's data, and an engine for this machine."""
        return self.experiment.prepare(self.experiment.seeds[0])

    @cached_property
    def data(self) -> FederatedData:
        """The examples of each client at the last saved round."""
        data = self.prepared.data
        return with_lists(data, self.lists) if self.lists else data

    def served(self) -> Assignment:
        """Returns the run's models, and which of them each client uses."""
        clients = torch.arange(self.prepared.data.num_clients)
        return self.experiment.algorithm.serve(self.state, clients)

    def module(self, cluster: int) -> LightningModule:
        """Builds a cluster's LightningModule in evaluation mode, for `lightning.Trainer().predict(module, loader)`.

        Layers that clients keep (`personal`) are the mean over the cluster's clients.
        """
        models = self.served().models
        if not 0 <= cluster < len(models):
            raise InputError(f"there is no cluster {cluster} in {self.path}; clusters are 0 to {len(models) - 1}")
        return self.prepared.engine.module(models[cluster]).eval()

    def client_module(self, client: int) -> LightningModule:
        """Builds a client's LightningModule in evaluation mode: its cluster's model with the client's personal layers.

        Raises:
            InputError: there is no such client, or it has no model yet.
        """
        served, number = self.served(), self.prepared.data.num_clients
        given: Any = client
        if isinstance(given, str):
            names = self.prepared.data.names
            known = f", {names.index(given)} for this name" if given in names else ""
            raise InputError(f"client is {given!r}; give its number, 0 to {number - 1}{known}")
        if not 0 <= client < number:
            raise InputError(f"there is no client {client} in {self.path}; clients are 0 to {number - 1}")
        index = served.index[client : client + 1]
        if int(index) < 0:
            raise InputError(
                f"client {client} has no model yet; use `assign`, which finds one for clients that never took part"
            )
        if served.weights is not None:
            raise InputError(
                f"client {client} uses a mixture of models, not a single one; mix the outputs of module(0), module(1), "
                "... by served().weights with module.mix_outputs"
            )
        own = served.own or OwnLayers(index[:0], {})
        return self.prepared.engine.module(own.models_of(torch.tensor([client]), served.models, index)[0]).eval()

    def assign(self, data: FederatedData, *, unlabelled: bool = False) -> PlacedNewcomers:
        """Assigns the clients of other data as newcomers, by the algorithm's rule and from their training data.

        Args:
            data: Clients to place.
            unlabelled: Use only the inputs: the clients have no labels, or these are hidden until the models are
                scored.

        Raises:
            InputError: token ids stand for other words than in the run, columns of a table have other names, inputs or
                labels have another shape or other values, or the algorithm cannot place clients without labels.
        """
        if not isinstance(data, FederatedData):
            raise InputError(
                f"data has the type {type(data).__name__}; give clients, such as ArrayData(...).federated(seed=0)"
            )
        data = mark_tokens(data, lambda: self.prepared.engine.template)
        mine = self.prepared.data.examples
        theirs = data.examples.renumber_labels(mine)
        known_test = self._count_known_test(data)
        self._note_known_names(data)
        without = theirs.label_kind == "none" != mine.label_kind
        if without and not unlabelled:
            rule = type(self.experiment.algorithm)
            if rule.place_unlabelled is Algorithm.place_unlabelled:
                otherwise = f"since {rule.__name__} cannot place clients without them"
            else:
                otherwise = "or place them by their inputs with --unlabelled (in Python: unlabelled=True)"
            raise InputError(f"these clients have no labels; give labels, {otherwise}")
        mine.require_same_inputs(theirs)  # names columns, so it comes before the shapes
        alike = mine.label_kind == theirs.label_kind and mine.labels.shape[1:] == theirs.labels.shape[1:]
        fit = without or mine.label_kind == "none" or (alike and theirs.num_labels <= mine.num_labels)
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
        theirs.require_known_labels(mine)
        mine.require_same_labels(theirs, "these data")
        if theirs.vocabulary > mine.vocabulary:
            raise InputError(
                f"the run's data have {mine.vocabulary} token ids, but these data have {theirs.vocabulary}: its "
                "models cannot take them; give clients of the run's own source"
            )
        if mine.label_kind == "none":
            theirs = theirs.without_labels()
        elif not without:  # uses the run's label space, as these clients may lack some labels
            theirs = replace(theirs, num_labels=mine.num_labels, label_names=mine.label_names)
        data = replace(data, examples=theirs)
        algorithm, engine = self.experiment.algorithm, self.prepared.engine
        known, names, truth = self.prepared.data.num_clients, data.names, data.true_clusters
        data = data.offset_clients(known)  # gives the clients ids that the run does not use
        clients = torch.arange(known, data.num_clients)
        index = self.round - 1  # algorithms count rounds from 0 (see `Round`)
        rng = generator(engine.seed, "assign", index)
        shown = replace(data, examples=data.examples.without_labels()) if unlabelled else data
        place = algorithm.place_unlabelled if unlabelled else algorithm.place
        with name_clients(data.names):
            state, info = place(self.state, clients, engine.at(index, shown), rng)
            found = algorithm.serve(state, clients)
            placed = found.index >= 0
            test = None
            if placed.any() and data.test.sizes.any() and theirs.label_kind == mine.label_kind:
                some, which = found.select(placed), clients[placed]
                test = score_clients(
                    engine, some.models, some.index, which, data, "test", own=some.own, weights=some.weights
                )
                if known_test:
                    warnings.warn(
                        f"{known_test} of the {len(data.test.entries)} test examples of these clients are training "
                        "data of the run's clients, so their scores do not show how well new clients do; for that, "
                        "set data.newcomers in the run, or give another source here",
                        Notice,
                        stacklevel=2,
                    )
        scored = placed & (truth >= 0)
        agreed = agreement(found.index[scored], truth[scored]) if scored.sum() > 1 else {}
        return PlacedNewcomers(found, self._has_new_model(found), info.closeness, test, engine, agreed, names)

    def _count_known_test(self, data: FederatedData) -> int:
        """Counts test examples in `data` on which the run's clients trained; 0 if its examples are not the run's."""
        own = self.prepared.data
        if data.examples.fingerprint != own.examples.fingerprint:
            return 0
        trained = own.train.select(own.population).entries % len(own.examples)
        return int(torch.isin(data.test.entries % len(data.examples), trained).sum())

    def _note_known_names(self, data: FederatedData) -> None:
        """Warns of clients in `data` whose names are those of clients that the run has trained."""
        mine = self.prepared.data
        trained = {mine.names[client] for client in mine.population.tolist()} - {""} if mine.names else set()
        shared = [name for name in data.names if name in trained]
        if shared and data.examples.fingerprint != mine.examples.fingerprint:
            warnings.warn(
                f"among these clients are names of the run's clients ({join_ids(shared)}); if they are the same, they "
                "are not newcomers, and their test examples may have been trained on",
                Notice,
                stacklevel=3,
            )

    def _has_new_model(self, found: Assignment) -> Tensor:
        """Finds the clients assigned to a model that the run does not have, bool `[n]`."""
        models = self.served().models
        new = torch.ones(len(found.models), dtype=torch.bool)
        both = min(len(models), len(found.models))
        # compares values, since another model may have received a number that became free
        new[:both] = (found.models[:both] != models[:both]).any(1)
        return (found.index >= 0) & new[found.index]


def _for_seed_of_run(path: Path, config: Mapping[str, Any], experiment: Experiment) -> Experiment:
    """Returns the experiment with the run's seed. Raises InputError if the run belongs to another experiment."""
    seed = config["seeds"][0]
    experiment = experiment.for_seed(seed) if seed in experiment.seeds else experiment
    now = experiment.to_dict()
    if config.get("made_in_python") != now.get("made_in_python"):
        return experiment  # cannot be compared: an experiment from a file describes its classes differently
    found = disagreements(config, now, {"name", "rounds"}, new_plan=True)
    if found:
        raise InputError(
            f"{path} belongs to another experiment: {'; '.join(found)}. Give the experiment that it ran (for the "
            "folder baseline/ of a run: experiment.for_baseline())"
        )
    return experiment


def load_run(path: Path | str, experiment: Experiment | None = None) -> SavedRun:
    """Opens the run in a directory.

    Args:
        path: Folder of the run (of one seed if there are several).
        experiment: Experiment that was run, with any seed; needed for a run made in Python, whose configuration names
            no classes.

    Raises:
        InputError: the folder holds no run, no saved round, or a run of another experiment.
    """
    path = Path(path)
    config = require_config(path)
    if seeds := sorted(part.name for part in path.glob("seed-*")):
        raise InputError(f"{path} holds several runs; give one of its seeds: {', '.join(seeds)}")
    if experiment is None:
        if config.get("made_in_python"):
            raise InputError(
                f"{path} was made in Python; give its experiment, too: load_run({str(path)!r}, experiment)"
            )
        from lit_cfl.config.parser import parse_run  # needs jsonargparse, which GPU machines may lack

        words = ["--config", str(path / "config.yaml")]
        announce_own_code(path, [path], code_folders(words, path))
        experiment = parse_run(words, opened=path).experiment
    else:
        experiment = _for_seed_of_run(path, config, experiment)
    content = Checkpoint(path).load()
    if content is None:
        raise InputError(f"{path} has no checkpoint yet; wait until the run has saved one")
    require_same_run(path, content)
    experiment = with_own_partition(experiment, path, content)
    try:
        experiment = with_stored_plan(experiment, config)
    except InputError:  # this machine cannot train under that plan, but any plan can predict
        experiment = experiment.with_options(plan=None, device="auto")
    require_agreement(path, json.loads(content["config"]), config, new_plan=True)
    state = state_from_dict(experiment.algorithm.state_type, content["state"])
    saved = SavedRun(
        path, config, experiment, content["round"], state, content["lists"], content["tables"]["metrics.csv"]
    )
    try:
        prepared = saved.prepared
    except InputError as error:
        raise InputError(f"opening {path} needs the run's own data, where they were: {error}") from error
    require_same_data(path, content, prepared)
    return saved
