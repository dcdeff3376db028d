"""The requests that an algorithm can make to clients. All engines give the same results up to rounding."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from lit_cfl.errors import InputError
from lit_cfl.memmap_rows import store_rows
from lit_cfl.parameters import ParameterLayout

__all__ = ["Budget", "Chunk", "ClientFunction", "Fitted", "LocalCosts", "LocalWork", "Statistic"]

Sketch = Callable[[Tensor], Tensor]  # rows [n, d] -> [n, smaller]
# models before [K, d], the means of their clients [K, d], total weights [K] -> models after [K, d]
MeanHook = Callable[[Tensor, Tensor, Tensor], Tensor]
Statistic = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""Answer of a client about its data."""

ClientFunction = Callable[..., Statistic]
"""A function of a client's inputs `[n, ...]` and labels `[n]`, and of a module if a model is sent with it."""


if TYPE_CHECKING:
    Length = int | Tensor
else:
    Length = int  # type in a configuration, whose help would list every subclass of Tensor


@dataclass(frozen=True, eq=False)
class Budget:
    """How long a client trains.

    In the code of an algorithm `length` may also be one number for each client of a fit, int64 `[n]`; 0 leaves a client
    out.

    Args:
        length: Number of epochs or steps, 1 or more.
        unit: `epochs` are full passes over the client's examples; `steps` are mini-batches, over several passes if
            needed.
        batch_size: Examples per mini-batch, `full` = all of the client's, None = the run's.
    """

    length: Length = 1
    unit: Literal["epochs", "steps"] = "epochs"
    batch_size: int | Literal["full"] | None = None

    def __post_init__(self) -> None:
        fraction = self.length.is_floating_point() if isinstance(self.length, Tensor) else self.length % 1
        if fraction:
            raise InputError(f"length is {self.length}; give a whole number of {self.unit}")
        too_short = bool((self.length < 0).any()) if isinstance(self.length, Tensor) else self.length < 1
        if too_short:
            raise InputError(
                f"length is {self.length}; a budget of {self.length} {self.unit} trains nothing; give 1 or more"
            )
        if isinstance(self.batch_size, int) and self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}; give 1 or more, or 'full'")


@dataclass(frozen=True, eq=False)
class Chunk:
    """Results of some of a fit's clients, in the requested order.

    Args:
        start: Position of the first client in the fit.
        models: Local models `[c, d]`, on the device that trained them; a client that did not train has the model it
            started from.
        losses: Mean training loss per example over the whole fit `[c]`; nan if the client did not train.
        trained: True for clients that trained, bool `[c]`; False = no training data, or diverged and left out.
    """

    start: int
    models: Tensor
    losses: Tensor
    trained: Tensor

    def on_cpu(self) -> "Chunk":
        """Returns the chunk with its models on the CPU; the chunk itself if they are already there."""
        return self if self.models.device.type == "cpu" else replace(self, models=self.models.cpu())


