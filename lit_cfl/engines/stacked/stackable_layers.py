"""Plain versions of layers that PyTorch cannot stack: LSTM, GRU, BatchNorm, embeddings with a padding id.

`vmap` has no rule for fused LSTMs and GRUs. In the plain ones a matrix product projects the inputs of all time steps,
and both directions of a layer run together, so that only the product with the state is computed step by step. In a
stack of embeddings PyTorch (2.15) zeroes the gradient of the padding row for the first client only.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, cast

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn.functional import embedding

from lit_cfl.engines.check_module import BatchNorm
from lit_cfl.engines.stacked.torch_internals import has_forward_hooks
from lit_cfl.errors import InputError
from lit_cfl.parameters import replace_layers

PRESENT = "present"  # name of the buffer
States = tuple[Tensor, ...]  # the state h, and c of an LSTM, each `[directions, B, H]` in a layer
_OPTIONS = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size")


class _PlainCells(nn.Module):
    """Replacement for a fused recurrent layer, with the same options, parameters and names.

    Args:
        layer: An LSTM or GRU, see `why_not_stacked`.
    """

    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    bidirectional: bool

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        for option in _OPTIONS:
            setattr(self, option, getattr(layer, option))
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)
        self.train(layer.training)

    def flatten_parameters(self) -> None:
        """Does nothing. It exists because nets call it on fused layers."""

    def _run(self, inputs: Tensor, start: States | None, num_states: int) -> tuple[Tensor, States]:
        """Computes the outputs `[B, T, directions * H]` and the last states `[layers * directions, B, H]`.

        Args:
            inputs: `[B, T, F]`; like the outputs, `[T, B, ...]` if the layer is not `batch_first`.
            start: Initial states, in the shape of the last ones; None = zeros.
            num_states: Number of tensors in a state.
        """
        if not isinstance(inputs, Tensor) or inputs.dim() != 3:
            raise InputError(
                "recurrent layers in a stack take batches [B, T, F], not packed or single sequences; give batches"
            )
        sequence = inputs.transpose(0, 1) if self.batch_first else inputs
        directions, ends = 1 + self.bidirectional, []
        zeros = inputs.new_zeros(directions, sequence.shape[1], self.hidden_size)
        for number in range(self.num_layers):
            own = slice(number * directions, (number + 1) * directions)
            states = (zeros,) * num_states if start is None else tuple(state[own] for state in start)
            sequence, states = self._layer(number, sequence, states)
            ends.append(states)
        outputs = sequence.transpose(0, 1) if self.batch_first else sequence
        return outputs, tuple(torch.cat(parts) for parts in zip(*ends, strict=True))

    def _layer(self, number: int, sequence: Tensor, states: States) -> tuple[Tensor, States]:
        """Computes one layer, `[T, B, F]` to `[T, B, directions * H]`, and its last states."""
        both = torch.stack([sequence, sequence.flip(0)]) if self.bidirectional else sequence[None]
        projected = both.flatten(1, 2) @ self._both_directions("weight_ih", number).transpose(1, 2)
        if self.bias:
            projected = projected + self._both_directions("bias_ih", number)[:, None]
        weight = self._both_directions("weight_hh", number)
        bias = self._both_directions("bias_hh", number) if self.bias else weight.new_zeros(weight.shape[:2])
        projected = projected.unflatten(1, sequence.shape[:2])
        states_each, states = self._steps(projected, states, weight.transpose(1, 2), bias[:, None])
        if not self.bidirectional:
            return states_each[0], states
        return torch.cat([states_each[0], states_each[1].flip(0)], 2), states

    def _both_directions(self, name: str, number: int) -> Tensor:
        """Stacks the parameter of each direction, `[directions, ...]`."""
        ends = ("", "_reverse") if self.bidirectional else ("",)
        return torch.stack([getattr(self, f"{name}_l{number}{end}") for end in ends])

    @abstractmethod
    def _steps(self, projected: Tensor, states: States, weight: Tensor, bias: Tensor) -> tuple[Tensor, States]:
        """Computes h after each time step `[directions, T, B, H]`, and the last states.

        Args:
            projected: Inputs of the gates `[directions, T, B, gates * H]`.
            states: Initial states.
            weight: Weight from h to the gates `[directions, H, gates * H]`.
            bias: Bias of that product `[directions, 1, gates * H]`.
        """


class PlainLSTM(_PlainCells):
    """Replacement for `nn.LSTM`. All sequences of a batch must have the same length."""

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outputs, (h, c) = self._run(input, hx, 2)
        return outputs, (h, c)

    def _steps(self, projected: Tensor, states: States, weight: Tensor, bias: Tensor) -> tuple[Tensor, States]:
        size = self.hidden_size
        (h, c), found = states, []
        for inputs in (projected + bias[:, None]).unbind(1):
            pair, cell, output = torch.baddbmm(inputs, h, weight).split([2 * size, size, size], 2)
            input, forget = pair.sigmoid().chunk(2, 2)
            c = forget * c + input * cell.tanh()
            h = output.sigmoid() * c.tanh()
            found.append(h)
        return torch.stack(found, 1), (h, c)


class PlainGRU(_PlainCells):
    """Replacement for `nn.GRU`. All sequences of a batch must have the same length."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, (h,) = self._run(input, None if hx is None else (hx,), 1)
        return outputs, h

    def _steps(self, projected: Tensor, states: States, weight: Tensor, bias: Tensor) -> tuple[Tensor, States]:
        sizes = [2 * self.hidden_size, self.hidden_size]
        (h,), found = states, []
        for pair, new in zip(*(part.unbind(1) for part in projected.split(sizes, 3)), strict=True):
            of_pair, of_new = torch.baddbmm(bias, h, weight).split(sizes, 2)
            reset, update = (pair + of_pair).sigmoid().chunk(2, 2)
            new = (new + reset * of_new).tanh()
            h = new + update * (h - new)
            found.append(h)
        return torch.stack(found, 1), (h,)


