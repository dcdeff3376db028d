"""The papers' nets. One file a family; layers are named fc1.., conv1.. in forward order."""

from lit_cfl.nets.base import Net
from lit_cfl.nets.mclr import MCLR
from lit_cfl.nets.mlp import MLP

__all__ = ["MCLR", "MLP", "Net"]
