"""Compiles training steps into functions of fixed shapes: a small model spends its time between operations.

The steps are traced once for each shape and lowered by Inductor without `torch.compile` around it: its guards would ask
at every call whether something has changed, which took a fifth of the time of a small model, and nothing does. What
Inductor makes is kept for later runs (`kernel_cache.py`); it does so by itself only below `torch.compile`.
"""

from collections.abc import Callable, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from lit_cfl.engines.kernel_cache import kept
from lit_cfl.engines.plan import Products
from lit_cfl.engines.products import use_own_products
from lit_cfl.engines.steps import Lanes, LaneWork, Steps


class CompilingError(RuntimeError):
    """The steps could not be compiled, for example because no C++ compiler works."""


class CompiledSteps:
    """Steps compiled at their first call for each shape of the work.

    Args:
        steps: to compile.
        products: of matrices, see `PlanOptions`.
        compiling: called before a function is compiled.
    """

    def __init__(self, steps: Steps, products: Products, compiling: Callable[[], None] = lambda: None) -> None:
        self._steps, self._products, self._compiling = steps, products, compiling
        self._compiled: dict[tuple[object, ...], Callable[..., Sequence[Tensor]]] = {}

    @property
    def graphs(self) -> int:
        """The number of compiled functions."""
        return len(self._compiled)

    def __call__(self, lanes: Lanes, work: LaneWork) -> tuple[Lanes, Tensor]:
        tensors = [*lanes.tensors, *_tensors_of_work(work)]
        key = (work.index.shape, work.inputs.shape, work.inputs.dtype, work.prox is not None)
        if key not in self._compiled:
            self._compiling()
            try:
                self._compiled[key] = self._compile(lanes, work, tensors)
            except Exception as error:  # the compiler, its cache, the tracing: they share no class of errors
                raise CompilingError(f"{type(error).__name__}: {error}") from error
        *found, losses = self._compiled[key](*tensors)
        return _lanes_from(lanes, found), losses

    def _compile(self, lanes: Lanes, work: LaneWork, tensors: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
        from torch._inductor import standalone_compile  # slow to import, and only here needed
        from torch.fx.experimental.proxy_tensor import make_fx

        def flat(*given: Tensor) -> list[Tensor]:
            count = len(lanes.tensors)
            after, losses = self._steps(_lanes_from(lanes, given[:count]), _work_from(work, given[count:]))
            # strides are as fixed as shapes; `contiguous` would leave out copies that own products make necessary
            return [*(tensor.clone(memory_format=torch.contiguous_format) for tensor in after.tensors), losses]

        traced = make_fx(flat)(*tensors)
        constants = [*_rates_as_inputs(traced, self._steps.rates), *_constants_as_inputs(traced)]
        if self._products == "own":
            use_own_products(traced)
        inputs: list[Any] = [*tensors, *constants]

        def lower(file: Path) -> None:
            lowered = standalone_compile(traced, inputs, dynamic_shapes="from_example_inputs")
            lowered.save(path=str(file), format="binary")

        modes = [torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()]
        file = kept("steps", [traced.code, *_kinds(inputs), *map(str, modes)], lower, ".bin")
        compiled = _loaded(file)
        return lambda *given: compiled(*given, *constants)


@lru_cache(maxsize=16)
def _loaded(file: Path) -> Callable[..., Any]:
    """Loads compiled code, once for all runs of a process; its name says what it holds."""
    from torch._inductor.standalone_compile import CompiledArtifact

    return CompiledArtifact.load(path=str(file), format="binary")


def _kinds(inputs: Sequence[Tensor]) -> list[str]:
    """Describes the inputs of compiled code, and the GPUs that it was made for."""
    gpus = sorted({str(tensor.device) for tensor in inputs if tensor.device.type == "cuda"})
    return [
        *(f"{tensor.device.type} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}" for tensor in inputs),
        *(f"{torch.cuda.get_device_name(gpu)} {torch.cuda.get_device_capability(gpu)}" for gpu in gpus),
    ]


def _rates_as_inputs(traced: GraphModule, rates: Set[float]) -> list[Tensor]:
    """Turns factors that are rates of the optimizer into inputs, in place: runs that differ in them share the code."""
    found: dict[tuple[float, torch.dtype, torch.device], Node] = {}
    for node in list(traced.graph.nodes):
        if node.target is torch.ops.aten.mul.Tensor and isinstance(node.args[1], float) and node.args[1] in rates:
            like = node.meta["val"]
            key = (node.args[1], like.dtype, like.device)
            if key not in found:
                found[key] = _new_input(traced, f"rate_{len(found)}")
            node.update_arg(1, found[key])
    traced.recompile()
    return [torch.tensor(rate, dtype=dtype, device=device) for rate, dtype, device in found]


def _constants_as_inputs(traced: GraphModule) -> list[Tensor]:
    """Turns the tensors that a graph holds into inputs after the others, in place: kept code holds none."""
    nodes, constants = list(traced.graph.nodes), []
    for node in nodes:
        if node.op == "get_attr":
            constants.append(getattr(traced, node.target))
            given = _new_input(traced, f"constant_{len(constants)}")
            given.meta = node.meta
            node.replace_all_uses_with(given)
            traced.graph.erase_node(node)
    for name in {node.target for node in nodes if node.op == "get_attr"}:
        delattr(traced, name)
    traced.recompile()
    return constants


def _new_input(traced: GraphModule, name: str) -> Node:
    first = next(node for node in traced.graph.nodes if node.op != "placeholder")
    with traced.graph.inserting_before(first):
        return traced.graph.placeholder(name)


def _lanes_from(like: Lanes, tensors: Sequence[Tensor]) -> Lanes:
    """Builds the lanes whose `tensors` these are."""
    rest = iter(tensors)
    rows = tuple(next(rest) for _ in like.rows)
    return Lanes(rows, tuple(tuple(next(rest) for _ in slot) for slot in like.state))


def _tensors_of_work(work: LaneWork) -> list[Tensor]:
    prox = [] if work.prox is None else [work.prox, *(work.centers or ())]
    return [work.inputs, work.labels, work.index, work.keys, work.corrections, work.first, *prox]


def _work_from(like: LaneWork, tensors: Sequence[Tensor]) -> LaneWork:
    """Builds the work from the tensors that `_tensors_of_work` returned."""
    inputs, labels, index, keys, corrections, first, *pull = tensors
    prox, centers = (pull[0], tuple(pull[1:])) if like.prox is not None else (None, None)
    return LaneWork(inputs, labels, index, keys, corrections, first, prox, centers)
