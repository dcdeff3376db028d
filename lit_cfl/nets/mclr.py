"""Multinomial logistic regression: one fully connected layer."""

from collections.abc import Sequence

from torch import Tensor, nn

from lit_cfl.nets.base import Net, glorot, sizes


class MCLR(Net):
    """Multi-class logistic regression, the papers' convex model (784 -> 10: 7,850 parameters).

    Args:
        input_shape: Shape of one input, flattened; None = the data's.
        num_labels: Number of outputs; None = the data's.
    """

    def __init__(self, input_shape: Sequence[int] | None = None, num_labels: int | None = None) -> None:
        super().__init__()
        self.fc1 = glorot(nn.Linear(*sizes(input_shape, num_labels)))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.fc1(inputs.flatten(1))
        return outputs
