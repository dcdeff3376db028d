"""The way `trainer`: trains each client by one `lightning.Trainer.fit` of a LightningModule.

It is the plain reference for the other ways, and trains any LightningModule.
"""

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf, isnan, nan
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lit_cfl.engines.cohort_fit import CohortFit, Ended, TrainingWay
from lit_cfl.engines.dropout import set_key
from lit_cfl.engines.global_generators import seed_globally
from lit_cfl.engines.needs_trainer import reasons_for_trainer
from lit_cfl.engines.plan import Precision
from lit_cfl.engines.task_protocol import weighted_losses_of
from lit_cfl.engines.training_options import LocalTraining, Rates
from lit_cfl.engines.workload import TaskTraits
from lit_cfl.errors import InputError

_CHECKED = 8  # number of examples with which a module is checked


class TrainerWay(TrainingWay):
    """Trains one client after the other with `lightning.Trainer`, each in a new module."""

    name, seeds_global_generators, reports_every_loss = "trainer", True, False
    _reasons: list[str] | None = None  # why examples cannot be weighted; None = not checked yet

    @classmethod
    def reason_against(cls, task: TaskTraits, device: str, precision: Precision, local: LocalTraining) -> str | None:
        return None

    def fit(self, work: CohortFit, ended: Ended) -> tuple[Tensor, Tensor]:
        rows = work.models.new_empty(len(work), self.layout.num_columns)
        losses = torch.empty(len(work), dtype=torch.float64)
        with _quiet():
            for client in range(len(work)):
                try:
                    rows[client], loss = self._fit_client(work, client)
                except SIGTERMException:
                    ended(client)  # raises if the run handles a signal
                    raise
                except MisconfigurationException as error:
                    raise ValueError(str(error)) from error
                # NaN means that no loss was reported
                losses[client] = nan if loss is None else inf if isnan(loss) else loss
                ended(client + 1)
        return rows, losses

    def _fit_client(self, work: CohortFit, client: int) -> tuple[Tensor, float | None]:
        """Trains a client; returns its row `[d]`, and the mean loss per example (None = not reported)."""
        first, steps, start = work.first_steps[client], int(work.steps[client]), work.starts[client]
        module = self._module(work.models[work.start[client]])
        tensors = [work.inputs, work.labels]
        if work.weights is not None:
            self._require_losses(work)
            _weigh_steps(module)
            tensors.append(work.weights)
        keys = None if work.keys is None else work.keys[first : first + steps].tolist()
        center = None if work.centers is None else self._module(work.centers[work.center[client]])
        callback = _ClientFit(keys, work.rates, work.prox, center)
        own = slice(start, start + int(work.sizes[client]))
        batches = _Epochs(work.batches.lists(slice(first, first + steps)), int(work.epoch_steps[client]))
        examples = TensorDataset(*(tensor[own] for tensor in tensors))
        loader = DataLoader(examples, sampler=batches, batch_size=None)
        trainer = Trainer(
            **self._options, max_epochs=batches.num_epochs, callbacks=callback
        )  # no max_steps: it would count the steps of several optimizers together
        with seed_globally(None if work.seeds is None else work.seeds[client], self.plan.device):
            trainer.fit(module, loader)
        return self.layout.read(module, self.plan.dtype, self.plan.device), callback.mean

    def _require_losses(self, work: CohortFit) -> None:
        """Raises InputError unless the module trains on the mean of its `losses` with one plain optimizer."""
        if self._reasons is None:
            some = work.inputs[:_CHECKED].float().cpu() if work.inputs.is_floating_point() else work.inputs[:_CHECKED]
            batch = some.cpu(), work.labels[:_CHECKED].cpu()
            self._reasons = reasons_for_trainer(self._template, self.layout, batch)
        if self._reasons:
            raise InputError(
                "the algorithm weighs examples, which needs a task that trains by the mean of its `losses` with one "
                f"plain optimizer; this task does not ({'; '.join(self._reasons)}); choose another task or algorithm"
            )

    def _module(self, row: Tensor) -> LightningModule:
        module = self.copy_module(self.plan.dtype)
        self.layout.write(row, module)
        return module

    def copy_module(self, dtype: torch.dtype) -> LightningModule:
        """Copies the whole module, since frozen parameters may be trained later."""
        return copy.deepcopy(self.place_module(dtype))

    @property
    def module_for_gradients(self) -> LightningModule:
        """A new copy of the module for each client, since a module may keep state from training."""
        return self.copy_module(self.plan.dtype)

    @property
    def _options(self) -> dict[str, Any]:
        device = torch.device(self.plan.device)
        return {
            "accelerator": "cpu" if device.type == "cpu" else "gpu",
            "devices": 1 if device.type == "cpu" else [device.index or 0],
            "precision": "32-true" if self.plan.precision == "tf32" else self.plan.precision,
            "gradient_clip_val": self.local.gradient_clip,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "plugins": LightningEnvironment(),  # a fit runs in one process, also inside a SLURM job
        }


def _weigh_steps(module: LightningModule) -> None:
    """Makes a module train on the weighted mean of its losses; batches are (inputs, labels, weights)."""

    def training_step(batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        return weighted_losses_of(module, batch[:2], batch[2]).mean()

    module.training_step = training_step  # type: ignore[method-assign]  # of this copy alone


class _Epochs:
    """Mini-batches of a client, epoch by epoch; the last epoch may end early.

    Args:
        batches: All mini-batches.
        epoch_steps: Number of mini-batches in an epoch.
    """

    def __init__(self, batches: list[Tensor], epoch_steps: int) -> None:
        self._batches = batches
        self._epoch_steps, self._taken = epoch_steps, 0

    def __len__(self) -> int:
        return self._epoch_steps

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self._batches[self._taken : self._taken + self._epoch_steps]:
            self._taken += 1
            yield batch

    @property
    def num_epochs(self) -> int:
        return -(-len(self._batches) // self._epoch_steps)


class _ClientFit(Callback):
    """Adds dropout keys, rates and the proximal term to a Trainer's fit, and records the mean loss per example.

    Args:
        keys: Keys of the dropout masks, one per step; None = no keyed dropout.
        rates: Learning rates of the optimizer's groups; None = the optimizer's own.
        prox: Strength of the proximal term.
        center: Module with the proximal centre; None = no proximal term.
    """

    def __init__(
        self, keys: list[int] | None, rates: Rates | None, prox: float, center: LightningModule | None
    ) -> None:
        self._keys = None if keys is None else iter(keys)
        self._rates, self._prox = rates, prox
        self._center = None if center is None else dict(center.named_parameters())
        self._sum: Tensor | float = 0.0  # sum of losses, on the device: a transfer at each step would be slow
        self._count = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._rates is not None:
            (optimizer,) = trainer.optimizers
            for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._keys is not None:
            set_key(pl_module, next(self._keys))

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Adds the gradient of prox/2 * |w - center|^2, before any clipping."""
        if self._center is not None:
            own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            with torch.no_grad():
                for name, parameter in pl_module.named_parameters():
                    if id(parameter) in own and parameter.grad is not None:  # skips parameters of other optimizers
                        parameter.grad.add_(parameter - self._center[name], alpha=self._prox)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:  # a training_step may skip a batch, or optimise manually
            self._sum = self._sum + loss.detach().double() * len(batch[1])
            self._count += len(batch[1])

    @property
    def mean(self) -> float | None:
        return float(self._sum) / self._count if self._count else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Lightning, which prints devices and tips, and warns about small loaders, at every fit."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            yield
    finally:
        logger.setLevel(level)
