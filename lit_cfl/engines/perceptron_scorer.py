"""Scores perceptrons on a CPU: one call of a C++ function reads examples from the pool, scales, turns and scores them.

PyTorch passes over the images of an evaluation four times (to gather, convert, shift and scale them) before it
multiplies, and a model takes some tens of calls. `perceptron.cpp` reads 30 images of a model at a time into the
processor's caches. That takes 0.2 µs an image with a linear model, instead of 0.6 (`benchmarks/evaluation.py`).
"""

import ctypes
from dataclasses import dataclass

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.data import Examples
from lit_cfl.engines.perceptron import Layer, load, require_fitting
from lit_cfl.engines.scorer import ModelName, Outcomes, Scorer
from lit_cfl.parameters import ParameterLayout


class _Scoring(ctypes.Structure):
    """`Scoring` of `perceptron.cpp`."""

    _fields_ = (
        ("models", ctypes.c_void_p),
        ("num_models", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("layers", ctypes.POINTER(Layer)),
        ("num_layers", ctypes.c_int64),
        ("pool", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("offset", "scale", "positions", "example", "view", "label", "which")),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("losses", "right")),
    )


class PerceptronScorer(Scorer):
    """Scores the models of a perceptron; the numbers are the module's but for rounding.

    Examples that the C++ function cannot read (noisy views, embeddings, inputs of another type) go through the module.

    Args:
        module: on the CPU, in evaluation mode.
        layout: of the models' rows.
        dtype: float32 or float64.
        layers: of the module, see `layers_of`.
    """

    def __init__(
        self, module: LightningModule, layout: ParameterLayout, dtype: torch.dtype, layers: "ctypes.Array[Layer]"
    ) -> None:
        super().__init__(module, layout, dtype)
        self._layers = layers
        self._pool: tuple[Examples, _FlatExamples] | None = None

    def losses_of_all(self, models: Tensor, index: Tensor, examples: Examples) -> Tensor:
        if not self._reads(examples):
            return super().losses_of_all(models, index, examples)
        return self._losses_and_answers(models, None, index, examples)[0]

    def of_each(
        self, models: Tensor, which: Tensor, index: Tensor, examples: Examples, named: ModelName = "model {}".format
    ) -> Outcomes:
        if not self._reads(examples):
            return super().of_each(models, which, index, examples, named)
        losses, right = self._losses_and_answers(models, which.contiguous(), index, examples)
        return Outcomes(losses, right[None], torch.ones_like(right)[None])

    def _reads(self, examples: Examples) -> bool:
        plain = examples.embeddings is None and not any(view.noise for view in examples.views)
        return plain and examples.inputs.dtype in (torch.uint8, self._dtype)

    def _losses_and_answers(
        self, models: Tensor, which: Tensor | None, index: Tensor, examples: Examples
    ) -> tuple[Tensor, Tensor]:
        """Computes losses, and 1 for right answers: float64 `[n]`, or `[K, n]` of all models where `which` is None."""
        if self._pool is None or self._pool[0] is not examples:
            self._pool = examples, _FlatExamples.of(examples, self._dtype)
        pool, models, labels = self._pool[1], models.to(self._dtype).contiguous(), examples.targets(index)
        require_fitting(self._layers, pool.inputs.shape[1], labels)  # C++ would read beside its memory
        view = index // len(examples)
        example, view = index - view * len(examples), pool.turned[view]
        shape = (len(index),) if which is not None else (len(models), len(index))
        losses, right = torch.empty(shape, dtype=torch.float64), torch.empty(shape, dtype=torch.float64)
        asked = _Scoring(
            models.data_ptr(),
            *models.shape,
            self._layers,
            len(self._layers),
            pool.inputs.data_ptr(),
            pool.inputs.dtype == torch.uint8,
            *(_address(one) for one in (pool.offset, pool.scale, pool.positions, example, view, labels, which)),
            len(index),
            losses.data_ptr(),
            right.data_ptr(),
        )
        score = {torch.float32: load().score_float, torch.float64: load().score_double}[self._dtype]
        score(ctypes.byref(asked))
        return losses, right


@dataclass(frozen=True, eq=False)
class _FlatExamples:
    """Examples in the form that the C++ function reads.

    Args:
        inputs: `[N, inputs]`, contiguous.
        offset, scale: `[inputs]`; None where they change nothing.
        positions: of each rotated view, the position that each input comes from, int32 `[rotated, inputs]`.
        turned: the row of `positions` of each view, int64 `[views]`; -1 = not rotated.
    """

    inputs: Tensor
    offset: Tensor | None
    scale: Tensor | None
    positions: Tensor
    turned: Tensor

    @classmethod
    def of(cls, examples: Examples, dtype: torch.dtype) -> "_FlatExamples":
        inputs = examples.inputs.flatten(1).contiguous()
        as_they_are = torch.arange(inputs.shape[1], dtype=torch.int32).view(examples.inputs.shape[1:])

        def of_each(option: float | Tensor, neutral: float) -> Tensor | None:
            if not isinstance(option, Tensor) and option == neutral:
                return None
            return torch.as_tensor(option, dtype=dtype).expand(as_they_are.shape).flatten().contiguous()

        rotated = [view.quarter_turns for view in examples.views if view.quarter_turns]
        positions = [as_they_are.rot90(turns, (-2, -1)).flatten() for turns in rotated]
        is_rotated = torch.tensor([view.quarter_turns > 0 for view in examples.views])
        return cls(
            inputs,
            of_each(examples.offset, 0.0),
            of_each(examples.scale, 1.0),
            torch.stack(positions) if positions else as_they_are.new_empty(0),
            (is_rotated.cumsum(0) - 1).where(is_rotated, -1),
        )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
