"""The way `stack`, for GPUs: trains many clients at once, one per lane, by `torch.func.vmap`."""

import warnings
from dataclasses import replace
from math import ceil

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.devices import send
from lit_cfl.engines.agreement import Trial
from lit_cfl.engines.cohort import CohortFit, Ended, TrainingWay
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.optimizers import FunctionalOptimizer, Tensors
from lit_cfl.engines.plan import Plan, Precision, compute_dtype
from lit_cfl.engines.stacked.cuda_graph import CapturedSteps, CapturingError
from lit_cfl.engines.stacked.gradients import STACK_EXAMPLES, compute_stacked_gradients, find_large, split_into_stacks
from lit_cfl.engines.stacked.lane_memory import lane_bytes
from lit_cfl.engines.stacked.lane_schedule import LaneTables, busy_lanes, make_tables, width_for, widths_of
from lit_cfl.engines.stacked.lane_steps import Lanes, LaneWork, Steps
from lit_cfl.engines.stacked.stackable_layers import replace_unstackable_layers
from lit_cfl.errors import Notice
from lit_cfl.parameters import ParameterLayout, copy_sharing_frozen

_FEWEST_PLACES = 16  # minimum rows of a full batch: products of fewer rows add in another order on some processors
_CALL_PARAMETERS = 8e6  # estimated number of parameters that a GPU updates in the time of launching a step


