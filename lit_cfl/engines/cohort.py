"""The local training of a cohort as tensors, the interface of the ways to compute it, and requests for it."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, ClassVar

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.data import FederatedData
from lit_cfl.data.augment import AugmentFunction
from lit_cfl.data.examples import Decoding
from lit_cfl.devices import send
from lit_cfl.engines.dropout import keys_of_steps, set_key
from lit_cfl.engines.mini_batches import LocalTraining, MiniBatches, Rates, draw_batches, steps_of_epoch
from lit_cfl.engines.plan import Plan, Precision, WayName, row_dtype
from lit_cfl.engines.scorer import EVALUATION_BATCH, Scorer
from lit_cfl.engines.task_protocol import differentiable_losses_of
from lit_cfl.local_work import Budget
from lit_cfl.parameters import ParameterLayout, copy_sharing_frozen
from lit_cfl.seeds import derive_each, seed_globally

if TYPE_CHECKING:  # it uses the ways
    from lit_cfl.engines.agreement import Trial

CHECK = "check"  # purpose of the fit that only checks whether clients can be trained
_BLOCK = 2**22  # maximum number of input values that are augmented at once
_NONE = torch.empty(0, dtype=torch.int64)
_NO_BATCHES = MiniBatches(_NONE, _NONE, _NONE)
Ended = Callable[[int], None]  # called with the number of finished clients; may raise, to end the run


@dataclass(frozen=True, eq=False)
class CohortFit:
    """Local training of n clients, each with at least one example and one step.

    `TrainingWay.gradients` also receives one, without models, centres and mini-batches, with one key per client.

    Args:
        clients: Ids, int64 `[n]`, on the CPU.
        models: Models that clients start from `[K, d]`, in the plan's dtype, on the device.
        start: Client i starts from `models[start[i]]`, int64 `[n]`, on the CPU.
        prox: Strength of the proximal term, 0 = none.
        centers: Proximal centres `[C, d]`, on the device; None without a proximal term.
        center: Client i is pulled to `centers[center[i]]`, int64 `[n]`, on the CPU.
        inputs, labels: Examples, client by client, `[N, ...]`, on the device; floating-point inputs have the plan's
            compute dtype.
        sizes: Number of examples of each client, int64 `[n]`, on the CPU; their sum is N.
        steps: Number of mini-batches that each client trains on, int64 `[n]`, on the CPU.
        epoch_steps: Number of mini-batches in one epoch of each client, int64 `[n]`, on the CPU.
        batches: Mini-batches of all clients, one per step.
        keys: Keys of the dropout masks, int64 `[sum of steps]`, on the CPU; None if the module has no dropout.
        seeds: Seed of the global generators for each client, for modules that draw random numbers; None if the way
            trains no such modules (`TrainingWay.seeds_global_generators`).
        rates: Learning rates of the optimizer's parameter groups; None = the optimizer's own.
        weights: Factor of each example's loss (`LocalWork.fit`) `[N]`, in the plan's dtype, on the device; None = 1.
        augment_keys: Keys of the changes of each mini-batch's examples, int64 `[sum of steps]`, on the CPU; None if the
            examples are not augmented, or were augmented already.
        decode: Converts inputs from bytes to floats; None = inputs are not bytes (`TrainingWay.reads_bytes`).
    """

    clients: Tensor
    models: Tensor
    start: Tensor
    prox: float
    centers: Tensor | None
    center: Tensor
    inputs: Tensor
    labels: Tensor
    sizes: Tensor
    steps: Tensor
    epoch_steps: Tensor
    batches: MiniBatches
    keys: Tensor | None
    seeds: list[int] | None = None
    rates: Rates | None = None
    weights: Tensor | None = None
    augment_keys: Tensor | None = None
    decode: Decoding | None = None

    def __len__(self) -> int:
        return len(self.clients)

    def select(self, clients: Tensor) -> "CohortFit":
        """Selects the clients at these positions, but only in the fields that `TrainingWay.gradients` reads."""
        starts = self.sizes.cumsum(0) - self.sizes
        sizes = self.sizes[clients]
        first = (starts[clients] - (sizes.cumsum(0) - sizes)).repeat_interleave(sizes)
        examples = (first + torch.arange(len(first))).to(self.inputs.device)
        return replace(
            self,
            clients=self.clients[clients],
            inputs=self.inputs[examples],
            labels=self.labels[examples],
            sizes=sizes,
            keys=None if self.keys is None else self.keys[clients],
            seeds=None if self.seeds is None else [self.seeds[k] for k in clients.tolist()],
        )

    @cached_property
    def starts(self) -> list[int]:
        """Position of each client's first example in `inputs`."""
        return (self.sizes.cumsum(0) - self.sizes).tolist()

    @cached_property
    def first_steps(self) -> list[int]:
        """Position of each client's first mini-batch in `batches`."""
        return (self.steps.cumsum(0) - self.steps).tolist()

    @property
    def num_seen(self) -> Tensor:
        """Number of examples in all mini-batches of each client, repeats included, int64 `[n]`."""
        counts = torch.cat([torch.zeros(1, dtype=torch.int64), self.batches.counts.cumsum(0)])
        ends = self.steps.cumsum(0)
        return counts[ends] - counts[ends - self.steps]


