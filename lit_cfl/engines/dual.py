"""Trains perceptrons with the weights of the first layer in dual form.

Whatever mini-batches a client takes its steps on, the weights W `[h, d]` of the first layer change by combinations of
its examples X `[n, d]` alone: a step adds -lr dU^T X, where dU `[n, h]` is the gradient of the layer's products
U = X W^T, 0 for examples outside the mini-batch. So W is what the decay has left of W_0, less S^T X, where S `[n, h]`
is the sum of lr dU; the products of a mini-batch B are those of W_0 less G_B S, with the rows of B of the Gram matrix
G = X X^T. W itself is needed at the end alone, as in a dual perceptron. A step takes n |B| h multiply-adds instead of
2 d |B| h, and touches n h numbers instead of d h several times (docs/performance.md).

`dual.cpp` visits the hidden units a block at a time, so that their products, gradients and sums stay in the caches. In
the precision `tf32` the three large products take each number as the sum of two of bfloat16 (16 of 24 bits), which
processors with AMX multiply three times as fast as float32; on others all is float32.

It serves `Classification` with `MLP` and what else `perceptron.py` serves, but for `kernel_l2` in the first layer.
Numbers are those of the plain loop but for rounding. Clients for which it takes more multiply-adds train in the plain
loop.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import cast

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.engines.client_fit import ClientFit, ExamplePool, FitResult, finite_rows
from lit_cfl.engines.compiler import load_library, torch_options
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.loop import PlainLoop
from lit_cfl.engines.perceptron import is_perceptron, layers_of, require_fitting
from lit_cfl.errors import InputError
from lit_cfl.nets import MLP
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("dual.cpp", "factors.h", "perceptron.h", "tiles.h"))
_FIRST = "fc1"  # the first layer of an MLP
_HALVES_PAY = 128  # examples of a client from which on products of bfloat16 are faster
_PASSES = 8  # multiply-adds that take as long as what each step does with the sum of gradients beside products


class DualLoop:
    """Trains one client after the other.

    Args:
        module: the LightningModule.
        layout: of its rows.
        local: how clients train.
        halves: whether large products may take numbers as sums of two of bfloat16.
        plain: trains the clients for which the dual form does not pay.

    Raises:
        InputError: it is no module that `has_dual`.
    """

    def __init__(
        self, module: LightningModule, layout: ParameterLayout, local: LocalTraining, halves: bool, plain: PlainLoop
    ) -> None:
        if not has_dual(module, local):
            raise InputError(
                "plan.dual trains Classification with MLP by SGD, without momentum, gradient_clip, and kernel_l2 in "
                "the first layer; leave it out"
            )
        self._layers, self._plain = layers_of(module, layout), plain
        self._halves = halves and has_halves()

    def run(self, fits: Sequence[ClientFit], pool: ExamplePool, prox: float) -> Iterator[FitResult]:
        """Trains the fits in their order.

        Raises:
            InputError: examples that the net cannot take.
        """
        inputs, labels = pool[0].flatten(1), pool[1]
        require_fitting(self._layers, inputs.shape[1], labels)  # C++ would read and write beside its memory
        for fit in fits:
            positions, table = _numbered(fit.table)
            steps, batch = table.shape
            if not pays(len(positions), steps, batch, inputs.shape[1], fit.center is not None):
                yield from self._plain.run([fit], pool, prox)
                continue
            center = None if fit.center is None or not prox else fit.center.contiguous()
            own, own_labels = inputs[positions], labels[positions]
            halves = self._halves and len(own) >= _HALVES_PAY
            losses = ctypes.c_double()
            done = _function("halves" if halves else str(inputs.dtype))(
                fit.row.data_ptr(),
                None if center is None else center.data_ptr(),
                prox if center is not None else 0.0,
                self._layers,
                own.data_ptr(),
                own_labels.data_ptr(),
                len(own),
                table.data_ptr(),
                steps,
                batch,
                ctypes.byref(losses),
            )
            if not done:
                raise RuntimeError(f"can't allocate memory for {len(own)} examples in dual form")
            loss = losses.value / fit.num_examples
            yield FitResult(fit.position, loss, isfinite(loss) and all(finite_rows(fit.row[None])))


def _numbered(table: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers the examples of a client's mini-batches from 0, and sorts each: the order does not matter.

    Returns:
        their positions in the pool `[n]`, and the mini-batches `[steps, B]`; -1 = no example, these come last.
    """
    positions, numbers = table.flatten().unique(return_inverse=True)
    absent = int(len(positions) > 0 and positions[0] < 0)
    beyond = len(positions)
    numbers = torch.where(table < 0, beyond, numbers.view(table.shape) - absent).sort(1).values
    return positions[absent:], torch.where(numbers == beyond, -1, numbers)


def pays(examples: int, steps: int, batch: int, inputs: int, pulled: bool) -> bool:
    """Says whether the dual form takes fewer multiply-adds of a hidden unit than the plain loop.

    Args:
        examples: different ones.
        steps, batch: mini-batches, and how many examples each has.
        inputs: d, numbers of an example.
        pulled: whether there is a centre.
    """
    products = (3 if pulled else 2) * examples * inputs  # with the first weights, the centre, and at the end
    steps_each = batch * examples + _PASSES * examples
    return products + (steps - 1) * steps_each < 2 * steps * batch * inputs


def has_dual(module: LightningModule, local: LocalTraining) -> bool:
    """Says whether `DualLoop` computes what this module trains."""
    if not is_perceptron(module, local):
        return False
    task = cast(Classification, module)
    return isinstance(task.net, MLP) and _FIRST not in task.penalised_layers


def has_halves() -> bool:
    """Says whether this processor multiplies bfloat16 faster than float32.

    Raises:
        BuildError: the library cannot be compiled or loaded here.
    """
    function = load().has_halves
    function.restype = ctypes.c_bool
    return bool(function())


@cache
def load() -> ctypes.CDLL:
    """Loads the library, compiled now where the cache has none.

    Raises:
        BuildError: it cannot be compiled or loaded here.
    """
    return load_library("dual", _SOURCES, torch_options())


@cache
def _function(kind: str) -> Callable[..., bool]:
    names = {"torch.float32": "train_float", "torch.float64": "train_double", "halves": "train_halves"}
    function = load()[names[kind]]
    pointer, whole, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    function.argtypes = [pointer, pointer, real, pointer, pointer, pointer, whole, pointer, whole, whole, pointer]
    function.restype = ctypes.c_bool
    return function