class PlainEmbedding(nn.Embedding):
    """Replacement for an `nn.Embedding` that has a padding id, whose row receives no gradient."""

    padding_idx: int

    def __init__(self, layer: nn.Embedding) -> None:
        super().__init__(
            layer.num_embeddings, layer.embedding_dim, layer.padding_idx, sparse=layer.sparse, _weight=layer.weight
        )
        self.weight = layer.weight
        self.train(layer.training)

    def forward(self, input: Tensor) -> Tensor:
        vectors = embedding(input, self.weight, sparse=self.sparse)
        return torch.where(input.eq(self.padding_idx)[..., None], vectors.detach(), vectors)


class StackedBatchNorm(nn.Module):
    """Replacement for a BatchNorm layer, with the same parameters, statistics and names.

    The statistics of a batch count its examples without the padding. A function of tensors cannot change the running
    statistics, so the new ones are stored in `updated`.

    Args:
        layer: A BatchNorm layer, see `why_not_stacked`.
    """

    present: Tensor
    updated: tuple[Tensor, Tensor] | None

    def __init__(self, layer: BatchNorm) -> None:
        super().__init__()
        self.eps, self.momentum = layer.eps, cast(float, layer.momentum)
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)
        self.register_buffer(PRESENT, torch.ones(1), persistent=False)
        self.updated = None
        self.train(layer.training)

    def forward(self, input: Tensor) -> Tensor:
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        if self.training or self.running_mean is None:
            centered, var = self._statistics(wide)
        else:
            mean, var = self._running()
            centered = wide - _as_channels(mean, wide)
        scale, bias = (var + self.eps).rsqrt(), var.new_zeros(())
        if self.weight is not None:
            scale, bias = scale * self.weight, _as_channels(self.bias, wide)
        return torch.addcmul(bias, centered, _as_channels(scale, wide)).to(input.dtype)

    def _running(self) -> tuple[Tensor, Tensor]:
        return cast(Tensor, self.running_mean), cast(Tensor, self.running_var)

    def _statistics(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the centred inputs, and each channel's variance over the batch.

        The new running statistics are stored in `updated`.
        """
        present = self.present.to(inputs.dtype)
        count = present.sum().clamp(min=1) * inputs[0, 0].numel()

        def average(numbers: Tensor) -> Tensor:
            of_each = numbers[..., None].flatten(2).sum(2)  # [B, C]; padding is left out afterwards, which saves a pass
            return (of_each * present[:, None]).sum(0) / count

        mean = average(inputs)
        centered = inputs - _as_channels(mean, inputs)
        var = average(centered.square())
        if self.running_mean is not None:
            before, unbiased = self._running(), var * (count / (count - 1))
            new = zip(before, (mean.detach(), unbiased.detach()), strict=True)
            first, second = (old + self.momentum * (now.to(old.dtype) - old) for old, now in new)
            self.updated = first, second
        return centered, var


def _as_channels(numbers: Tensor, inputs: Tensor) -> Tensor:
    """Reshapes one number per channel, `[C]`, to broadcast over inputs `[B, C, ...]`."""
    return numbers.view(1, -1, *[1] * (inputs.dim() - 2))


def find_stacked_norms(module: nn.Module) -> dict[str, StackedBatchNorm]:
    """Returns the stacked BatchNorm layers of a module, by their full names."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, StackedBatchNorm)}


_PLAIN: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.LSTM: PlainLSTM,
    nn.GRU: PlainGRU,
    nn.Embedding: PlainEmbedding,
    nn.BatchNorm1d: StackedBatchNorm,
    nn.BatchNorm2d: StackedBatchNorm,
    nn.BatchNorm3d: StackedBatchNorm,
}


def replace_unstackable_layers(module: LightningModule) -> LightningModule:
    """Replaces layers by their stackable form, if needed and possible. Returns the module.

    Args:
        module: Module, changed in place; its parameters stay the same objects.
    """

    def plain(layer: nn.Module) -> nn.Module | None:
        replaced = type(layer) in _PLAIN and _needs_plain(layer) and not why_not_stacked(layer)
        return _PLAIN[type(layer)](layer) if replaced else None

    return replace_layers(module, plain)


def why_not_stacked(layer: nn.Module) -> str:
    """Explains why this layer has no plain form that can be stacked; empty if it has one or needs none."""
    kind = type(layer).__name__
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and (layer.max_norm is not None or layer.scale_grad_by_freq):
        return f"{kind} with max_norm or scale_grad_by_freq, which would count the padding of a short batch"
    if not _needs_plain(layer):
        return ""
    if type(layer) not in _PLAIN:
        return f"{kind}, which has no form that can be stacked"
    if has_forward_hooks(layer):
        return f"{kind} with hooks"
    if isinstance(layer, nn.RNNBase) and layer.proj_size:
        return f"{kind} with proj_size {layer.proj_size}"
    if isinstance(layer, nn.RNNBase) and layer.num_layers > 1 and layer.dropout:
        return f"{kind} with dropout {layer.dropout} between its layers"
    return ""


def _needs_plain(layer: nn.Module) -> bool:
    padded = isinstance(layer, nn.Embedding) and layer.padding_idx is not None
    return padded or isinstance(layer, nn.RNNBase | BatchNorm)