class TrainingWay(ABC):
    """A way to train clients locally.

    Args:
        module: The module as the user's task builds it; copies of it are trained.
        layout: Layout of the module's rows.
        plan: Device, precision, lanes.
        local: Options of local training, common to all clients.

    Attributes:
        name: Name in plans.
        is_collective: True if several clients train at once, so that an error cannot name one.
        seeds_global_generators: True if modules may draw random numbers themselves.
        reads_bytes: True if `fit`, on a CPU, accepts inputs as the bytes in which they are stored.
        reports_every_loss: False if a loss of NaN may mean that a module reported none.
        uses_compiled_steps: True if sums on a CPU round as `describe_steps` says.
    """

    name: ClassVar[WayName]
    is_collective: ClassVar[bool] = False
    seeds_global_generators: ClassVar[bool] = False
    reads_bytes: ClassVar[bool] = False
    reports_every_loss: ClassVar[bool] = True
    uses_compiled_steps: ClassVar[bool] = False

    def __init__(self, module: LightningModule, layout: ParameterLayout, plan: Plan, local: LocalTraining) -> None:
        self.layout, self.plan, self.local = layout, plan, local
        self._template = module
        self._placed: dict[torch.dtype, LightningModule] = {}

    @classmethod
    @abstractmethod
    def reason_against(cls, trial: "Trial", device: str, precision: Precision) -> str | None:
        """Explains in one line why clients cannot, or should not, train in this way; None if they can."""

    @classmethod
    def client_bytes(cls, trial: "Trial", precision: Precision, batch_size: int) -> int:
        """Estimates the device memory that a client takes while it trains, in bytes.

        Args:
            batch_size: Number of examples in a mini-batch.
        """
        return trial.layout.num_columns * row_dtype(precision).itemsize

    @abstractmethod
    def fit(self, work: CohortFit, ended: Ended) -> tuple[Tensor, Tensor]:
        """Trains the clients.

        Returns:
            the trained models `[n, d]` in the plan's dtype on the device, and the mean loss per example over the whole
            fit, float64 `[n]` on the CPU. NaN and infinity are returned unchanged.
        """

    @torch.no_grad()
    def gradients(self, model: Tensor, work: CohortFit, ended: Ended) -> Tensor:
        """Computes each client's gradient of its mean training loss, in training mode: `[n, d]`, 0 for buffers.

        Args:
            model: `[d]`, in the plan's dtype on the device.
        """
        rows = torch.zeros(len(work), self.layout.num_columns, dtype=self.plan.dtype, device=self.plan.device)
        starts = work.starts
        for client, size in enumerate(work.sizes.tolist()):
            own = slice(starts[client], starts[client] + size)
            key = None if work.keys is None else int(work.keys[client])
            with seed_globally(None if work.seeds is None else work.seeds[client], self.plan.device):
                self._gradient(model, work.inputs[own], work.labels[own], key, rows[client])
            ended(client + 1)
        return rows

    def _gradient(self, model: Tensor, inputs: Tensor, labels: Tensor, key: int | None, row: Tensor) -> None:
        """Adds the gradient of the mean loss over these examples to a row."""
        module = self.module_for_gradients
        self.layout.write(model, module)
        if key is not None:
            set_key(module, key)
        parameters = dict(module.named_parameters())
        trained = [slot for slot in self.layout.slots if not slot.is_buffer]
        count = ceil(len(labels) / EVALUATION_BATCH)
        for batch in zip(inputs.tensor_split(count), labels.tensor_split(count), strict=True):
            with torch.enable_grad():
                (differentiable_losses_of(module, batch).sum() / len(labels)).backward()  # also through checkpoints
            for slot in trained:
                if (gradient := parameters[slot.name].grad) is not None:
                    row[slot.start : slot.stop] += (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)
            module.zero_grad()

    def gradient_units(self, sizes: Tensor, clients: Tensor) -> list[Tensor]:
        """Groups clients into units, each to be computed in one process so that gradients stay bit-identical.

        Args:
            sizes: Number of examples of each client, int64 `[n]`.
            clients: Ids, int64 `[n]`.
        """
        return list(clients.argsort(stable=True).split(1))  # the same for any order of the clients

    @cached_property
    def module_for_gradients(self) -> LightningModule:
        """The copy of the module in the plan's dtype that computes gradients client by client."""
        return self.copy_module(self.plan.dtype)

    def scorer(self, seed: Callable[[int], None]) -> Scorer:
        """Returns an object that computes losses and scores of models.

        Args:
            seed: See `Scorer`.
        """
        return Scorer(self.copy_module(self.plan.dtype).eval(), self.layout, self.plan.dtype, seed)

    def copy_module(self, dtype: torch.dtype) -> LightningModule:
        """Copies the module to the plan's device; all copies of this dtype share the frozen parameters."""
        return copy_sharing_frozen(self.place_module(dtype))

    def place_module(self, dtype: torch.dtype) -> LightningModule:
        """Returns the shared copy of the module on the plan's device in this dtype. Callers must not change it."""
        if dtype not in self._placed:
            self._placed[dtype] = copy.deepcopy(self._template).to(device=self.plan.device, dtype=dtype)
        return self._placed[dtype]


