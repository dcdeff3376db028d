"""Multiplies matrices on a CPU faster than PyTorch: builds and loads a product of our own, for traced steps, too.

MKL, PyTorch's library for products, takes a slow path on processors that are not Intel's: a half to a tenth of the
speed of `products.cpp` on the small products of a stack (docs/performance.md); on Intel's it is faster, and the plan
takes it (`choose_plan.py`). The C++ file is compiled by the compiler that Inductor uses, when it is first needed, and
kept (`kernel_cache.py`).

Each number is summed up in an order that depends on the shapes of one client's matrices alone, so the bits are the same
in any company and with any number of threads. It has no blocks for the caches: single products that are large in every
direction go to oneDNN, which PyTorch has beside MKL (twice as fast as MKL, 1.4 times as fast as our own).
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import GraphModule

from lit_cfl.engines.compiler import load_operators

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("products.cpp", "tiles.h"))
_LARGE = 64  # rows, columns and depth from which on oneDNN is faster


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """Computes the product of two matrices of float32 or float64 on the CPU; `load` must have been called."""
    if left.dtype == torch.float32 and min(*left.shape, right.shape[1]) >= _LARGE and torch.backends.mkldnn.enabled:
        large: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.mT, None, "none", [], "")
        return large
    product: Tensor = torch.ops.lit_cfl.bmm(left[None], right[None])
    return product[0]


def use_own_products(graph: GraphModule) -> None:
    """Replaces the batched products of float32 and float64 matrices in a traced graph, in place.

    Raises:
        BuildError: they cannot be compiled or loaded here.
    """
    load()
    for node in graph.graph.nodes:
        own = node.op == "call_function" and node.target is torch.ops.aten.bmm.default
        if own and node.meta["tensor_meta"].dtype in (torch.float32, torch.float64):
            node.target = torch.ops.lit_cfl.bmm.default
    graph.recompile()


@cache
def load() -> None:
    """Registers the operator `lit_cfl::bmm`, compiled now where the cache has none."""
    load_operators("products", _SOURCES)
    torch.library.register_fake("lit_cfl::bmm", _like_bmm)


def _like_bmm(left: Tensor, right: Tensor) -> Tensor:
    """Returns a tensor of the shape and strides that `lit_cfl::bmm` gives; see `bmm` in `products.cpp`."""
    count, rows, columns = left.shape[0], left.shape[1], right.shape[2]
    by_rows = _readable(right).stride(2) == 1 or _readable(left).stride(2) == 1
    strides = (rows * columns, columns, 1) if by_rows else (rows * columns, 1, rows)
    return left.new_empty_strided((count, rows, columns), strides)


def _readable(matrices: Tensor) -> Tensor:
    return matrices if 1 in matrices.stride()[1:] else matrices.contiguous()
