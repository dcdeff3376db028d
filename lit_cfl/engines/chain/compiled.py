"""Trains clients of small chains with `steps.cpp`: one call trains several clients, each through all its steps.

A step in PyTorch spends about 60 us on calls, however little it computes: with few examples, or few clients in a stack,
more than on arithmetic. Training that `can_train` excludes runs in stacks.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lit_cfl.engines.chain.groups import widest_batches
from lit_cfl.engines.chain.inputs import dual_pays
from lit_cfl.engines.chain.parts import Activation, Chain, ChainLayer
from lit_cfl.engines.chain.tables import CohortExamples
from lit_cfl.engines.chain.updates import Rule, Training
from lit_cfl.engines.cohort_fit import CohortFit, Ended
from lit_cfl.engines.library import load_library
from lit_cfl.parameters import ParameterLayout

_LARGEST = 2**20  # maximum number of a model's parameters: PyTorch multiplies larger matrices as fast or faster
_AT_ONCE = 2**19  # maximum number of input values that a call reads: 2 MiB, which stay in a cache
_PADDED = 16  # row lengths are padded to a multiple of this, as by `kPadded` in steps.cpp


class _Rule(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in ("rate", "shrink", "pull")]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("inputs", "outputs", "weight", "bias", "relu")),
        *((name, ctypes.c_void_p) for name in ("fixed_weight", "fixed_bias")),
        *((name, _Rule) for name in ("weight_rule", "bias_rule")),
        ("penalty", ctypes.c_double),
    ]


class _Work(ctypes.Structure):
    _pointers = (
        "models", "start", "centers", "center", "inputs", "bytes", "labels", "sizes", "steps", "dual", "drawn",
        "begins", "counts", "rows", "losses",
    )  # fmt: skip
    _fields_ = [
        ("layers", ctypes.POINTER(_Layer)),
        *((name, ctypes.c_int64) for name in ("num_layers", "columns", "clients")),
        *((name, ctypes.c_float) for name in ("offset", "scale")),
        *((name, ctypes.c_void_p) for name in _pointers),
    ]


def can_train(training: Training, work: CohortFit, columns: int) -> bool:
    """Returns whether the compiled steps are installed and support this training.

    Args:
        columns: Number of columns of a row.
    """
    chain, models = training.chain, work.models
    return (
        (models.device.type, models.dtype) == ("cpu", torch.float32)
        and not training.arithmetic.mixed
        and training.is_plain
        and work.weights is None
        and columns <= _LARGEST
        and (chain.loss.kind, chain.loss.factor) == ("cross-entropy", 1)
        and _has_relu_alone(chain)
        and load_library()[0] is not None
    )


def _has_relu_alone(chain: Chain) -> bool:
    """Returns whether the chain has only fully connected layers, each followed by at most one ReLU."""
    before: object = None
    for part in chain.parts:
        follows = isinstance(before, ChainLayer) and isinstance(part, Activation) and part.name == "relu"
        if not (isinstance(part, ChainLayer) or follows):
            return False
        before = part
    return True


class CompiledSteps:
    """The clients of a cohort, prepared for the compiled steps.

    Args:
        training: Chain and optimizer that all clients share.
        layout: Layout of the rows.
        work: Local training of the cohort.
        examples: The cohort's examples.
    """

    def __init__(self, training: Training, layout: ParameterLayout, work: CohortFit, examples: CohortExamples) -> None:
        chain, first = training.chain, training.chain.layers[0]
        self._work, self._examples, self._columns = work, examples, layout.num_columns
        self._fixed = {name: tensor.contiguous() for name, tensor in examples.fixed.items()}
        starts = {slot.name: slot.start for slot in layout.slots}
        rules = training.rules(work.prox if work.centers is not None else 0.0)
        after = (*chain.parts[1:], None)
        layers = [
            self._layer(part, isinstance(following, Activation), starts, rules)
            for part, following in zip(chain.parts, after, strict=True)
            if isinstance(part, ChainLayer)
        ]
        self._layers = (_Layer * len(layers))(*layers)
        can_be_dual = first.weight in starts and not first.penalty
        pays = dual_pays(work.sizes, work.steps, widest_batches(work), first.inputs, first.outputs)
        self._dual = (pays & can_be_dual).long()
        self._first_steps, self._starts = work.first_steps, work.starts
        decode = examples.decode
        self._reads_bytes = decode is not None and decode.is_uniform
        self._decoding = (decode.offset, decode.scale) if decode is not None and self._reads_bytes else (0.0, 1.0)

    def _layer(self, layer: ChainLayer, relu: bool, starts: dict[str, int], rules: dict[str, Rule]) -> _Layer:
        names = layer.weight, layer.bias or ""
        fixed = (self._fixed[name].data_ptr() if name in self._fixed else None for name in names)
        own = (_Rule(r.rate, r.shrink, r.pull) if (r := rules.get(name)) else _Rule() for name in names)
        places = (starts.get(name, -1) for name in names)
        return _Layer(layer.inputs, layer.outputs, *places, relu, *fixed, *own, layer.penalty)

    def chunks(self, threads: int) -> Iterator[range]:
        """Yields the clients of each call, by their positions in the cohort."""
        first, numbers, clients = 0, 0, len(self._work)
        for client, size in enumerate((self._work.sizes * self._examples.width).tolist()):
            if client > first and (numbers + size > _AT_ONCE or (client - first) * threads >= clients):
                yield range(first, client)
                first, numbers = client, 0
            numbers += size
        yield range(first, clients)

    def train(self, rows: Tensor, losses: Tensor, clients: range, ended: Ended) -> None:
        """Trains the clients of one call, and writes their models and losses.

        Args:
            rows: Rows of the cohort `[n, d]`; those of these clients are overwritten.
            losses: Sum of each client's losses, float64 `[n]`, overwritten likewise.
            ended: Called with the number of these clients after they have finished.
        """
        work, first = self._work, clients.start
        step, start = self._first_steps[first], self._starts[first]
        inputs = self._inputs(slice(start, start + int(work.sizes[first : clients.stop].sum())))
        read = [work.models, work.start[first:], work.centers, work.center[first:], *inputs]
        read += [self._examples.targets[start:], work.sizes[first:], work.steps[first:], self._dual[first:]]
        read += [work.batches.drawn, work.batches.begins[step:], work.batches.counts[step:]]
        kept = [None if part is None else part.contiguous() for part in read]  # kept alive until the call has ended
        pointers = [None if part is None else part.data_ptr() for part in (*kept, rows[first:], losses[first:])]
        counts = len(self._layers), self._columns, len(clients)
        asked = _Work(self._layers, *counts, *self._decoding, *pointers)
        library: Any = load_library()[0]
        library.train(ctypes.byref(asked))  # releases the GIL
        ended(len(clients))

    def _inputs(self, own: slice) -> tuple[Tensor | None, Tensor | None]:
        """Returns these examples as a pair (floats, bytes), of which one is None; floats are padded with zeros."""
        inputs, decode, missing = self._examples.inputs[own], self._examples.decode, -self._examples.width % _PADDED
        if self._reads_bytes:
            return None, inputs
        inputs = (inputs if decode is None else decode(inputs)).flatten(1)
        return pad(inputs, (0, missing)) if missing else inputs, None  # `pad` copies even if nothing is missing