class StackWay(TrainingWay):
    """Trains the clients of a cohort in at most `plan.lanes` lanes. A free lane loads the next client.

    Lanes, tables and examples are stored in the same tensors from fit to fit, so that the steps can be captured as CUDA
    graphs: one for each width of the stack, with and without a proximal term, and with and without weights.
    """

    name, is_collective = "stack", True

    def __init__(self, module: LightningModule, layout: ParameterLayout, plan: Plan, local: LocalTraining) -> None:
        super().__init__(module, layout, plan, local)
        self._optimizer, self._steps, self._rates = _steps_of(
            self.copy_module(plan.compute_dtype), layout, local, plan.autocast, plan.device
        )
        self._captured = CapturedSteps(self._steps, plan.device) if plan.device != "cpu" else None
        self._num_trained = sum(not slot.is_buffer for slot in layout.slots)
        self._lanes = Lanes((), ())  # made with the first fit
        self._held: LaneWork | None = None

    @classmethod
    def reason_against(cls, trial: Trial, device: str, precision: Precision) -> str | None:
        if device == "cpu":
            return "a stack is slower than a loop on a CPU"
        if precision == "16-mixed":
            return "precision 16-mixed needs a gradient scaler"
        return None

    @classmethod
    def client_bytes(cls, trial: Trial, precision: Precision, batch_size: int) -> int:
        dtype = compute_dtype(precision)
        module = copy_sharing_frozen(trial.module).to(dtype)
        try:
            update, steps, _ = _steps_of(module, trial.layout, LocalTraining())
            inputs, labels = trial.batch
            example = inputs.to(dtype) if inputs.is_floating_point() else inputs, labels
            return lane_bytes(steps, trial.layout, update, precision, example, batch_size)
        except Exception:  # such as a user's operation that fake tensors do not support
            return super().client_bytes(trial, precision, batch_size)

    @torch.no_grad()
    def fit(self, work: CohortFit, ended: Ended) -> tuple[Tensor, Tensor]:
        try:
            return self._fit(work, ended)
        except CapturingError as error:
            self._captured = None
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"a CUDA graph cannot be captured ({reason}), so the operations of a step are launched one by one, "
                "which is slower",
                Notice,
                stacklevel=2,
            )
        return self._fit(work, ended)  # starts over: some clients may have trained before the error

    def _fit(self, work: CohortFit, ended: Ended) -> tuple[Tensor, Tensor]:
        lanes, width = self._shape_for(work)
        on_gpu = self.plan.device != "cpu"
        widths = widths_of(lanes, ceil(lanes / 27)) if on_gpu else [lanes]
        call_cost = _CALL_PARAMETERS / self.layout.num_parameters if on_gpu else float("inf")
        tables = make_tables(work, widths, call_cost, width)
        held = self._fill_tables(work, tables)
        rows = work.models.new_empty(len(work), self.layout.num_columns)
        self._run(work, tables, widths, held, rows, ended)
        sums = tables.sum_losses(held.losses[: tables.num_steps].double().cpu())
        return rows, sums / work.num_seen

    def _shape_for(self, work: CohortFit) -> tuple[int, int]:
        """Returns the number of lanes of the stack, and the number of examples in a mini-batch, padding included.

        Both follow from the run's batch size if all mini-batches of this fit have at most that size. Larger ones, such
        as full ones, get the next power of two from 16 on, and fewer lanes: a step has at most the examples of a
        gradients' stack.
        """
        size, widest = self.local.batch_size, int(work.batches.counts.max())
        usual = 0 if size == "full" else 2 * size - 1 if self.local.last_batch == "join" else size
        if widest <= usual:
            return self.plan.lanes, usual
        width = max(_FEWEST_PLACES, _power_of_two(widest))
        return max(1, min(self.plan.lanes, STACK_EXAMPLES // width)), width

    def _run(
        self, work: CohortFit, tables: LaneTables, widths: list[int], held: LaneWork, rows: Tensor, ended: Ended
    ) -> None:
        """Takes all steps in order. Clients are loaded into lanes, and saved into rows, as scheduled."""
        device, through = self.plan.device, 0
        to_load, to_save = tables.lanes_to_load(work, device), tables.lanes_to_save(device)
        now = [width_for(busy, widths) for busy in busy_lanes(tables.slots)]  # the busy lanes are the first ones
        for step, width in enumerate(now):
            lanes, of_lanes = self._lanes.first(width), held.of_lanes(width)
            if step in to_load:
                where, start, center = to_load[step]
                self._fill(lanes.rows, where, work.models, start)
                for tensor in (tensor for slot in lanes.state for tensor in slot):
                    tensor.index_fill_(0, where, 0)
                if work.centers is not None and held.centers is not None:
                    self._fill(held.centers, where, work.centers, center)
            (self._captured or self._steps)(lanes, of_lanes)
            if step + 1 in to_save:
                where, clients = to_save[step + 1]
                parts = [tensor.index_select(0, where).reshape(len(where), -1) for tensor in lanes.rows]
                rows.index_copy_(0, clients, torch.cat(parts, 1).to(rows.dtype))
                through += len(clients)
                ended(through)

    def _fill(self, tensors: Tensors, where: Tensor, models: Tensor, which: Tensor) -> None:
        """Copies these models into lanes."""
        table = models.index_select(0, which).to(self.plan.compute_dtype)
        for slot, tensor in zip(self.layout.slots, tensors, strict=True):
            tensor.index_copy_(0, where, table[:, slot.start : slot.stop].reshape(-1, *slot.shape))

    def _fill_tables(self, work: CohortFit, tables: LaneTables) -> LaneWork:
        """Copies a fit's inputs into tensors that are reused from fit to fit, and returns these tensors."""
        steps, held = tables.num_steps, self._held
        if held is None or not _has_room(held, work, tables):
            held = self._held = self._allocate(work, tables)
        held.inputs[: len(work.inputs)] = work.inputs
        held.labels[: len(work.labels)] = work.labels
        corrections = self._optimizer.corrections(tables.numbers).transpose(0, 1).contiguous()
        given = tables.index, tables.keys, corrections, tables.numbers == 1
        for mine, new in zip(held.tables, given, strict=True):
            mine[:steps].copy_(send(new, self.plan.device))
        held.at.zero_()
        if self._rates is not None and work.rates is not None:
            # frozen parameter groups come last, and need no rates
            rates = torch.tensor(work.rates[: len(self._rates)], dtype=torch.float64)
            self._rates.copy_(send(rates, self.plan.device))
        if held.prox is not None:
            held.prox.fill_(work.prox)
        if work.weights is None:
            held = replace(held, weights=None)
        elif held.weights is not None:
            held.weights[: len(work.weights)] = work.weights
        return held if work.prox else replace(held, prox=None, centers=None)

    def _allocate(self, work: CohortFit, tables: LaneTables) -> LaneWork:
        """Allocates lanes and tensors, with room for larger fits so that they are seldom allocated again."""
        plan, device, (steps, lanes, width) = self.plan, self.plan.device, tables.index.shape
        rows = tuple(
            torch.zeros(lanes, *slot.shape, dtype=plan.compute_dtype, device=device) for slot in self.layout.slots
        )
        self._lanes = Lanes(rows, self._optimizer.start(rows[: self._num_trained]))
        examples, steps = _power_of_two(len(work.inputs)), _power_of_two(steps)
        wide = torch.promote_types(plan.compute_dtype, torch.float32)  # a module in bfloat16 may compute losses in it
        return LaneWork(
            work.inputs.new_zeros(examples, *work.inputs.shape[1:]),
            work.labels.new_zeros(examples, *work.labels.shape[1:]),
            torch.zeros(steps, lanes, width, dtype=torch.int64, device=device),
            torch.zeros(steps, lanes, dtype=torch.int64, device=device),
            torch.ones(steps, 2, lanes, dtype=torch.float64, device=device),
            torch.zeros(steps, lanes, dtype=torch.bool, device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
            torch.zeros(steps, lanes, dtype=wide, device=device),
            torch.zeros((), dtype=plan.compute_dtype, device=device),
            tuple(torch.zeros_like(row) for row in rows) if work.prox else None,
            None if work.weights is None else torch.zeros(examples, dtype=plan.compute_dtype, device=device),
        )

    def gradient_units(self, sizes: Tensor, clients: Tensor) -> list[Tensor]:
        large = find_large(sizes, self.plan.lanes, self._template)
        small = (~large).nonzero().flatten()
        stacks = split_into_stacks(sizes[small], clients[small], self.plan.lanes)
        return [*large.nonzero(), *(small[own] for own in stacks)]

    def gradients(self, model: Tensor, work: CohortFit, ended: Ended) -> Tensor:
        """Computes gradients of small clients in stacks, and of large clients one after the other."""
        rows = torch.zeros(len(work), self.layout.num_columns, dtype=self.plan.dtype, device=self.plan.device)
        large, through = find_large(work.sizes, self.plan.lanes, self._template), 0
        for unit in self.gradient_units(work.sizes, work.clients):
            own, where = work.select(unit), send(unit, rows.device)
            if large[unit[0]]:
                rows[where] = super().gradients(model, own, lambda count: None)
            else:
                found = compute_stacked_gradients(self._steps, self.layout, self.plan, model, own)
                rows[where, : self.layout.num_parameters] = found
            through += len(unit)
            ended(through)
        return rows


def _steps_of(
    module: LightningModule,
    layout: ParameterLayout,
    local: LocalTraining,
    autocast: torch.dtype | None = None,
    device: str = "cpu",
) -> tuple[FunctionalOptimizer, Steps, Tensor | None]:
    """Makes the `Steps` of a module. Its layers may be replaced in place, so it must not be shared.

    Returns:
        the optimizer, the steps, and the learning rates of the optimizer's groups, float64 `[groups]`, which the steps
        read each time; None if rates are the same in all rounds.
    """
    named, rates = dict(module.named_parameters()), None
    update = FunctionalOptimizer.from_module(module, [named[slot.name] for slot in layout.slots if not slot.is_buffer])
    if local.lr_schedule is not None:
        rates = torch.zeros(1 + max(update.groups), dtype=torch.float64, device=device)
        update = update.with_rates(rates.unbind())
    return update, Steps(replace_unstackable_layers(module), layout, update, local.gradient_clip, autocast), rates


def _has_room(held: LaneWork, work: CohortFit, tables: LaneTables) -> bool:
    fits = len(held.inputs) >= len(work.inputs) and len(held.index) >= tables.num_steps
    pulled = held.centers is not None or not work.prox
    weighted = held.weights is not None or work.weights is None
    return fits and pulled and weighted and held.index.shape[1:] == tables.index.shape[1:]


def _power_of_two(count: int) -> int:
    return 1 << (max(1, count) - 1).bit_length()
