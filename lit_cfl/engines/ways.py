"""Lists the classes of all ways to train clients locally; `plan.py` lists their names."""

from lit_cfl.engines.chain import ChainWay
from lit_cfl.engines.cohort_fit import TrainingWay
from lit_cfl.engines.plain_loop import LoopWay
from lit_cfl.engines.stacked.way import StackWay
from lit_cfl.engines.trainer import TrainerWay

# in the order in which `choose_plan` tries them
WAYS: tuple[type[TrainingWay], ...] = (ChainWay, StackWay, LoopWay, TrainerWay)


def get_way(name: str) -> type[TrainingWay]:
    """Returns the way of training with this name."""
    return next(way for way in WAYS if way.name == name)
