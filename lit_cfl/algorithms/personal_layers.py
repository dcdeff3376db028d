"""Personal layers, which clients train but neither send nor average, for every algorithm that sends models.

With BatchNorm layers and FedAvg this is FedBN (arXiv:2102.07623), with the last layers FedPer (arXiv:1912.00818). The
algorithm sees models without these layers, so means, mixes, similarities, distances and traffic are of the other layers
only.

Where this differs from the papers:
* a client that never trained, such as a newcomer, has the mean of the personal layers of its cluster's clients when it
  chooses a cluster, starts training or is scored; if the cluster has none, the mean over all clients, and before anyone
  has trained those of w_0. FedBN's published code starts every client from w_0. This mean is not counted as traffic.
* training from w_0 that only serves to compare clients (pre-training, Psi) starts from w_0's personal layers, so that
  all clients start from one model. Personal layers are kept only from the training of a round, not from pre-training or
  placing.
* a proximal term pulls the personal layers towards those with which the client started the round.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, make_dataclass, replace
from functools import cache, cached_property, partialmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm, Assignment, Info, OwnLayers, State
from lit_cfl.algorithms.mean_hooks import derive, field_values
from lit_cfl.errors import InputError
from lit_cfl.local_work import Budget, Chunk, ClientFunction, Fitted, LocalWork, Sketch, Statistic, per_client
from lit_cfl.memmap_rows import collect_rows, keep_row
from lit_cfl.parameters import ParameterLayout


def with_personal_layers(algorithm: Algorithm, patterns: Sequence[str] | None) -> Algorithm:
    """Returns the algorithm with these layers kept personal, in further fields of the state.

    Args:
        algorithm: Algorithm, which may have a server optimizer or shared layers.
        patterns: Names of layers, see `ParameterLayout.columns`; None = the algorithm unchanged.

    Raises:
        InputError: the clients of this algorithm cannot keep layers.
    """
    if patterns is None:
        return algorithm
    name = type(algorithm).__name__
    if not patterns:
        raise InputError("personal is []; name layers, such as [bn*], or leave it out")
    if reason := algorithm.reason_without_personal:
        raise InputError(f"personal is given, but {name} cannot use it: {reason}; leave out personal")
    own = [
        ("own_columns", Tensor, field(kw_only=True)),  # columns of the personal layers in a model, int64 [p]
        ("own_initial", Tensor, field(kw_only=True)),  # personal layers of w_0 [p]
        # [p] by client; large ones are stored in files, as in Ditto
        ("own_layers", dict[int, Tensor], field(kw_only=True)),
    ]
    kind = type(algorithm).state_type
    state = make_dataclass(kind.__name__, own, bases=(kind,), frozen=True, eq=False)
    content: dict[str, Any] = {"state_type": state, "personal_patterns": tuple(patterns)}
    if type(algorithm).place_unlabelled is not Algorithm.place_unlabelled:
        content["place_unlabelled"] = partialmethod(_Personal._run, "place_unlabelled")
    return derive(algorithm, _Personal, content)


class _Personal(Algorithm):
    """Runs the algorithm on models without the personal layers, which stay with the clients."""

    plain_kind: ClassVar[type[Algorithm]]  # the algorithm without personal layers
    personal_patterns: ClassVar[tuple[str, ...]]

    @property
    def _inner(self) -> Any:
        return self.plain_kind(**field_values(self))

    def check(self, work: LocalWork) -> None:
        columns = personal_columns(work.layout, self.personal_patterns)
        _require_apart(work.layout, columns, getattr(self._inner, "shared_patterns", ()))
        self._inner.check(_work_before_training(work, columns))

    def sent_columns(self, layout: ParameterLayout) -> int:
        return layout.num_columns - len(personal_columns(layout, self.personal_patterns))

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        columns = personal_columns(work.layout, self.personal_patterns)
        state, info = self._inner.init(_work_before_training(work, columns), rng)
        own = {"own_columns": columns, "own_initial": work.initial(0)[columns], "own_layers": {}}
        return self.state_type(**field_values(state), **own), info

    def round(self, state: State, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        return self._run("round", state, cohort, work, rng)

    def place(self, state: State, clients: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        return self._run("place", state, clients, work, rng)

    def _run(
        self, method: str, state: State, clients: Tensor, work: LocalWork, rng: torch.Generator
    ) -> tuple[State, Info]:
        before = self._without(state)

        def clusters() -> tuple[Tensor, Tensor]:
            return self._inner.serve(before, work.population[:0]).models, self._means(state, before)

        personal = _PersonalWork(work, state.own_columns, state.own_initial, state.own_layers, clusters)
        after, info = getattr(self._inner, method)(before, clients, personal, rng)
        own = {"own_columns": state.own_columns, "own_initial": state.own_initial, "own_layers": personal.kept}
        return self.state_type(**field_values(after), **own), info

    def serve(self, state: State, clients: Tensor) -> Assignment:
        before, columns = self._without(state), state.own_columns
        served: Assignment = self._inner.serve(before, clients)
        means = self._means(state, before)
        extra = {name: insert_layers(row[None], columns, means[-1:])[0] for name, row in served.extra.items()}
        models = insert_layers(served.models, columns, means[:-1])
        return Assignment(models, served.index, extra, OwnLayers(columns, state.own_layers))

    def _means(self, state: State, before: State) -> Tensor:
        """Computes mean personal layers `[K + 1, p]`: a row per cluster, then the mean over all clients.

        Args:
            before: State without personal layers.
        """
        clients = torch.tensor(sorted(state.own_layers), dtype=torch.int64)
        served: Assignment = self._inner.serve(before, clients)
        sums = state.own_initial.new_zeros(len(served.models) + 1, len(state.own_columns), dtype=torch.float64)
        counts = torch.zeros(len(sums), 1, dtype=torch.float64)
        for client, cluster in zip(clients.tolist(), served.index.tolist(), strict=True):
            sums[cluster] += state.own_layers[client]  # -1 is a client without a cluster, summed in the last row
            counts[cluster] += 1
        everyone = sums.sum(0) / counts.sum() if len(clients) else state.own_initial.double()
        means = torch.where(counts > 0, sums / counts, everyone)
        means[-1] = everyone
        return means.to(state.own_initial.dtype)

    def _without(self, state: State) -> State:
        kind = self.plain_kind.state_type
        return kind(**field_values(state, kind))


def personal_columns(layout: ParameterLayout, patterns: Sequence[str]) -> Tensor:
    """Finds the columns of these layers and of their buffers, such as running statistics: int64, ascending.

    Raises:
        InputError: a pattern matches nothing, or nothing that is trained is left.
    """
    columns = layout.columns_with_buffers(patterns)
    if int((columns < layout.num_parameters).sum()) == layout.num_parameters:
        raise InputError(
            f"personal is {list(patterns)}, which covers all trained layers, so nothing is left to average; name "
            "fewer layers, or run Local"
        )
    return columns


def _require_apart(layout: ParameterLayout, personal: Tensor, shared: Sequence[str]) -> None:
    both = personal[torch.isin(personal, layout.columns_with_buffers(shared))] if shared else personal[:0]
    if len(both):
        layer = next(slot.layer for slot in layout.slots if slot.start <= int(both[0]) < slot.stop)
        raise InputError(
            f"layer {layer!r} is in personal and in shared; a layer cannot be both, so leave it out of one of them"
        )


def insert_layers(models: Tensor, columns: Tensor, layers: Tensor) -> Tensor:
    """Inserts personal layers `[n, p]` at these columns into models without them `[n, d - p]`; returns `[n, d]`."""
    whole = models.new_empty(len(models), models.shape[1] + len(columns))
    whole[:, _others(columns, whole.shape[1])] = models
    whole[:, columns] = layers.to(models.dtype)
    return whole


def _others(columns: Tensor, number: int) -> Tensor:
    return torch.ones(number, dtype=torch.bool).index_fill_(0, columns, False).nonzero().flatten()


def _work_before_training(work: LocalWork, columns: Tensor) -> "_PersonalWork":
    """Returns the clients before the first round, when all of them have the personal layers of w_0."""
    w0 = work.initial(0)
    nobody = w0.new_empty(0, len(w0) - len(columns))
    return _PersonalWork(work, columns, w0[columns], {}, lambda: (nobody, w0[None, columns]))


class _PersonalWork:
    """Clients as the inner algorithm sees them: models lack the personal layers, which clients train and keep.

    Args:
        work: Clients, bound to the round.
        columns: Columns of the personal layers, ascending int64 `[p]`.
        initial: Personal layers of w_0 `[p]`.
        own: Personal layers by client, before the round.
        clusters: Returns the clusters' models `[K, d - p]` and mean personal layers `[K + 1, p]`, the last over all.
    """

    def __init__(
        self,
        work: LocalWork,
        columns: Tensor,
        initial: Tensor,
        own: Mapping[int, Tensor],
        clusters: Callable[[], tuple[Tensor, Tensor]],
    ) -> None:
        self._work, self._columns, self._initial, self._own = work, columns, initial, own
        self._others, self._find_clusters = _others(columns, work.layout.num_columns), clusters
        self.layout = work.layout.without(columns)
        self.kept = dict(own)  # personal layers by client, including this round's
        self._trained: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def initial(self, number: int) -> Tensor:
        return self._work.initial(number)[self._others]

    def fit(
        self,
        models: Tensor,
        clients: Tensor,
        start: Tensor | int = 0,
        *,
        purpose: str = "train",
        prox: float = 0.0,
        centers: Tensor | None = None,
        center: Tensor | int = 0,
        budget: Budget | None = None,
        weights: Tensor | None = None,
    ) -> Fitted:
        start, center, trains = per_client(start, clients), per_client(center, clients), purpose == "train"
        centers = centers if prox else None
        if trains:
            self._require_once(clients)
        if not len(clients) or (not trains and self._is_w0(models)):
            begin = self._with_w0_layers(models)
            centers = None if centers is None else self._with_w0_layers(centers)
        else:
            layers = self._layers(models, start, clients)
            begin = self._complete_each(models, start, layers)
            if centers is not None:
                same = centers is models and torch.equal(center, start)
                centers = begin if same else self._complete_each(centers, center, layers)
            start = center = torch.arange(len(clients))
        options: dict[str, Any] = {"prox": prox, "centers": centers, "center": center, "budget": budget}
        fitted = self._work.fit(begin, clients, start, purpose=purpose, weights=weights, **options)

        def chunks() -> Iterator[Chunk]:
            for chunk in fitted.on_device():
                if trains:
                    self._keep(chunk, clients)
                yield replace(chunk, models=chunk.models.index_select(1, self._others.to(chunk.models.device)))

        return Fitted(chunks(), self._work.num_examples[clients], held=fitted.held)

    def _require_once(self, clients: Tensor) -> None:
        asked = clients.tolist()
        if len(set(asked)) < len(asked) or self._trained.intersection(asked):
            raise InputError(
                "personal is given, but the algorithm trains several models of one client in a round, and a client "
                "keeps one set of layers; leave out personal"
            )
        self._trained.update(asked)

    def _keep(self, chunk: Chunk, clients: Tensor) -> None:
        ids = clients[chunk.start : chunk.start + len(chunk.models)].tolist()
        rows = chunk.models.index_select(1, self._columns.to(chunk.models.device)).cpu()
        for client, row, trained in zip(ids, rows, chunk.trained.tolist(), strict=True):
            if trained:
                self.kept[client] = keep_row(row, of=len(self._work.num_examples))

    def gradients(self, model: Tensor, clients: Tensor, sketch: Sketch | None = None) -> Tensor:
        def of_others(rows: Tensor) -> Tensor:
            return rows[:, self._others] if sketch is None else sketch(rows[:, self._others])

        if not len(clients) or self._is_w0(model):
            return self._work.gradients(self._with_w0_layers(model[None])[0], clients, of_others)
        groups = self._group_clients(clients)
        rows = [self._work.gradients(self._of(model[None], clients[k])[0], clients[k], of_others) for k in groups]
        return torch.cat(rows)[torch.cat(groups).argsort()]

    def losses(self, models: Tensor, clients: Tensor) -> Tensor:
        if not len(clients):
            return self._work.losses(self._with_w0_layers(models), clients)
        groups = self._group_clients(clients)
        found = [self._work.losses(self._of(models, clients[k]), clients[k]) for k in groups]
        return torch.cat(found)[torch.cat(groups).argsort()]

    def example_losses(self, models: Tensor, clients: Tensor) -> Tensor:
        found: dict[int, Tensor] = {}
        for k in self._group_clients(clients):
            some, sizes = clients[k], self._work.num_examples[clients[k]].tolist()
            losses = self._work.example_losses(self._of(models, some), some).split(sizes, dim=1)
            found |= dict(zip(some.tolist(), losses, strict=True))
        none = torch.empty(len(models), 0, dtype=torch.float64)
        return torch.cat([none, *(found[client] for client in clients.tolist())], dim=1)

    def map(self, function: ClientFunction, clients: Tensor, model: Tensor | None = None) -> list[Statistic | None]:
        if model is None:
            return self._work.map(function, clients)
        if self._is_w0(model):
            return self._work.map(function, clients, self._with_w0_layers(model[None])[0])
        answers: dict[int, Statistic | None] = {}
        for k in self._group_clients(clients):
            found = self._work.map(function, clients[k], self._of(model[None], clients[k])[0])
            answers |= dict(zip(clients[k].tolist(), found, strict=True))
        return [answers[client] for client in clients.tolist()]

    def _is_w0(self, models: Tensor) -> bool:
        return bool((models == self._w0).all())

    @cached_property
    def _w0(self) -> Tensor:
        return self.initial(0)

    @cached_property
    def _clusters(self) -> tuple[Tensor, Tensor]:
        return self._find_clusters()

    def _with_w0_layers(self, models: Tensor) -> Tensor:
        """Adds the personal layers of w_0 to models `[K, d - p]`."""
        return insert_layers(models, self._columns, self._initial)

    def _group_clients(self, clients: Tensor) -> list[Tensor]:
        """Groups positions of clients: those without personal layers together, each of the others alone."""
        new = torch.tensor([client not in self._own for client in clients.tolist()], dtype=torch.bool)
        together = [new.nonzero().flatten()] if new.any() else []
        return [*together, *(~new).nonzero()]

    def _of(self, models: Tensor, clients: Tensor) -> Tensor:
        """Adds the personal layers of a group from `_group_clients` to models `[K, d - p]`."""
        numbers = torch.arange(len(models))
        return self._complete_each(models, numbers, self._layers(models, numbers, clients[:1].expand(len(models))))

    def _layers(self, models: Tensor, start: Tensor, clients: Tensor) -> list[Tensor]:
        """Returns each client's personal layers `[p]`, or its cluster's mean if it has none."""
        mean = cache(lambda number: self._mean(models[number], number))
        pairs = zip(clients.tolist(), start.tolist(), strict=True)
        return [self._own[client] if client in self._own else mean(number) for client, number in pairs]

    def _mean(self, model: Tensor, number: int) -> Tensor:
        """Computes the mean personal layers of the cluster with this model, or of all clients if no cluster has it."""
        clusters, means = self._clusters
        if number < len(clusters) and torch.equal(clusters[number], model):
            return means[number]
        same = (clusters == model).all(1).nonzero().flatten().tolist()
        return means[same[0] if same else -1]

    def _complete_each(self, models: Tensor, which: Tensor, layers: Sequence[Tensor]) -> Tensor:
        """Adds each client's personal layers to its model; the result `[n, d]` is kept in a file if it is large."""
        pairs = zip(which.tolist(), layers, strict=True)
        rows = (insert_layers(models[None, number], self._columns, row[None]) for number, row in pairs)
        return collect_rows(rows, len(layers))
