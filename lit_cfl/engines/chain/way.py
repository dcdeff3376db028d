"""The way `chain`: trains chains of fully connected layers in stacks of clients, or on a CPU by compiled code."""

from collections.abc import Callable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.engines.chain.compiled import CompiledSteps, can_train
from lit_cfl.engines.chain.gradients import compute_gradients
from lit_cfl.engines.chain.groups import ClientGroup, Shapes, StackLimit, make_groups, pad, pad_widths
from lit_cfl.engines.chain.inputs import dual_pays
from lit_cfl.engines.chain.losses import targets_of
from lit_cfl.engines.chain.parts import Chain
from lit_cfl.engines.chain.passes import Arithmetic
from lit_cfl.engines.chain.recognise import NotAChainError, recognise_chain, tensors_of
from lit_cfl.engines.chain.replay import StepCapture
from lit_cfl.engines.chain.scorer import ChainScorer
from lit_cfl.engines.chain.stack import Stack, min_lanes
from lit_cfl.engines.chain.tables import CohortExamples
from lit_cfl.engines.chain.updates import Training
from lit_cfl.engines.cohort_fit import CohortFit, Ended, TrainingWay
from lit_cfl.engines.optimizers import FunctionalOptimizer
from lit_cfl.engines.plan import Plan, Precision
from lit_cfl.engines.scorer import Scorer
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.engines.workload import TaskTraits
from lit_cfl.errors import InputError
from lit_cfl.parameters import ParameterLayout

_PRECISIONS = ("32-true", "64-true", "tf32", "bf16-mixed")
_CPU_STACK, _GPU_STACK = 2 * 2**20, 2**30  # sizes in bytes: on a CPU, a stack should fit into the caches
_CHECKED = 8  # number of examples with which a chain is checked
_RUNGS = 1  # padded sizes per octave in dual form: more of them would make many small stacks


