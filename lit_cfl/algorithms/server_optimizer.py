"""Server optimizers such as FedAvgM and FedAdam inside clusters, for every algorithm that averages in clusters.

arXiv:2003.00295, Algorithm 2: the server takes a step of an optimizer along what the plain mean would change,
Delta = mean - model. Here the optimizer is one of PyTorch's and its gradient is -Delta.

The state of the optimizer (momentum, sums of squares, number of steps) belongs to a cluster's model:
* a cluster without training takes no step, and its state is unchanged;
* clients that migrate change no state;
* a cluster that starts from another cluster's model (a part after a split, the larger of merged clusters) takes over
  its state;
* a cluster whose model is new (a mean of merged clusters, a newcomer's) starts without a state.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, make_dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from lit_cfl.algorithms.base import Algorithm, Info, State
from lit_cfl.algorithms.mean_hooks import HookedWork, derive, field_values, plain, require_hook_used, require_means
from lit_cfl.errors import InputError, short_error
from lit_cfl.local_work import LocalWork

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
ServerState = dict[str, Tensor]  # the optimizer's state, float64 [K, ...], by PyTorch's names


def with_server(algorithm: Algorithm, make: OptimizerFactory | None) -> Algorithm:
    """Returns the algorithm with this server optimizer, whose state is in the fields `server` and `server_known`.

    Args:
        algorithm: Algorithm, which may have another server optimizer.
        make: Function that makes the optimizer of parameters, such as `functools.partial(torch.optim.SGD, lr=1.0,
            momentum=0.9)`; None = no server optimizer.

    Raises:
        InputError: the algorithm does not average models in clusters, or the optimizer cannot be used.
    """
    algorithm = plain(algorithm)
    if make is None:
        return algorithm
    require_means(algorithm, "server")
    _require_usable(make)
    own = [("server", ServerState, field(kw_only=True)), ("server_known", Tensor, field(kw_only=True))]
    kind = type(algorithm).state_type
    state = make_dataclass(kind.__name__, own, bases=(kind,), frozen=True, eq=False)
    return derive(algorithm, _WithServer, {"state_type": state, "make_optimizer": staticmethod(make)})


def _require_usable(make: OptimizerFactory) -> None:
    """Raises InputError unless the optimizer can take a step from gradients alone, and keeps only tensors as state."""
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    try:
        optimizer = make([parameter])
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    except Exception as error:  # a user's own optimizer may raise anything
        raise InputError(
            f"server cannot be used: {short_error(error)}; give an optimizer such as torch.optim.SGD, with its options"
        ) from error
    odd = [name for name, value in optimizer.state[parameter].items() if not isinstance(value, Tensor | None)]
    if odd:
        raise InputError(
            f"server: {type(optimizer).__name__} keeps a state {odd[0]!r} that is not a tensor; give another optimizer"
        )


class _WithServer(Algorithm):
    """Applies the server's step each time the algorithm averages the trained models of a round."""

    plain_kind: ClassVar[type[Algorithm]]  # the algorithm without a server optimizer

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        raise NotImplementedError("only the classes that `with_server` makes have a server optimizer")

    def init(self, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        state, info = plain(self).init(work, rng)  # which may call its own `place`, before there is an optimizer state
        return self._state(state, {}, torch.zeros(len(state.models), dtype=torch.bool)), info

    def round(self, state: State, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        step = _ServerStep(self.make_optimizer, state, work.layout.num_parameters)
        hooked = HookedWork(work, step)
        after, info = super().round(state, cohort, hooked, rng)  # type: ignore[safe-super]  # as above
        require_hook_used(self, "server", hooked, step.taken)
        if len(after.models) != len(step.models):  # otherwise each cluster has kept its number
            step.align(after.models, step.models)
        return self._state(after, step.state, step.known), info

    def place(self, state: State, clients: Tensor, work: LocalWork, rng: torch.Generator) -> tuple[State, Info]:
        step = _ServerStep(self.make_optimizer, state, work.layout.num_parameters)
        after, info = super().place(state, clients, work, rng)  # type: ignore[safe-super]  # as above
        step.align(after.models, state.models)
        return self._state(after, step.state, step.known), info

    def _state(self, state: State, server: ServerState, known: Tensor) -> State:
        plain = field_values(state, self.plain_kind.state_type)
        return self.state_type(**plain, server=server, server_known=known)


class _ServerStep:
    """The server optimizer's step in one round.

    Args:
        make: Function that makes the optimizer.
        state: State of the algorithm before the round.
        num_parameters: Number of columns that the optimizer changes; the buffers after them are averaged.
    """

    def __init__(self, make: OptimizerFactory, state: State, num_parameters: int) -> None:
        self._make, self._num_parameters = make, num_parameters
        self.state: ServerState = state.server
        self.known: Tensor = state.server_known  # True for clusters with an optimizer state, bool [K]
        self.models: Tensor = state.models  # models of the algorithm's state [K, d]
        self.taken = False

    def __call__(self, before: Tensor, means: Tensor, weights: Tensor) -> Tensor:
        """Takes a step from models `[K, d]` towards means `[K, d]` in the clusters whose weight `[K]` is above 0."""
        heard = weights > 0
        self.align(before, self.models)
        self.taken, self.models = True, means
        if _is_plain(self._make):
            return means
        clusters, own = heard.nonzero().flatten().tolist(), slice(self._num_parameters)
        rows = {k: nn.Parameter(before[k, own].to(torch.float64, copy=True)) for k in clusters}
        if not rows:
            return means
        optimizer = self._make(list(rows.values()))
        for k, row in rows.items():
            row.grad = row.detach() - means[k, own].double()
            if self.known[k]:
                optimizer.state[row] = {name: kept[k].clone() for name, kept in self.state.items()}
        optimizer.step()
        moved = means.clone()
        for k, row in rows.items():
            moved[k, own] = row.detach().to(moved.dtype)
        self._keep(torch.tensor(clusters), [optimizer.state[row] for row in rows.values()])
        self.known = self.known | heard
        self.models = moved
        return moved

    def _keep(self, clusters: Tensor, found: Sequence[Mapping[str, Tensor | None]]) -> None:
        """Stores the optimizer state of these clusters `[n]`, without changing the previous state."""
        for name in [name for name, value in found[0].items() if value is not None]:
            values = torch.stack([cast(Tensor, of_cluster[name]).detach() for of_cluster in found])
            kept = self.state.get(name, values.new_zeros(len(self.known), *values.shape[1:]))
            self.state = self.state | {name: kept.index_copy(0, clusters, values)}

    def align(self, now: Tensor, before: Tensor) -> None:
        """Gives each model in `now` `[K, d]` the optimizer state of the identical model in `before`, if any."""
        if now is before or (now.shape == before.shape and torch.equal(now, before)):
            return
        numbers = {row.numpy().tobytes(): k for k, row in reversed(list(enumerate(before)))}
        same = [k < len(before) and torch.equal(row, before[k]) for k, row in enumerate(now)]
        found = [k if same[k] else numbers.get(row.numpy().tobytes(), -1) for k, row in enumerate(now)]
        source = torch.tensor(found, dtype=torch.int64)
        self.known, *kept = (_append_zeros(rows)[source] for rows in (self.known, *self.state.values()))
        self.state = dict(zip(self.state, kept, strict=True))


def _append_zeros(rows: Tensor) -> Tensor:
    """Appends a row of zeros, so that index -1 selects zeros."""
    return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])


def _is_plain(make: OptimizerFactory) -> bool:
    """Returns whether a step equals the plain mean: SGD with lr 1 and no other option."""
    optimizer = make([nn.Parameter(torch.zeros(1))])
    group = optimizer.param_groups[0]
    others = any(group.get(name) for name in ("momentum", "weight_decay", "maximize"))
    return type(optimizer) is SGD and group["lr"] == 1 and not others
