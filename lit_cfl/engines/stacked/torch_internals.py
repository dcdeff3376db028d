"""All uses of PyTorch's private names, with the reason why no public name works.

* Fake tensors and the dispatch mode: memory is estimated by a step on tensors without numbers, which sees every
  operation, including those of the backward pass (`lane_memory.py`). `torch.device("meta")` does not support modules
  that hold plain tensors, and `TorchFunctionMode` does not see the backward pass.
* Hooks: PyTorch adds and removes them, but does not say whether there are any.
"""

import torch
from torch import nn

_TRIED = "Lit-CFL needs it; install a version of PyTorch from 2.11 to 2.15, which have it"

try:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
except ImportError as error:
    raise ImportError(f"PyTorch {torch.__version__}: {error}. {_TRIED}") from error

__all__ = ["FakeTensorMode", "TorchDispatchMode", "has_forward_hooks", "tree_leaves"]


def has_forward_hooks(layer: nn.Module) -> bool:
    """Returns whether hooks run before or after a layer's `forward`."""
    names = "_forward_hooks", "_forward_pre_hooks"
    for name in names:
        if not hasattr(layer, name):
            raise AttributeError(f"PyTorch {torch.__version__} has no {type(layer).__name__}.{name}. {_TRIED}")
    return any(getattr(layer, name) for name in names)
