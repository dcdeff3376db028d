"""Classification with cross-entropy: the default LightningModule of a client."""

from collections.abc import Callable, Iterable
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from lit_cfl.errors import InputError
from lit_cfl.nets.base import Net
from lit_cfl.parameters import ParameterLayout
from lit_cfl.scores import ACCURACY, per_example, scores_of
from lit_cfl.tasks.base import Batch, Task, mixed_logits, most_likely
from lit_cfl.tasks.named_scores import ScoreNames, named_scores

_Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
_WithKernel = nn.Linear | _Convolution


class Classification(Task):
    """Task of predicting one of several labels.

    Args:
        net: Net from inputs `[n, ...]` to one output per label `[n, labels]`. Nets of Lit-CFL go by their short names.
        optimizer: Any `torch.optim` class, with its options.
        kernel_l2: Factor of a penalty in the training loss, the sum of squares of all kernels, without biases; reported
            losses leave it out. 0 or more; FlexCFL's published code has 0.001 in MCLR, MLP and FEMNISTCNN.
        kernel_l2_layers: Layers whose kernels are penalised, as patterns; `fc*` in FlexCFL's FEMNISTCNN.
        starting_weights: Initial weights: those of the net, or `pytorch`: fully connected and convolutional layers
            start with PyTorch's, as LeNet and the MLP do in StoCFL's published code.
        scores: Scores, the main one first: `accuracy`, `f1` (macro), `f1_<class>`, `auroc` (each class against the
            rest), `balanced_accuracy`, `calibration_error` (15 bins), or your own by its path, such as
            `my_scores.kappa`: a function of all outputs `[n, labels]` and labels `[n]` of a client. None = accuracy.
    """

    def __init__(
        self,
        net: Net | nn.Module,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = torch.optim.SGD,
        kernel_l2: float = 0.0,
        kernel_l2_layers: str | list[str] = "*",
        starting_weights: Literal["net", "pytorch"] = "net",
        scores: ScoreNames | None = None,
    ) -> None:
        super().__init__(net, optimizer)
        if scores is not None:
            self.scores = named_scores(scores)
        if starting_weights == "pytorch":
            for layer in net.modules():
                if isinstance(layer, _WithKernel):
                    layer.reset_parameters()
        if not 0 <= kernel_l2 < float("inf"):
            raise InputError(f"kernel_l2 is {kernel_l2}; give 0 or more")
        self.kernel_l2 = kernel_l2
        self.penalised_layers = _kernels(net, kernel_l2_layers) if kernel_l2 else []

    def losses(self, batch: Batch) -> Tensor:
        """Computes the cross-entropy of each example `[n]`, plus the penalty if there is one."""
        losses = cross_entropy(self(batch[0]), batch[1], reduction="none")
        return losses + self.penalty() if self.penalised_layers else losses

    def penalty(self) -> Tensor:
        """Computes kernel_l2 times the sum of squares of the kernels, 0-d."""
        weights = [cast(Tensor, self.net.get_submodule(layer).weight) for layer in self.penalised_layers]
        if not weights:
            return torch.zeros(())
        return self.kernel_l2 * torch.stack([weight.square().sum() for weight in weights]).sum()

    def outcomes(self, batch: Batch) -> tuple[Tensor, ...]:
        """Computes the cross-entropy `[n]`, and whether the largest output is the label `[n]`, in one pass.

        The second is left out if accuracy is not among the scores; the outputs follow if a score needs sets.
        """
        outputs, scores = self(batch[0]), scores_of(self)
        of_sets = len(per_example(scores)) < len(scores)
        right = [outputs.argmax(-1) == batch[1]] if ACCURACY in scores or not of_sets else []
        return cross_entropy(outputs, batch[1], reduction="none"), *right, *([outputs] if of_sets else [])

    def mix_outputs(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Mixes the probabilities that the models predict; see `mixed_logits`."""
        return mixed_logits(outputs, weights)

    def predict_step(self, batch: Batch | Tensor, batch_idx: int = 0) -> Tensor:
        """Predicts labels, int64 `[n]`; -1 if an output is nan."""
        return most_likely(self(batch if isinstance(batch, Tensor) else batch[0]))


def _kernels(net: nn.Module, patterns: str | list[str]) -> list[str]:
    """Lists the fully connected and convolutional layers whose trained kernels match the patterns."""
    layout = ParameterLayout.of(net)
    columns = layout.columns(patterns)
    chosen = torch.zeros(layout.num_columns, dtype=torch.bool).index_fill_(0, columns, True)
    trained = {id(net.get_parameter(slot.name)) for slot in layout.slots if not slot.is_buffer and chosen[slot.start]}
    found: dict[int, str] = {}  # by the kernel's first parameter: layers that share a kernel count once
    for name, layer in net.named_modules():
        if isinstance(layer, _WithKernel):
            parts = [
                part for key, part in layer.named_parameters() if key.startswith(("weight", "parametrizations.weight."))
            ]
            if any(id(part) in trained for part in parts):
                found.setdefault(id(parts[0]), name)
    if not found:
        raise InputError(
            f"kernel_l2_layers {patterns} match no fully connected or convolutional layer; the layers are: "
            f"{', '.join(layout.layers)}"
        )
    return list(found.values())
