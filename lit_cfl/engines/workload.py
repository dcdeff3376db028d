"""Measures the workload of a run, from which its plan is chosen."""

from dataclasses import dataclass

from lit_cfl.data import FederatedData
from lit_cfl.engines.build_module import build_module
from lit_cfl.engines.check_module import require_module
from lit_cfl.engines.local_training import LocalTraining, TaskFactory
from lit_cfl.engines.mini_batches import count_steps
from lit_cfl.engines.task_traits import TaskTraits
from lit_cfl.local_work import per_client


@dataclass(frozen=True)
class Workload:
    """Inputs of the plan's rule other than options and hardware.

    Args:
        task: Task that clients train; None = unknown, so the plan must name the engine.
        local: how they train.
        client_steps: expected mini-batches in the run.
        rounds: Rounds of the run.
        cohort: clients of a round.
    """

    task: TaskTraits | None = None
    local: LocalTraining = LocalTraining()
    client_steps: int = 0
    rounds: int = 1
    cohort: int = 64

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds for the losses of all mini-batches; 0 = unknown."""
        return (
            0 if self.task is None else (self.client_steps * self.task.multiply_adds * self.task.batch_size(self.local))
        )


@dataclass(frozen=True)
class RayRoom:
    """Resources of Ray's workers, on any machine; see `factory.room_of_ray`.

    Args:
        places: workers for whose threads their machines have cores; None = as many as this one has cores.
        gpus: GPUs of their machines.
    """

    places: int | None = None
    gpus: int = 0


def measure_workload(
    task: TaskFactory, seed: int, local: LocalTraining, data: FederatedData, rounds: int, cohort: int
) -> Workload:
    """Measures the workload from which the plan is chosen. Builds the task's module once, as `Workload.task`.

    Args:
        seed: The run's seed.
        rounds: Rounds of the run.
        cohort: clients of a round.
    """
    module = build_module(task, seed)
    require_module(module)
    steps = round(rounds * cohort * mean_steps(local, data))
    return Workload(TaskTraits.of(module, data), local, steps, rounds, min(cohort, len(data.population)))


def mean_steps(local: LocalTraining, data: FederatedData) -> float:
    """Computes the mean number of mini-batches per client in a round, over the clients in training."""
    sizes = data.num_examples[data.population]
    lengths = per_client(local.epochs, sizes)
    return float(count_steps(local.budget, lengths, sizes, local.batch_size, local.last_batch).double().mean())