class Fitted:
    """The local models of a fit: all rows at once if they are held in memory, else chunks that can be read once.

    Algorithms read models on the CPU. Means and distances are computed on the models' device (`on_device`).

    Attributes:
        hook: Replaces the plain mean in `mean_by_cluster`; None = the plain mean.
    """

    def __init__(self, chunks: Iterable[Chunk], num_examples: Tensor, *, held: bool) -> None:
        """Reads all chunks if `held`, else none yet.

        Args:
            chunks: Chunks in order; consumed at once if `held`, else while `chunks()` is read.
            num_examples: Examples n_i of the requested clients `[n]`, the weights of `loss`.
            held: True to hold all rows in memory.
        """
        self.held = held
        self.hook: MeanHook | None = None
        self._num_examples = num_examples
        self._losses: list[Tensor] = []
        self._trained: list[Tensor] = []
        self._readers: list[Callable[[Chunk], None]] = []
        self._source: Iterator[Chunk] | None = iter(chunks)
        self._held = list(self._record()) if held else []

    def on_read(self, reader: Callable[[Chunk], None]) -> "Fitted":
        """Calls a function with each chunk when it is first read; at once if the fit is held. Returns the fit.

        Raises:
            RuntimeError: the fit is not held in memory and was read already.
        """
        if self._source is None and not self.held:
            raise RuntimeError("this fit was read already, so its chunks are gone; call on_read before")
        self._readers.append(reader)
        for chunk in self._held:
            reader(chunk.on_cpu())
        return self

    def read(self) -> "Fitted":
        """Reads all chunks, for the functions of `on_read`, `losses` and `trained`. Returns the fit."""
        for _ in self.on_device():
            pass
        return self

    def chunks(self) -> Iterator[Chunk]:
        """Yields the chunks in order. Raises RuntimeError on a second read, unless the fit is held in memory."""
        return (chunk.on_cpu() for chunk in self.on_device())

    def on_device(self) -> Iterator[Chunk]:
        """Yields the chunks as `chunks` does, with the models on the device that trained them."""
        return iter(self._held) if self.held else self._record()

    def _record(self) -> Iterator[Chunk]:
        if self._source is None:
            raise RuntimeError("this fit is not held in memory and was read already; read it once, or raise rows_mib")
        source, self._source = self._source, None
        for chunk in source:
            self._losses.append(chunk.losses)
            self._trained.append(chunk.trained)
            for reader in self._readers:
                reader(chunk.on_cpu())
            yield chunk

    def collect(self) -> Tensor:
        """Collects the local models `[trained, d]` of all clients that trained.

        Rows of a fit that is not held are stored in a temporary file, which is deleted with them.

        Raises:
            InputError: the disk has no room for the file.
        """
        if not len(self._num_examples):
            raise RuntimeError("no client was asked to train: there are no rows")
        found = (chunk.models[chunk.trained] for chunk in self.chunks())
        return torch.cat(list(found)) if self.held else store_rows(found, len(self._num_examples))

    @property
    def rows(self) -> Tensor:
        """All local models `[n, d]`, joined at each call. Raises RuntimeError if they are not held."""
        if not self.held:
            raise RuntimeError("the rows of this fit are not held in memory; read chunks() instead, or raise rows_mib")
        if not self._held:
            raise RuntimeError("no client was asked to train: there are no rows")
        parts = [chunk.models for chunk in self.chunks()]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def losses(self) -> Tensor:
        """Mean training loss of each client `[n]`, nan if it did not train. Complete once all chunks are read."""
        self._require_all()
        return torch.cat(self._losses) if self._losses else torch.empty(0)

    @property
    def trained(self) -> Tensor:
        """True for clients that trained, bool `[n]`. Complete once all chunks are read."""
        self._require_all()
        return torch.cat(self._trained) if self._trained else torch.empty(0, dtype=torch.bool)

    @property
    def loss(self) -> float:
        """Mean of `losses` weighted by the number of examples; nan if no client trained."""
        trained = self.trained
        weights = self._num_examples[trained].double()
        return float((self.losses[trained].double() * weights).sum() / weights.sum())

    @property
    def skipped(self) -> int:
        """Number of clients that did not train."""
        return int((~self.trained).sum())

    def _require_all(self) -> None:
        if sum(map(len, self._trained)) != len(self._num_examples):
            raise RuntimeError("read the chunks of this fit first (mean_by_cluster does): losses come with them")


@dataclass
class LocalCosts:
    """Counts of the clients' computations for an algorithm, without evaluations.

    Args:
        steps: Number of mini-batches that clients trained on; a gradient over all examples of a client counts as one.
        examples: Number of examples in these mini-batches, counted each time.
        scored: Number of examples used without training: for a loss, counted once per model, such as IFCA's choice
            among k models, or for a statistic (`map`).
    """

    steps: int = 0
    examples: int = 0
    scored: int = 0

    def plus(self, more: "LocalCosts") -> "LocalCosts":
        """Returns the sums of both objects' counts."""
        return LocalCosts(self.steps + more.steps, self.examples + more.examples, self.scored + more.scored)


