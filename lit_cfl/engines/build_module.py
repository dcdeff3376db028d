"""Builds the module that clients train, from the run's seed."""

from lightning import LightningModule

from lit_cfl.engines.dropout import with_keyed_dropout
from lit_cfl.engines.global_generators import seed_globally
from lit_cfl.engines.local_training import TaskFactory
from lit_cfl.seeds import derive


def build_module(task: TaskFactory, seed: int, number: int = 0, device: str = "cpu") -> LightningModule:
    """Builds the task's module with the initial model of that number."""
    with seed_globally(derive(seed, "initial", number), device):
        return with_keyed_dropout(task())
