"""Next-token prediction: the LightningModule of clients with sequences of token ids."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from lit_cfl.nets.base import Net
from lit_cfl.scores import Score
from lit_cfl.tasks.base import Batch, Task, mixed_logits, most_likely


class NextToken(Task):
    """Task of predicting each token of a sequence from the previous tokens.

    A sequence's loss is the mean cross-entropy of all its tokens except the first. The scores are `perplexity` and
    `token_accuracy` over all tokens: a sequence is weighted by the number of its predicted tokens. Labels of the data
    are ignored.

    Args:
        net: Net from token ids `[n, length - 1]` to logits of the next token `[n, length - 1, vocabulary]`; an output
            must not depend on later inputs.
        optimizer: Any `torch.optim` class, with its options.
        padding: Id that pads short sequences and is never predicted; None = none.
    """

    scores = (
        Score("perplexity", higher_is_better=False, transform="exp"),
        Score("token_accuracy", worst=0.0, is_share=True),
    )
    labels = ("classes", "numbers", "none")
    takes_tokens = True  # also True for a net that looks up tokens without an embedding layer

    def __init__(
        self,
        net: Net | nn.Module,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = torch.optim.SGD,
        padding: int | None = 0,
    ) -> None:
        super().__init__(net, optimizer)
        self.padding = padding

    def losses(self, batch: Batch) -> Tensor:
        """Computes each sequence's mean cross-entropy over its tokens, `[n]`; 0 if it has no tokens to predict."""
        _, losses, counted = self._by_token(batch[0])
        return _mean(losses, counted)

    def outcomes(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Computes losses `[n]`; then loss and accuracy of each sequence, both weighted by its number of tokens."""
        logits, losses, counted = self._by_token(batch[0])
        loss, tokens = _mean(losses.double(), counted), counted.sum(1)
        right = (most_likely(logits) == batch[0][:, 1:]).double()
        return loss, (loss, tokens), (_mean(right, counted), tokens)

    def mix_outputs(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Mixes the probabilities that the models predict for each token; see `mixed_logits`."""
        return mixed_logits(outputs, weights)

    def predict_step(self, batch: Batch | Tensor, batch_idx: int = 0) -> Tensor:
        """Predicts the token that follows each token except the last, int64 `[n, length - 1]`; -1 if logits are nan."""
        tokens = batch if isinstance(batch, Tensor) else batch[0]
        return most_likely(self(tokens[:, :-1]))

    def _by_token(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Computes logits `[n, t, vocabulary]`, and each target token's loss `[n, t]` and whether it counts."""
        logits, targets = self(tokens[:, :-1]), tokens[:, 1:].long()
        if logits.shape[:-1] != targets.shape:
            raise ValueError(
                f"the net returns shape {tuple(logits.shape)} for tokens of shape {tuple(targets.shape)}; return "
                "logits for each token"
            )
        losses = cross_entropy(logits.movedim(-1, 1), targets, reduction="none")
        counted = torch.ones_like(targets, dtype=torch.bool) if self.padding is None else targets != self.padding
        return logits, losses, counted


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """Computes each sequence's mean over its counted tokens, `[n]`."""
    return values.where(counted, 0).sum(1) / counted.sum(1).clamp(min=1)