class LocalWork(Protocol):
    """The clients' work in one round, on the round's data."""

    @property
    def costs(self) -> LocalCosts:
        """Counts of the clients' computations requested through this object so far."""

    @property
    def round(self) -> int:
        """Number of rounds completed before this one: 0 in the first round.

        It is the key of the round's random streams.
        """

    @property
    def layout(self) -> ParameterLayout:
        """Names, shapes and columns of the tensors in a row."""

    @property
    def population(self) -> Tensor:
        """Ids of the clients in training, ascending int64, without newcomers."""

    @property
    def num_examples(self) -> Tensor:
        """n_i, the number of each client's training examples, int64 `[clients]`."""

    @property
    def label_counts(self) -> Tensor:
        """Number of each client's training examples with each label, int64 `[clients, labels]`."""

    @property
    def true_clusters(self) -> Tensor:
        """The true cluster of each client, int64 `[clients]`, -1 = unknown. Only for algorithms with `sees_truth`."""

    @property
    def budget(self) -> Budget:
        """The run's budget: how long clients train if a fit names no other budget."""

    @property
    def skew(self) -> str:
        """The kind of skew generated by the data module: `feature`, `label` or `other`."""

    @property
    def bytes_up(self) -> int:
        """Bytes that clients have sent in answers to `map` so far; the round loop counts them as traffic."""

    def initial(self, number: int) -> Tensor:
        """Returns the run's initial model `[d]` with this number: 0 is w_0, the others are for further clusters."""

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
        """Trains clients, each from its start model. A client may occur several times, with several models.

        Args:
            models: `[K, d]`.
            clients: Ids int64 `[n]`.
            start: Client k starts from `models[start[k]]`; one number = the same for all.
            purpose: Name of the random stream: batches depend on (seed, purpose, round, client).
            prox: Strength of the proximal term prox/2 * |w - center|^2 of each client's loss; 0 or more.
            centers: `[C, d]`, needed if `prox` is not 0; client k is pulled to `centers[center[k]]`.
            budget: Length of the training; None = the run's.
            weights: Factor of the loss of each training example, 0 or more, client by client as `example_losses` lists
                them `[sum of n_i]`; None = 1. A mini-batch still divides by its number of examples, and what the task
                adds to each loss, such as `kernel_l2`, keeps the factor 1. `Fitted.losses` include the factors.
        """

    def gradients(self, model: Tensor, clients: Tensor, sketch: Sketch | None = None) -> Tensor:
        """Computes each client's mean training gradient at `model` `[d]`: rows `[n, d]`, 0 in the buffers' columns."""

    def losses(self, models: Tensor, clients: Tensor) -> Tensor:
        """Computes each model's mean loss on each client's training examples: `[n, K]`, nan without examples.

        Args:
            models: `[K, d]`.
            clients: Ids int64 `[n]`.
        """

    def example_losses(self, models: Tensor, clients: Tensor) -> Tensor:
        """Computes each model's loss on each training example of the clients, float64 `[K, sum of n_i]`.

        Examples are listed client by client, always in the same order within a client. The losses stay with the
        clients: an algorithm computes from them what each client would compute.

        Args:
            models: `[K, d]`.
            clients: Ids int64 `[n]`.
        """

    def map(self, function: ClientFunction, clients: Tensor, model: Tensor | None = None) -> list[Statistic | None]:
        """Runs a function on each client's training examples, and returns the results.

        The size of the answers is counted as traffic. The model, if one is given, is counted by the algorithm that
        sends it, in `Info.down`, as in `fit`.

        Args:
            function: `function(inputs, labels)` or, with a model, `function(inputs, labels, module)`. It returns a
                tensor, or a tuple or dict of tensors, and changes nothing else. Inputs `[n_i, ...]` are as in training.
                It may run in another process.
            clients: Ids int64 `[n]`.
            model: A row `[d]`; the function receives the task's module with it, in evaluation mode and without
                gradients.

        Returns:
            the answer of each client, on the CPU; None for a client without training examples.

        Raises:
            InputError: the function returns something else; the message names the client.
        """


def keep_statistic(found: Any, client: int) -> Statistic:
    """Copies a client's tensors to the CPU, so that they do not keep other memory alive.

    Raises:
        InputError: the answer is not a tensor, or a tuple or dict of tensors.
    """
    if isinstance(found, Tensor):
        return _copy_to_cpu(found)
    named = type(found) is dict and all(isinstance(name, str) for name in found)
    parts = _parts_of(found)
    if (named or type(found) is tuple) and all(isinstance(part, Tensor) for part in parts):
        kept = map(_copy_to_cpu, parts)
        return dict(zip(found, kept, strict=True)) if named else tuple(kept)
    kinds = sorted({type(part).__name__ for part in parts})
    raise InputError(
        f"client {client}: the function of work.map returns a {type(found).__name__}"
        f"{' of ' if kinds else ''}{', '.join(kinds)}; return a tensor, or a tuple or dict (with names as keys) of "
        "tensors"
    )


def _copy_to_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def count_bytes(statistics: Sequence[Statistic | None]) -> int:
    """Counts the bytes of the clients' answers."""
    return sum(tensor.nbytes for statistic in statistics for tensor in _parts_of(statistic))


def _parts_of(found: Any) -> Sequence[Any]:
    """Returns the tensors of an answer, or nothing of another object."""
    if isinstance(found, dict):
        return list(found.values())
    return [found] if isinstance(found, Tensor) else found if isinstance(found, (tuple, list)) else ()


def per_client(which: Tensor | int, clients: Tensor) -> Tensor:
    """Returns one index per client, int64 `[n]`: the given tensor, or the given number for all.

    Raises:
        ValueError: there are more or fewer numbers than clients, or a number is negative.
    """
    if not isinstance(which, Tensor):
        return torch.full((len(clients),), which, dtype=torch.int64)
    if len(which) != len(clients):
        raise ValueError(f"{len(which)} numbers are given for {len(clients)} clients; give one for each")
    if bool((which < 0).any()):
        raise ValueError("a client has the model -1: clients without a model cannot be trained; place them first")
    return which.long()
