"""The papers' recurrent nets for tweets: those of FlexCFL (Duan et al., TPDS 2022) and FedProx (Li et al., MLSys 2020).

They take vectors `[n, words, width]` (fixed embeddings), or token ids `[n, words]`, which a trained embedding layer
converts to vectors. Numbers of parameters are for the papers' fixed vectors of width 300.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from lit_cfl.errors import InputError
from lit_cfl.nets.base import Net, glorot, sizes

Recurrent = nn.GRU | nn.LSTM


class _Bidirectional(Net):
    """Two bidirectional recurrent layers and two fully connected layers.

    Args:
        input_shape: Number of words, and the width of a vector if the data have vectors; None = the data's.
        num_labels: Number of outputs; None = the data's.
        vocabulary: Number of token ids; None = the data's.
        embedding_width: Width of the trained embedding of token ids, 1 or more.
    """

    cell: ClassVar[type[Recurrent]]

    def __init__(
        self,
        input_shape: Sequence[int] | None = None,
        num_labels: int | None = None,
        vocabulary: int | None = None,
        embedding_width: int = 300,
    ) -> None:
        super().__init__()
        _, labels = sizes(input_shape, num_labels)
        self.embedding, width = _embedding(input_shape, vocabulary, embedding_width)
        self.rnn1 = _initialise(self.cell(width, 64, batch_first=True, bidirectional=True))
        self.rnn2 = _initialise(self.cell(128, 32, batch_first=True, bidirectional=True))
        self.fc1 = glorot(nn.Linear(64, 64))
        self.dropout = nn.Dropout(0.5)
        self.fc2 = glorot(nn.Linear(64, labels))

    def forward(self, inputs: Tensor) -> Tensor:
        sequence, _ = self.rnn1(self.embedding(inputs))
        states, _ = self.rnn2(sequence)
        ends = torch.cat([states[:, -1, :32], states[:, 0, 32:]], 1)  # last state of each direction
        outputs: Tensor = self.fc2(self.dropout(relu(self.fc1(ends))))
        return outputs


class Sent140GRU(_Bidirectional):
    """Two bidirectional GRUs, two fully connected layers (25 x 300 -> 2: 175,938 parameters; FlexCFL's Sent140)."""

    cell = nn.GRU


class Sent140LSTM(_Bidirectional):
    """Two bidirectional LSTMs, two fully connected layers (25 x 300 -> 2: 232,386 parameters; FlexCFL's Sent140)."""

    cell = nn.LSTM


class FedGroupLSTM(Net):
    """Two LSTMs, a linear layer and one logit (25 x 300 -> 2: 243,861 parameters; FedProx's and FedGroup's Sent140).

    The papers train one logit z with sigmoid cross-entropy. The outputs here are (0, z): their cross-entropy is the
    same loss, and the larger one gives the same prediction.

    Args:
        input_shape: Number of words, and the width of a vector if the data have vectors; None = the data's.
        num_labels: Number of labels, which must be 2; None = the data's.
        vocabulary: Number of token ids; None = the data's.
        embedding_width: Width of the trained embedding of token ids, 1 or more.
    """

    def __init__(
        self,
        input_shape: Sequence[int] | None = None,
        num_labels: int | None = None,
        vocabulary: int | None = None,
        embedding_width: int = 300,
    ) -> None:
        super().__init__()
        _, labels = sizes(input_shape, num_labels)
        if labels != 2:
            raise InputError(
                f"FedGroupLSTM has one logit, which is enough for 2 labels, not {labels}; choose Sent140LSTM"
            )
        self.embedding, width = _embedding(input_shape, vocabulary, embedding_width)
        self.rnn1 = _initialise(nn.LSTM(width, 100, batch_first=True))
        self.rnn2 = _initialise(nn.LSTM(100, 100, batch_first=True))
        self.fc1 = glorot(nn.Linear(100, 30))
        self.fc2 = glorot(nn.Linear(30, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        sequence, _ = self.rnn1(self.embedding(inputs))
        states, _ = self.rnn2(sequence)
        logit = self.fc2(self.fc1(states[:, -1]))
        return torch.cat([torch.zeros_like(logit), logit], 1)


def _embedding(
    input_shape: Sequence[int] | None, vocabulary: int | None, embedding_width: int
) -> tuple[nn.Module, int]:
    """Makes the layer that converts inputs to vectors (the identity for vectors), and returns it with their width."""
    shape = list(input_shape or [])
    if len(shape) == 2 and not vocabulary:
        return nn.Identity(), shape[1]
    if len(shape) == 2:
        raise InputError(f"inputs of shape {shape} are vectors already; leave out vocabulary, which is {vocabulary}")
    if len(shape) != 1 or not vocabulary:
        raise InputError(
            f"inputs of shape {shape} with vocabulary {vocabulary} are not text; this net takes token ids [words] with "
            "the size of their vocabulary, or vectors [words, width]"
        )
    if min(vocabulary, embedding_width) < 1:
        raise InputError(f"vocabulary is {vocabulary}, embedding_width is {embedding_width}; give 1 or more for both")
    layer = nn.Embedding(vocabulary, embedding_width, padding_idx=0)
    nn.init.uniform_(layer.weight, -0.05, 0.05)  # as in Keras
    with torch.no_grad():
        layer.weight[0] = 0  # padding, which no gradient ever reaches
    return layer, embedding_width


def _initialise(layer: Recurrent) -> Recurrent:
    """Initialises a layer as Keras does: Glorot-uniform and orthogonal weights, zero biases, 1 for the forget gate.

    The LSTMs of the papers have one bias, PyTorch's have two: the second is frozen at 0, so it is neither trained nor
    sent.
    """
    one_bias = isinstance(layer, nn.LSTM)
    for name, weight in layer.named_parameters():
        if name.startswith("weight_ih"):
            nn.init.xavier_uniform_(weight)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(weight)
        else:
            nn.init.zeros_(weight)
        if one_bias and name.startswith("bias_ih"):
            # bias of 1 for the forget gate, the second of four gates
            nn.init.ones_(weight[layer.hidden_size : 2 * layer.hidden_size])
        if one_bias and name.startswith("bias_hh"):
            weight.requires_grad_(False)
    return layer
