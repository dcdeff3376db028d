"""Opens a finished or interrupted run in a notebook: its files as tables, its models ready to predict."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from io import BytesIO
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.algorithms.base import Assignment, OwnLayers, State
from lit_cfl.config.files import code_folders
from lit_cfl.config.own_code import announce_own_code
from lit_cfl.data import FederatedData
from lit_cfl.data.federated import with_lists
from lit_cfl.errors import InputError
from lit_cfl.experiment import Experiment, PreparedRun
from lit_cfl.notebook import MAIN, as_html, shorten
from lit_cfl.runs.client_rounds import read_parts
from lit_cfl.runs.newcomers import PlacedNewcomers, place_newcomers
from lit_cfl.runs.resume import (
    disagreements,
    require_recorded_config,
    require_same_digests,
    with_own_partition,
    with_stored_plan,
)
from lit_cfl.storage.checkpoint import Checkpoint, state_from_dict
from lit_cfl.storage.config_file import require_config
from lit_cfl.storage.csv_log import read_frame, text_of
from lit_cfl.storage.digests import find_changed

if TYPE_CHECKING:
    from pandas import DataFrame


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
        table: Text of `metrics.csv` at that round.
    """

    path: Path
    config: Mapping[str, Any]
    experiment: Experiment
    round: int
    state: State
    lists: Mapping[str, Tensor] | None
    table: bytes

    def __repr__(self) -> str:
        tensors = {f.name: getattr(self.state, f.name) for f in fields(self.state)}
        shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in tensors.items() if isinstance(part, Tensor))
        of = f"{type(self.experiment.algorithm).__name__}, round {self.round} of {self.experiment.rounds}"
        return shorten(f"<SavedRun {self.path}: {of}; {shapes}>")

    def _repr_html_(self) -> str:
        return as_html(self, self.path, self.metrics.filter(regex=MAIN))

    @property
    def metrics(self) -> "DataFrame":
        """`metrics.csv` up to the saved round: one row per evaluated round; blanks are nan."""
        return read_frame(BytesIO(self.table))

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
        if find_changed(self.path, [name]):
            raise InputError(
                f"{self.path / name} was changed or damaged since the run ended; put the original back, or use lit-cfl "
                f"run --resume {self.path} to write again what it can"
            )
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
        return place_newcomers(self.prepared, self.state, self.round, data, unlabelled)


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
        announce_own_code(path, [config], code_folders(words, path))
        experiment = parse_run(words, opened=path).experiment
    else:
        experiment = _for_seed_of_run(path, config, experiment)
    content = Checkpoint(path).load()
    if content is None:
        raise InputError(f"{path} has no checkpoint yet; wait until the run has saved one")
    require_recorded_config(path, content, config)
    experiment = with_own_partition(experiment, path, content)
    try:
        experiment = with_stored_plan(experiment, config)
    except InputError:  # this machine cannot train under that plan, but any plan can predict
        experiment = experiment.with_options(plan=None, device="auto")
    state = state_from_dict(experiment.algorithm.state_type, content["state"])
    table = b"".join(text_of(content["parts"]["metrics.csv"], content["tables"]["metrics.csv"]))
    saved = SavedRun(path, config, experiment, content["round"], state, content["lists"], table)
    try:
        prepared = saved.prepared
    except InputError as error:
        raise InputError(f"opening {path} needs the run's own data, where they were: {error}") from error
    require_same_digests(path, content["fingerprint"], prepared.fingerprint)
    return saved