@dataclass(frozen=True, eq=False)
class FitRequest:
    """The arguments of one call of `LocalWork.fit`, client by client."""

    models: Tensor  # [K, d]
    clients: Tensor  # [n]
    start: Tensor  # [n]
    purpose: str
    prox: float
    centers: Tensor | None  # [C, d]
    center: Tensor  # [n]
    budget: Budget
    lengths: Tensor  # [n], the budget's length for each client
    rates: Rates | None = None  # learning rates of the round; None = the optimizer's
    weights: Sequence[Tensor] | None = None  # factors of the losses of each client's examples [n]; None = 1

    @cached_property
    def counted(self) -> str:
        """What a fit trains: `client`, or `model` if a client trains several."""
        return "client" if len(self.clients.unique()) == len(self.clients) else "model"

    def part(self, positions: Tensor | slice) -> "FitRequest":
        """Returns the request for the clients at these positions."""
        weights = self.weights
        if weights is not None:
            numbers = torch.arange(len(weights))[positions].tolist()
            weights = [weights[k] for k in numbers]
        return replace(
            self,
            clients=self.clients[positions],
            start=self.start[positions],
            center=self.center[positions],
            lengths=self.lengths[positions],
            weights=weights,
        )


@dataclass(frozen=True)
class FitDescriber:
    """Builds the CPU tensors that specify local training: seeds, steps, mini-batches.

    May run in a thread while a GPU trains.

    Args:
        seed: The run's seed.
        local: The run's options of local training.
        draws_masks: True if the module has keyed dropout.
        seeds_generators: True if the module may draw from the global generators.
    """

    seed: int
    local: LocalTraining
    draws_masks: bool
    seeds_generators: bool

    def fit(self, request: FitRequest, round: int, data: FederatedData) -> CohortFit:
        """Builds the tensors for training the clients of a request, except the examples."""
        clients = request.clients
        sizes, batch_size = data.num_examples[clients], self.local.batch_size_of(request.budget)
        steps = self.local.count_steps(request.budget, request.lengths, sizes)
        ids, last = clients.tolist(), self.local.last_batch
        seeds = derive_each(self.seed, request.purpose, round, ids=ids)
        return CohortFit(
            clients,
            request.models,
            request.start,
            request.prox,
            request.centers if request.prox else None,
            request.center,
            _NONE,
            _NONE,
            sizes,
            steps,
            steps_of_epoch(sizes, batch_size, last),
            draw_batches(seeds, sizes, steps, batch_size, last),
            self._keys(f"{request.purpose}/dropout", round, ids, steps) if self.draws_masks else None,
            derive_each(self.seed, f"{request.purpose}/module", round, ids=ids) if self.seeds_generators else None,
            request.rates,
            None if request.weights is None else torch.cat([*request.weights]),
            self._keys(f"{request.purpose}/augment", round, ids, steps) if data.examples.augment is not None else None,
        )

    def _keys(self, purpose: str, round: int, ids: Sequence[int], steps: Tensor) -> Tensor:
        own = derive_each(self.seed, purpose, round, ids=ids)
        return keys_of_steps(torch.tensor(own, dtype=torch.int64), steps)

    def gradients(self, clients: Tensor, round: int, data: FederatedData) -> CohortFit:
        """Builds the tensors for computing these clients' gradients, except the model and the examples."""
        ids, sizes = clients.tolist(), data.num_examples[clients]
        keys = self._keys("gradient/dropout", round, ids, torch.ones_like(clients)) if self.draws_masks else None
        seeds = derive_each(self.seed, "gradient", round, ids=ids) if self.seeds_generators else None
        none = torch.zeros_like(clients)
        return CohortFit(
            clients, _NONE, none, 0.0, None, none, _NONE, _NONE, sizes, none, none, _NO_BATCHES, keys, seeds
        )


