"""A fully connected net with one hidden layer."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import relu

from lit_cfl.errors import InputError
from lit_cfl.nets.base import Net, glorot, sizes


class MLP(Net):
    """Two fully connected layers with ReLU between (784 -> 128 -> 10: 101,770 parameters).

    Args:
        hidden: Width of the hidden layer, 1 or more: 128 for the papers' MNIST, 512 for FEMNIST, 2048 for StoCFL.
        input_shape: Shape of one input, flattened; None = the data's.
        num_labels: Number of outputs; None = the data's.
        batch_norm: BatchNorm (`bn1`) between the first layer and its ReLU.
    """

    def __init__(
        self,
        hidden: int = 128,
        input_shape: Sequence[int] | None = None,
        num_labels: int | None = None,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(hidden, int):
            raise InputError(
                f"MLP.hidden is {hidden!r}; give the width of the hidden layer, 1 or more, before the input's shape "
                "and the number of labels, as in MLP(128, [1, 28, 28], 10)"
            )
        if hidden < 1:
            raise InputError(f"MLP.hidden is {hidden}; it must be 1 or more")
        features, labels = sizes(input_shape, num_labels)
        self.fc1 = glorot(nn.Linear(features, hidden))
        self.bn1 = nn.BatchNorm1d(hidden) if batch_norm else None
        self.fc2 = glorot(nn.Linear(hidden, labels))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.fc1(inputs.flatten(1))
        hidden = hidden if self.bn1 is None else self.bn1(hidden)
        outputs: Tensor = self.fc2(relu(hidden))
        return outputs
