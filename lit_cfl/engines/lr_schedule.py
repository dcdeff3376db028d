"""Learning rates over rounds: a PyTorch scheduler that takes one step per round.

Clients build new optimizers in every round, so a scheduler in the module would start again. The rates of a round are
therefore computed here from the schedule, the optimizer's rates and the number of the round alone: they are the same in
every way of training and after a resume.
"""

import warnings
from collections.abc import Callable
from math import nan

from lightning import LightningModule
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, SequentialLR

from lit_cfl.engines.mini_batches import Rates
from lit_cfl.engines.optimizers import find_parts, parts_of
from lit_cfl.errors import InputError, short_error

__all__ = ["SequentialSchedule"]


class SequentialSchedule(SequentialLR):
    """Schedulers in sequence, such as a warm-up and a cosine: a `SequentialLR` that a configuration can build.

    Args:
        optimizer: The run's optimizer.
        schedulers: Schedulers in order, each by class_path and init_args.
        milestones: Numbers of rounds after which the next scheduler starts, one fewer than schedulers.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: list[Callable[[Optimizer], LRScheduler]], milestones: list[int]
    ) -> None:
        super().__init__(optimizer, [make(optimizer) for make in schedulers], milestones)


class RoundRates:
    """The learning rates of each round.

    Args:
        schedule: Builds a scheduler.
        module: Configures the optimizer whose rates the schedule starts from. It is not trained.

    Raises:
        InputError: the module does not configure exactly one optimizer, or the scheduler cannot be built.
    """

    def __init__(self, schedule: Callable[[Optimizer], LRScheduler], module: LightningModule) -> None:
        self._optimizer = _only_optimizer(module)
        groups = self._optimizer.param_groups
        may = ("params", "lr", "initial_lr")  # a schedule may change no other option
        self._fixed = [{k: v for k, v in g.items() if k not in may and not isinstance(v, Tensor)} for g in groups]
        try:
            self._scheduler = schedule(self._optimizer)
        except Exception as error:  # a scheduler, perhaps a user's, may raise anything
            raise InputError(f"local.lr_schedule cannot be made: {short_error(error)}; change its init_args") from error
        if isinstance(self._scheduler, ReduceLROnPlateau):
            raise InputError(
                "local.lr_schedule is ReduceLROnPlateau, which needs a metric; give a scheduler that counts rounds "
                "alone, such as ExponentialLR"
            )
        self._name = type(self._scheduler).__name__
        self._found: list[Rates] = []
        self._record()

    def at(self, round: int) -> Rates:
        """Returns the rates of a round, given the number of rounds completed before it.

        Raises:
            InputError: the schedule has no rate for this round, or changes more than rates.
        """
        while len(self._found) <= round:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # PyTorch warns that the optimizer has taken no step
                    self._scheduler.step()
            except Exception as error:  # a scheduler, perhaps a user's, may raise anything
                raise InputError(
                    f"local.lr_schedule: {self._name} gives no learning rate for round {len(self._found) + 1}: "
                    f"{short_error(error)}; change its init_args, or run fewer rounds"
                ) from error
            self._record()
        return self._found[round]

    def _record(self) -> None:
        groups, round = self._optimizer.param_groups, len(self._found) + 1
        rates = tuple(float(group["lr"]) for group in groups)
        if not all(0 <= rate < float("inf") for rate in rates):
            raise InputError(
                f"local.lr_schedule: {self._name} gives the learning rate {min(rates)} in round {round}; rates must be "
                "0 or more: change its init_args"
            )
        for group, fixed in zip(groups, self._fixed, strict=True):
            changed = [name for name in fixed if group[name] != fixed[name]]
            if changed:
                raise InputError(
                    f"local.lr_schedule: {self._name} changes {changed[0]}, too, but only learning rates can follow a "
                    "schedule; set its option cycle_momentum to false, or give another scheduler"
                )
        self._found.append(rates)


def _only_optimizer(module: LightningModule) -> Optimizer:
    """Returns the optimizer that a module configures. Raises InputError for none, several, or one with a scheduler."""
    name = type(module).__name__
    try:
        configured = module.configure_optimizers()
    except InputError:
        raise
    except Exception as error:  # such as a read of self.trainer, which does not exist
        raise InputError(
            f"local.lr_schedule needs the optimizer's learning rates, but configure_optimizers of {name} raises "
            f"{short_error(error)} without a Trainer; make the optimizer from the module alone"
        ) from error
    found = parts_of(configured)
    for scheduler in (part for part in found if isinstance(part, LRScheduler)):
        raise InputError(
            f"local.lr_schedule is given, but configure_optimizers of {name} has the scheduler "
            f"{type(scheduler).__name__}; return the optimizer alone, or leave out local.lr_schedule"
        )
    optimizers = [part for part in found if isinstance(part, Optimizer)]
    if len(optimizers) != 1:
        raise InputError(
            f"local.lr_schedule needs one optimizer, but configure_optimizers of {name} does not return exactly one; "
            "return one, or leave out local.lr_schedule"
        )
    return optimizers[0]


def find_learning_rate(module: LightningModule) -> float:
    """Returns the initial learning rate of a module; NaN if it cannot be known without a Trainer."""
    optimizers = (part for part in find_parts(module) if isinstance(part, Optimizer))
    return next((float(one.param_groups[0]["lr"]) for one in optimizers), nan)