def split_clients(sizes: Tensor, most: int, clients: int) -> Iterator[slice]:
    """Splits clients into consecutive parts of at most this many examples; a larger client is alone.

    Args:
        sizes: Number of examples of each client, int64 `[n]`.
        most: Maximum number of examples in a part of several clients.
        clients: Maximum number of clients in a part, 1 or more.
    """
    before, start = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), 0
    while start < len(sizes):
        stop = int(torch.searchsorted(before, before[start] + most, right=True)) - 1
        yield slice(start, stop := min(max(stop, start + 1), start + clients))
        start = stop


def augment_examples(work: CohortFit, augment: AugmentFunction) -> CohortFit:
    """Replaces a cohort's examples with augmented copies, one for each occurrence in a mini-batch.

    Every way of training then reads them as any other examples. An example occurs once for each of the client's
    mini-batches that contains it.

    Args:
        work: Local training of the cohort, with `augment_keys`.
        augment: See `AugmentFunction`; an example's key consists of its step's key and its position in the client.
    """
    if work.augment_keys is None:
        raise TypeError("augmentation needs augment_keys")
    device, counts = work.inputs.device, work.batches.counts
    begins, firsts = counts.cumsum(0) - counts, work.sizes.cumsum(0) - work.sizes
    steps = torch.arange(len(counts)).repeat_interleave(counts)  # step of each example
    owners = torch.arange(len(work)).repeat_interleave(work.steps)[steps]
    drawn = work.batches.begins[steps] + torch.arange(len(steps)) - begins[steps]
    places = work.batches.drawn[send(drawn, device)]
    keys = (send(work.augment_keys[steps], device) << 32) ^ places
    index = places + send(firsts[owners], device)
    inputs, labels = _augment_cohort(work, augment, index, keys)
    weights = None if work.weights is None else work.weights[index]
    sizes = work.num_seen
    own = torch.arange(len(steps)) - (sizes.cumsum(0) - sizes)[owners]
    batches = MiniBatches(send(own, device), begins, counts)
    return replace(work, inputs=inputs, labels=labels, weights=weights, sizes=sizes, batches=batches, augment_keys=None)


def _augment_cohort(work: CohortFit, augment: AugmentFunction, index: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Augments these examples of the cohort, in blocks of limited size."""
    inputs, labels = (part.new_empty(len(index), *part.shape[1:]) for part in (work.inputs, work.labels))
    size = max(1, _BLOCK // max(1, work.inputs.shape[1:].numel()))
    for start in range(0, len(index), size):
        part = slice(start, start + size)
        own = index[part]
        inputs[part], labels[part] = augment((work.inputs[own], work.labels[own]), keys[part])
    return inputs, labels
