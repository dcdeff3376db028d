"""Scores the models of a chain: one product per layer for all examples, without loading a model into a module."""

import copy
from collections.abc import Callable, Mapping
from math import nan

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.data import Examples
from lit_cfl.engines.chain.losses import compute_losses, targets_of
from lit_cfl.engines.chain.parts import Chain
from lit_cfl.engines.chain.passes import Arithmetic, run_forward
from lit_cfl.engines.chain.recognise import NotAChainError, is_close, recognise_chain, tensors_of, trials
from lit_cfl.engines.scorer import Scorer
from lit_cfl.engines.task_protocol import Batch, mix_outputs_of, outcomes_of
from lit_cfl.parameters import ParameterLayout
from lit_cfl.scores import CLASSIFIER, per_example, scores_of

_CHECKED = 8  # number of examples with which a chain is checked


class ChainScorer(Scorer):
    """Scores the models of a chain; the numbers equal the module's up to rounding.

    This requires that the module's `outcomes` are the losses of the chain and either the accuracy of the largest output
    or the absolute error, which is checked numerically at the first examples. Other modules are scored as in `Scorer`.

    Args:
        template: The module as the user's task builds it, on the CPU.
        module, layout, dtype, seed: See `Scorer`.
    """

    def __init__(
        self,
        template: LightningModule,
        module: LightningModule,
        layout: ParameterLayout,
        dtype: torch.dtype,
        seed: Callable[[int], None] = lambda first: None,
    ) -> None:
        super().__init__(module, layout, dtype, seed)
        self._template = template
        self._found: tuple[Chain | None] | None = None  # None until the module has been examined
        self._fixed: dict[str, Tensor] = {}
        self._is_forward = False  # True if the module's `forward` returns the chain's outputs, which can be mixed

    def _losses(self, models: Tensor, index: Tensor, examples: Examples) -> Tensor:
        batch = examples.batch(index[:_CHECKED], torch.float32)
        chain = self._chain(batch)
        if chain is None:
            return super()._losses(models, index, examples)
        inputs, labels = examples.batch(index, self._dtype, self._device)
        outputs = self._outputs(chain, models, inputs.flatten(1))
        targets = targets_of(chain.loss, labels, self._dtype).expand(len(models), -1, -1)
        return compute_losses(chain.loss, outputs, targets).squeeze(-1).double()

    def _outcomes(self, row: Tensor, batch: Batch, first: int) -> Tensor:
        chain = self._chain(batch)
        if chain is None:
            return super()._outcomes(row, batch, first)
        return _outcomes_of_outputs(chain, self._outputs(chain, row[None], batch[0].flatten(1)), batch[1], self._module)

    def _mixed_outcomes(self, models: Tensor, weights: Tensor, batch: Batch, first: int) -> Tensor:
        chain = self._chain(batch)
        if chain is None or not self._is_forward:
            return super()._mixed_outcomes(models, weights, batch, first)
        outputs = mix_outputs_of(self._module, self._outputs(chain, models, batch[0].flatten(1)), weights)
        return _outcomes_of_outputs(chain, outputs[None], batch[1], self._module)

    def _outputs(self, chain: Chain, models: Tensor, inputs: Tensor) -> Tensor:
        """Computes the outputs `[K, n, outputs]` of all models on all examples."""
        tensors = self._tensors(models)
        first = chain.layers[0]
        if chain.parts[0] is not first or len(models) == 1:
            return run_forward(chain.parts, tensors, inputs.expand(len(models), -1, -1), None, Arithmetic())[0]
        weights = tensors[first.weight].flatten(0, 1)
        hidden = (inputs @ weights.T).view(len(inputs), len(models), first.outputs).transpose(0, 1)
        if first.bias is not None:
            hidden = hidden + tensors[first.bias]
        return run_forward(chain.parts[1:], tensors, hidden, None, Arithmetic())[0]

    def _tensors(self, models: Tensor) -> Mapping[str, Tensor]:
        found = {name: tensor.expand(len(models), -1, -1) for name, tensor in self._fixed.items()}
        for slot in self._layout.slots:
            piece = models[:, slot.start : slot.stop]
            found[slot.name] = piece.unflatten(1, slot.shape) if len(slot.shape) == 2 else piece.unsqueeze(1)
        return found

    def _chain(self, batch: Batch) -> Chain | None:
        """Returns the chain from which the module's outcomes can be computed; None if there is none."""
        if self._found is None:
            batch = batch[0][:_CHECKED].float().cpu(), batch[1][:_CHECKED].cpu()
            self._found = (_find_scored_chain(self._template, self._layout, batch),)
            if (chain := self._found[0]) is not None:
                trained = {slot.name for slot in self._layout.slots}
                tensors = tensors_of(self._template, chain.parts).items()
                self._is_forward = _is_forward(chain, self._template, batch)
                self._fixed = {n: t.to(self._device, self._dtype) for n, t in tensors if n not in trained}
        return self._found[0]


def _find_scored_chain(module: LightningModule, layout: ParameterLayout, batch: Batch) -> Chain | None:
    """Returns the chain of a module if the module's outcomes equal those of the chain, else None."""
    try:
        chain = recognise_chain(module, layout, batch)
    except NotAChainError:
        return None
    if len(per_example(scores_of(module))) != 1:
        return None
    exact = copy.deepcopy(module).double().eval()
    for inputs, labels in trials(batch, chain):
        outputs, _ = run_forward(
            chain.parts, tensors_of(exact, chain.parts), inputs.flatten(1)[None], None, Arithmetic()
        )
        try:
            expected = outcomes_of(exact, (inputs, labels))
        except Exception:  # a user's module may raise anything: the generic scorer raises it again
            return None
        if not is_close(_outcomes_of_outputs(chain, outputs, labels, exact), expected):
            return None
    return chain


def _is_forward(chain: Chain, module: LightningModule, batch: Batch) -> bool:
    """Returns whether the module's `forward` returns the outputs of this chain."""
    exact = copy.deepcopy(module).double().eval()
    for inputs, _ in trials(batch, chain):
        tensors = tensors_of(exact, chain.parts)
        outputs, _ = run_forward(chain.parts, tensors, inputs.flatten(1)[None], None, Arithmetic())
        try:
            returned = exact(inputs).reshape(outputs.shape)
        except Exception:  # a user's module may raise anything: the generic scorer raises it again
            return False
        if not is_close(outputs, returned):
            return False
    return True


def _outcomes_of_outputs(chain: Chain, outputs: Tensor, labels: Tensor, module: LightningModule) -> Tensor:
    """Computes the result of `outcomes_of` from one model's outputs `[1, n, outputs]`."""
    scores = scores_of(module)
    (score,) = per_example(scores)
    values = outputs[0].argmax(-1) == labels if (score,) == CLASSIFIER else None
    targets = targets_of(chain.loss, labels, outputs.dtype)[None]
    if values is None:
        values = (outputs - targets).abs()[0].mean(-1)
    losses = compute_losses(chain.loss, outputs, targets)[0, :, 0].double()
    worst = 0.0 if values.dtype == torch.bool else nan if score.worst is None else score.worst
    rows = torch.stack([losses, values.double().where(losses.isfinite(), worst), torch.ones_like(losses)])
    return rows if len(scores) == 1 else torch.cat([rows, outputs[0].T.double()])
