"""Trains perceptrons by plain SGD on a CPU: all steps of a client in one call of a C++ function.

Small models take less time to train than to be asked for it: of a linear model's compiled steps in a stack half of the
time goes into calls (docs/performance.md). `perceptron.cpp` keeps one client's model in the processor's caches, and
reads and writes its weights once a step. It is compiled by the compiler that Inductor uses, when it is first needed,
and kept (`kernel_cache.py`).

It serves `Classification` with `MCLR` or `MLP` and SGD without momentum, at learning rates and weight decays of its
groups, with `kernel_l2` and a proximal term, in float32 or float64. Numbers are those of the module but for rounding.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import isfinite
from pathlib import Path

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import SGD

from lit_cfl.engines.client_fit import ClientFit, ExamplePool, FitResult, finite_rows
from lit_cfl.engines.compiler import load_library
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.optimizers import FunctionalOptimizer
from lit_cfl.errors import InputError
from lit_cfl.nets import MCLR, MLP
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("perceptron.cpp", "perceptron.h", "tiles.h"))


class Layer(ctypes.Structure):
    """`Layer` of `perceptron.h`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("inputs", "outputs", "weight", "bias")),
        *((name, ctypes.c_double) for name in ("weight_rate", "weight_decay", "bias_rate", "bias_decay", "kernel_l2")),
    )


class PerceptronLoop:
    """Trains one client after the other.

    Args:
        module: the LightningModule.
        layout: of its rows.
        local: how clients train.

    Raises:
        InputError: it is none that `is_perceptron`.
    """

    def __init__(self, module: LightningModule, layout: ParameterLayout, local: LocalTraining) -> None:
        if not is_perceptron(module, local):
            raise InputError(
                "plan.fused trains Classification with MCLR or MLP by SGD, without momentum and gradient_clip; "
                "leave it out"
            )
        self._layers = layers_of(module, layout)

    def run(self, fits: Sequence[ClientFit], pool: ExamplePool, prox: float) -> Iterator[FitResult]:
        """Trains the fits in their order.

        Raises:
            InputError: examples that the net cannot take.
        """
        inputs, labels = pool[0].flatten(1).contiguous(), pool[1].contiguous()
        require_fitting(self._layers, inputs.shape[1], labels)  # C++ would read and write beside its memory
        train = _function(inputs.dtype)
        for fit in fits:
            table = fit.table.contiguous()
            center = None if fit.center is None or not prox else fit.center.contiguous()
            found = train(
                fit.row.data_ptr(),
                None if center is None else center.data_ptr(),
                prox if center is not None else 0.0,
                self._layers,
                len(self._layers),
                inputs.data_ptr(),
                labels.data_ptr(),
                table.data_ptr(),
                *table.shape,
            )
            loss = found / fit.num_examples
            yield FitResult(fit.position, loss, isfinite(loss) and all(finite_rows(fit.row[None])))


def is_perceptron(module: LightningModule, local: LocalTraining) -> bool:
    """Says whether `PerceptronLoop` computes what this module trains."""
    if type(module) is not Classification or local.gradient_clip is not None:
        return False
    net, optimizer = module.net, module.configure_optimizers()
    layers = _linear_layers(net)
    known = {f"net.{name}.{part}" for name, layer in layers for part in ("weight", "bias")}
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return (
        bool(layers)
        and known == trained == set(dict(module.named_parameters()))
        and not any(inner._forward_hooks or inner._forward_pre_hooks for inner in module.modules())
        and type(optimizer) is SGD
        and not any(group["momentum"] for group in optimizer.param_groups)
    )


def _linear_layers(net: nn.Module) -> list[tuple[str, nn.Linear]]:
    """Names the layers of a net, in their order; none where it is another net."""
    if type(net) not in (MCLR, MLP):
        return []
    found = [(name, layer) for name, layer in net.named_children() if type(layer) is nn.Linear]
    return found if len(found) == len(list(net.children())) else []


def layers_of(module: LightningModule, layout: ParameterLayout) -> "ctypes.Array[Layer]":
    """Describes the layers of a module that `is_perceptron`, in their order."""
    optimizer, slots = module.configure_optimizers(), {slot.name: slot for slot in layout.slots}
    if not isinstance(module, Classification) or not isinstance(optimizer, SGD):
        raise TypeError("a module that `is_perceptron` refuses")
    trained = [module.get_parameter(name) for name in slots]
    options = dict(zip(slots, FunctionalOptimizer.of(optimizer, trained).options, strict=True))
    found = []
    for name, layer in _linear_layers(module.net):
        weight, bias = f"net.{name}.weight", f"net.{name}.bias"
        found.append(
            Layer(
                layer.in_features,
                layer.out_features,
                slots[weight].start,
                slots[bias].start,
                options[weight]["lr"],
                options[weight]["weight_decay"],
                options[bias]["lr"],
                options[bias]["weight_decay"],
                module.kernel_l2 if name in module.penalised_layers else 0.0,
            )
        )
    return (Layer * len(found))(*found)


def require_fitting(layers: "ctypes.Array[Layer]", width: int, labels: Tensor) -> None:
    """Raises InputError where a net cannot take examples.

    Args:
        width: of an example, in numbers.
        labels: of the examples, int64 `[n]`.
    """
    if width != layers[0].inputs:
        raise InputError(f"examples have {width} numbers each, but the net takes {layers[0].inputs}")
    least, most = (int(label) for label in labels.aminmax()) if len(labels) else (0, 0)
    if least < 0 or most >= layers[-1].outputs:
        wrong = least if least < 0 else most
        raise InputError(f"an example has the label {wrong}, but the net has {layers[-1].outputs} outputs")


@cache
def load() -> ctypes.CDLL:
    """Loads the library, compiled now where the cache has none.

    Raises:
        BuildError: it cannot be compiled or loaded here.
    """
    return load_library("perceptron", _SOURCES)


@cache
def _function(dtype: torch.dtype) -> Callable[..., float]:
    function = {torch.float32: load().train_float, torch.float64: load().train_double}[dtype]
    pointer, whole, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    function.argtypes = [pointer, pointer, real, pointer, whole, pointer, pointer, pointer, whole, whole]
    function.restype = real
    return function
