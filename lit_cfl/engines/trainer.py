"""Fits each client by one `lightning.Trainer.fit` of a LightningModule: the engine `trainer`.

The plain reference for the other engines, and the one that takes any LightningModule.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lit_cfl.data import FederatedData
from lit_cfl.engines.base import Engine
from lit_cfl.engines.batches import ShuffledBatches
from lit_cfl.engines.divergence import explain_divergence
from lit_cfl.engines.dropout import key_names, set_key, step_keys
from lit_cfl.engines.local_training import FitRequest, note_client
from lit_cfl.errors import InputError
from lit_cfl.local_work import Chunk
from lit_cfl.seeds import derive, generator


class TrainerEngine(Engine):
    """Fits one client after the other with `lightning.Trainer`."""

    def _fit_chunk(self, request: FitRequest, part: slice, round: int, data: FederatedData) -> Chunk:
        clients = request.clients[part]
        models = request.models[request.start[part]].to(self.plan.dtype)
        losses = torch.full((len(clients),), float("nan"), dtype=torch.float64)
        trained = torch.zeros(len(clients), dtype=torch.bool)
        with _quiet():
            for k, client in enumerate(clients.tolist()):
                if data.num_examples[client] == 0 or request.lengths[part][k] == 0:
                    continue
                self.between_clients()
                center = None
                if request.prox:
                    if request.centers is None:
                        raise TypeError("prox needs centers")
                    center = request.centers[request.center[part][k]]
                options = self._options(request, int(request.lengths[part][k]))
                with note_client(round, [client]):
                    row, loss, rate = self._fit_client(models[k], client, center, request, options, round, data)
                self.report_fit(request, round, part.start, k + 1)
                if row.isfinite().all() and (loss is None or isfinite(loss)):
                    models[k], trained[k] = row, True
                    losses[k] = float("nan") if loss is None else loss
                elif self.local.on_divergence == "stop":
                    raise explain_divergence(self, models[k], client, round, loss, rate, data)
        return Chunk(part.start, models, losses, trained)

    def _fit_client(
        self,
        start: Tensor,
        client: int,
        center: Tensor | None,
        request: FitRequest,
        options: dict[str, Any],
        round: int,
        data: FederatedData,
    ) -> tuple[Tensor, float | None, float]:
        """Returns the trained row `[d]`, the mean loss per example (None = not reported), and the learning rate."""
        module, record = self.module(start), _LossRecord()
        callbacks: list[Callback] = [record]
        if key_names(module):
            callbacks.append(_Keys(derive(self.seed, f"{request.purpose}/dropout", round, client)))
        if center is not None:
            callbacks.append(_Proximal(request.prox, self.module(center)))
        trainer = Trainer(**options, callbacks=callbacks)
        rng = generator(self.seed, request.purpose, round, client)
        inputs, labels = self.examples(data).batch(data.train[client], self.plan.dtype)
        batches = ShuffledBatches(len(labels), request.budget.batch_size or self.local.batch_size, rng)
        loader = DataLoader(TensorDataset(inputs, labels), sampler=batches, batch_size=None)
        try:
            with self.own_stream(f"{request.purpose}/module", round, client):
                trainer.fit(module, loader)
        except SIGTERMException:
            self.between_clients()  # raises where the run handles the signal
            raise
        except (ValueError, MisconfigurationException) as error:
            raise InputError(f"client {client} cannot be trained in round {round + 1}: {error}") from error
        rate = trainer.optimizers[0].param_groups[0]["lr"] if trainer.optimizers else float("nan")
        return self.layout.read(module, self.plan.dtype), record.mean, rate

    def _options(self, request: FitRequest, length: int) -> dict[str, Any]:
        device, in_epochs = torch.device(self.plan.device), request.budget.unit == "epochs"
        return {
            "max_epochs": length if in_epochs else -1,
            "max_steps": -1 if in_epochs else length,
            "accelerator": "cpu" if device.type == "cpu" else "gpu",
            "devices": 1 if device.type == "cpu" else [device.index or 0],
            "precision": "32-true" if self.plan.precision == "tf32" else self.plan.precision,
            "gradient_clip_val": self.local.gradient_clip,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "plugins": LightningEnvironment(),  # a fit is ours alone, inside a SLURM job, too
        }


class _LossRecord(Callback):
    """Records the mean training loss per example over the whole fit, without a transfer from the device each step."""

    def __init__(self) -> None:
        self._sum: Tensor | float = 0.0
        self._count = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:  # a training_step may skip a batch, or optimise by hand
            self._sum = self._sum + loss.detach().double() * len(batch[1])
            self._count += len(batch[1])

    @property
    def mean(self) -> float | None:
        return float(self._sum) / self._count if self._count else None


class _Keys(Callback):
    """Sets the key of every keyed dropout before each step."""

    def __init__(self, client_key: int) -> None:
        self.client_key = client_key

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        set_key(pl_module, int(step_keys(self.client_key, trainer.global_step, 1)))


class _Proximal(Callback):
    """Adds the gradient of prox/2 * |w - center|^2, before any clipping."""

    def __init__(self, prox: float, center: LightningModule) -> None:
        self.prox, self.center = prox, dict(center.named_parameters())

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        with torch.no_grad():
            for name, parameter in pl_module.named_parameters():
                if parameter.grad is not None:
                    parameter.grad.add_(parameter - self.center[name], alpha=self.prox)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Lightning, which announces devices and tips, and warns of small loaders, at every fit."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            yield
    finally:
        logger.setLevel(level)
