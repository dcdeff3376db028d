"""Finds the chain in a module by tracing its forward pass symbolically and following one value to the output."""

import copy
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from lit_cfl.engines.chain.parts import Activation, ChainLayer, Drop
from lit_cfl.engines.dropout import KeyedDropout
from lit_cfl.tasks.base import Task

Parts = tuple[ChainLayer | Activation | Drop, ...]

_ACTIVATIONS: dict[Any, Activation] = {
    key: activation
    for activation, keys in {
        Activation("relu"): (torch.relu, torch.relu_, functional.relu, functional.relu_, "relu", "relu_"),
        Activation("tanh"): (torch.tanh, functional.tanh, "tanh"),
        Activation("sigmoid"): (torch.sigmoid, functional.sigmoid, "sigmoid"),
    }.items()
    for key in keys
}
_RESHAPING = {torch.flatten, torch.reshape, "flatten", "reshape", "view", "contiguous"}  # results are checked later
_SHAPES = {getattr, operator.getitem, operator.mul, operator.floordiv, "size", "dim", "numel"}


class NotAChainError(ValueError):
    """Raised when a module is not a chain of fully connected layers, with the reason in one line."""


class _Tracer(fx.Tracer):
    """Traces into all modules except PyTorch's own layers and the keyed dropout."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, KeyedDropout) or super().is_leaf_module(m, module_qualified_name)


def find_parts(module: nn.Module) -> Parts:
    """Finds the parts of the chain in a module's `forward`, in order.

    Operations that change the shape are left out: `recognise.py` checks numerically that they change nothing else.

    Args:
        module: One of our tasks, whose net is traced, or any other module.

    Raises:
        NotAChainError: the forward pass contains anything else.
    """
    own = copy.deepcopy(module)  # tracing leaves constants of a forward pass in the module
    root, prefix = (own.net, "net.") if isinstance(own, Task) else (own, "")
    try:
        graph = _Tracer().trace(root)
    except Exception as error:  # a user's forward may raise anything when it is traced
        line = (str(error).splitlines() or [""])[0]
        raise NotAChainError(f"its forward cannot be traced ({type(error).__name__}: {line})") from error
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        raise NotAChainError(f"its forward takes {len(inputs)} arguments; a chain takes one")
    found, value, modules = [], inputs[0], dict(root.named_modules())
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr") or _is_shape(node, value):
            continue
        tensors = [one for one in node.all_input_nodes if not _is_shape(one, value) and one.op != "get_attr"]
        if tensors != [value]:
            raise NotAChainError(f"{_name(node, modules)} in its forward joins or repeats values; a chain has one path")
        if node.op == "output":
            break
        if not _only_reshapes(node, modules):
            found.append(_part(node, root, modules))
        value = node
    return tuple(_rename(part, prefix) for part in found)


def _rename(part: ChainLayer | Activation | Drop, prefix: str) -> ChainLayer | Activation | Drop:
    if not isinstance(part, ChainLayer):
        return part
    return replace(part, weight=prefix + part.weight, bias=None if part.bias is None else prefix + part.bias)


def _is_shape(node: fx.Node, value: fx.Node) -> bool:
    """Returns whether a node computes a shape rather than a tensor, such as `x.shape[0]` or `x.size(0)`."""
    if node is value or node.target not in _SHAPES:
        return False
    if node.target is getattr:
        return str(node.args[1]) == "shape"
    return node.target in ("size", "dim", "numel") or all(_is_shape(one, value) for one in node.all_input_nodes)


def _only_reshapes(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(modules[str(node.target)]) in (nn.Flatten, nn.Identity)
    return node.target in _RESHAPING


def _part(node: fx.Node, module: nn.Module, modules: dict[str, nn.Module]) -> ChainLayer | Activation | Drop:
    if node.op == "call_module":
        found = _part_of_module(str(node.target), modules[str(node.target)])
    elif node.target is functional.linear:
        found = _layer_of_call(node, module)
    elif node.target is functional.gelu:
        found = _gelu(str(node.kwargs.get("approximate", "none")))
    else:
        found = _ACTIVATIONS.get(node.target)
    if found is None:
        raise NotAChainError(
            f"{_name(node, modules)} in its forward is not a part of a chain of fully connected layers"
        )
    return found


def _part_of_module(name: str, module: nn.Module) -> ChainLayer | Activation | Drop | None:
    if type(module) is nn.Linear:
        bias = None if module.bias is None else f"{name}.bias"
        return ChainLayer(f"{name}.weight", bias, module.in_features, module.out_features)
    if isinstance(module, KeyedDropout):
        return Drop(module.p, module.layer)
    if type(module) is nn.GELU:
        return _gelu(module.approximate)
    simple: dict[type[nn.Module], Activation] = {
        nn.ReLU: Activation("relu"),
        nn.Tanh: Activation("tanh"),
        nn.Sigmoid: Activation("sigmoid"),
    }
    return simple.get(type(module))


def _gelu(approximate: str) -> Activation:
    return Activation("gelu" if approximate == "none" else "gelu_tanh")


def _layer_of_call(node: fx.Node, module: nn.Module) -> ChainLayer | None:
    """Recognises a layer in a call `linear(x, self.weight, self.bias)`."""
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
    weight, bias = given.get("weight"), given.get("bias")
    if not isinstance(weight, fx.Node) or not (bias is None or isinstance(bias, fx.Node)):
        return None
    if weight.op != "get_attr" or (bias is not None and bias.op != "get_attr"):
        return None
    outputs, inputs = module.get_parameter(str(weight.target)).shape
    return ChainLayer(str(weight.target), None if bias is None else str(bias.target), inputs, outputs)


def _name(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    if node.op == "call_module":
        return f"{type(modules[str(node.target)]).__name__} ({node.target})"
    target: str | Callable[..., Any] = node.target
    return target if isinstance(target, str) else target.__name__
