"""Lists the ways to train clients locally. Only `plan.py` names them, too: the names that an option may have."""

from lit_cfl.engines.chain.loop import ChainLoop
from lit_cfl.engines.cohort_fit import ClientLoop
from lit_cfl.engines.plain_loop import PlainLoop
from lit_cfl.engines.stacked.stack import StackLoop
from lit_cfl.engines.trainer import TrainerLoop

WAYS: tuple[type[ClientLoop], ...] = (ChainLoop, StackLoop, PlainLoop, TrainerLoop)  # the rule tries them in order


def get_way(name: str) -> type[ClientLoop]:
    """Returns the way of training with this name."""
    return next(way for way in WAYS if way.name == name)