class ChainWay(TrainingWay):
    """Trains clients of equal shapes in stacks, or client by client in compiled code (`compiled.py`).

    Under plain SGD the first layer is in dual form if that is cheaper (`dual_pays`). A client's bits depend on neither
    the other clients nor their order.
    """

    name = "chain"
    is_collective = True
    reads_bytes = True
    uses_compiled_steps = True

    def __init__(self, module: LightningModule, layout: ParameterLayout, plan: Plan, local: LocalTraining) -> None:
        super().__init__(module, layout, plan, local)
        self._module = module
        trained = [module.get_parameter(slot.name) for slot in layout.slots if not slot.is_buffer]
        self._optimizer = FunctionalOptimizer.from_module(module, trained)
        self._fixed: dict[str, Tensor] = {}
        self._training: Training | None = None
        self._capture = None if plan.device == "cpu" else StepCapture(plan.device)

    @classmethod
    def reason_against(cls, task: TaskTraits, device: str, precision: Precision, local: LocalTraining) -> str | None:
        if precision not in _PRECISIONS:
            return f"precision {precision} is not one of {', '.join(_PRECISIONS)}"
        try:
            recognise_chain(task.module, task.layout, task.batch)
        except NotAChainError as error:
            return f"{type(task.module).__name__} is not a chain of fully connected layers: {error}"
        return None

    @torch.no_grad()
    def fit(self, work: CohortFit, ended: Ended) -> tuple[Tensor, Tensor]:
        training = self._training_of(work)
        if work.rates is not None:
            training = replace(training, optimizer=training.optimizer.with_rates(work.rates))
        examples = self._examples(training, work)
        rows = work.models.new_empty(len(work), self.layout.num_columns)
        losses, done = torch.empty(len(work), dtype=torch.float64), 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            ended(done)

        def train(group: ClientGroup, ended: Ended) -> None:
            with without_autograd(self.plan.device):
                Stack(training, self.layout.slots, work, examples, group, self._capture).train(rows, losses, ended)

        with one_thread(self.plan.device):
            if can_train(training, work, self.layout.num_columns):
                steps = CompiledSteps(training, self.layout, work, examples)
                _train_groups(
                    list(steps.chunks(self._threads)), partial(steps.train, rows, losses), self._threads, count
                )
            else:
                groups = list(make_groups(work, self._shapes(training, work), self._stack_limit(training, len(work))))
                _train_groups(groups, train, self._threads, count)
        return rows, losses / work.num_seen

    @property
    def _threads(self) -> int:
        """Number of stacks that train at the same time, each in one thread; results do not depend on it."""
        return self.plan.threads if self.plan.device == "cpu" else 1

    @torch.no_grad()
    def gradients(self, model: Tensor, work: CohortFit, ended: Ended) -> Tensor:
        training = self._training_of(work)
        if training.chain.draws_masks:  # each part of 1,024 examples of a client has its own mask
            return super().gradients(model, work, ended)
        examples = self._examples(training, work)
        rows = torch.zeros(len(work), self.layout.num_columns, dtype=self.plan.dtype, device=self.plan.device)
        with one_thread(self.plan.device), without_autograd(self.plan.device):
            compute_gradients(training, self.layout.slots, model, work, examples, rows, ended)
        return rows

    def scorer(self, seed: Callable[[int], None]) -> Scorer:
        module = self.copy_module(self.plan.dtype).eval()
        return ChainScorer(self._module, module, self.layout, self.plan.dtype, seed)

    def _examples(self, training: Training, work: CohortFit) -> CohortExamples:
        targets = targets_of(training.chain.loss, work.labels, self.plan.dtype)
        examples = CohortExamples(work.inputs, targets, self._fixed, work.decode)
        self._require_fitting(training.chain, examples)
        return examples

    def _training_of(self, work: CohortFit) -> Training:
        """Returns the chain and its training options; recognises the chain at the first call."""
        if self._training is None:
            inputs = work.inputs[:_CHECKED] if work.decode is None else work.decode(work.inputs[:_CHECKED])
            batch = inputs.float().cpu(), work.labels[:_CHECKED].cpu()
            try:
                chain = recognise_chain(self._module, self.layout, batch)
            except NotAChainError as error:
                task = type(self._module).__name__
                raise InputError(
                    f"engine is chain, but {task} is not a chain of fully connected layers: {error}; use engine auto"
                ) from error
            names = tuple(slot.name for slot in self.layout.slots)
            arithmetic = Arithmetic(mixed=self.plan.precision == "bf16-mixed")
            self._fixed = {
                name: tensor.to(self.plan.device, self.plan.dtype)
                for name, tensor in tensors_of(self._module, chain.parts).items()
                if name not in names
            }
            self._training = Training(chain, names, self._optimizer, self.local.gradient_clip, arithmetic)
        return self._training

    def _shapes(self, training: Training, work: CohortFit) -> Shapes:
        """Computes each client's `Shapes` from its own data alone."""
        width, size, chain = pad_widths(work, self.local.batch_size), pad(work.sizes, _RUNGS), training.chain
        layer = chain.layers[0]
        can_be_dual = (
            training.is_plain
            and not training.arithmetic.mixed
            and chain.parts[0] is layer
            and layer.weight in training.names
            and not layer.penalty
            and min_lanes(chain.layers) == 1
        )
        if not can_be_dual:
            return Shapes(width, torch.zeros_like(size))
        return Shapes(width, torch.where(dual_pays(size, work.steps, width, layer.inputs, layer.outputs), size, 0))

    def _stack_limit(self, training: Training, clients: int) -> StackLimit:
        copies, layer = 1 + training.optimizer.slots + (not training.is_plain), training.chain.layers[0]
        first = copies * layer.inputs * layer.outputs
        upper = copies * self.layout.num_columns - first
        size = self.plan.dtype.itemsize
        numbers, lanes = _GPU_STACK // size, self.plan.lanes
        if self.plan.device == "cpu":
            numbers, lanes = _CPU_STACK // size, -(-clients // self._threads)
        return StackLimit(upper, first, layer.inputs, layer.outputs, numbers, lanes)

    @staticmethod
    def _require_fitting(chain: Chain, examples: CohortExamples) -> None:
        """Raises InputError if the net cannot process the examples."""
        layers = chain.layers
        if (width := examples.width) != layers[0].inputs:
            raise InputError(
                f"examples have {width} numbers each, but the net takes {layers[0].inputs}; make them equal"
            )
        if chain.loss.kind != "cross-entropy":
            return
        least, most = (int(label) for label in examples.targets.aminmax())
        if least < 0 or most >= layers[-1].outputs:
            wrong = least if least < 0 else most
            raise InputError(
                f"an example has the label {wrong}, but the net has {layers[-1].outputs} outputs; give the net more "
                "outputs"
            )


Group = TypeVar("Group", bound=Sized)  # clients that train in one stack, or in one call of the compiled steps


def _train_groups(groups: Sequence[Group], train: Callable[[Group, Ended], None], threads: int, count: Ended) -> None:
    """Trains groups of clients, in several threads if allowed.

    `count` is always called in the caller's thread.
    """
    if threads == 1 or len(groups) == 1:
        for group in groups:
            train(group, count)
        return
    with ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1)) as pool:
        waiting = {pool.submit(train, group, lambda more: None): len(group) for group in groups}
        try:
            for future in as_completed(waiting):
                future.result()
                count(waiting[future])
        except BaseException:  # an error in a thread, or an interruption of the run
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def without_autograd(device: str) -> AbstractContextManager[None]:
    """Disables autograd: on a CPU by inference mode, which is faster, else by `no_grad`.

    Tensors made in the context must not leave it; those made outside may be written to in it.
    """
    return torch.inference_mode() if device == "cpu" else torch.no_grad()


@contextmanager
def one_thread(device: str) -> Iterator[None]:
    """Limits CPU computation in the block to one thread, so that results do not depend on the number of threads."""
    before = torch.get_num_threads()
    if device == "cpu" and before != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
