"""The papers' convolutional nets for small images.

They are from FlexCFL (Duan et al., TPDS 2022), StoCFL (Zeng et al., 2022) and CFL (Sattler et al., 2020). Numbers of
parameters are for the papers' data: grey images of 28 x 28, and for `LeNet` colour images of 32 x 32. Other sizes work,
too, with another first fully connected layer.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad, relu

from lit_cfl.nets.base import Net, glorot, image_sizes


class Conv2dPooled(nn.Conv2d):
    """A convolution, then ReLU, then 2 x 2 max pooling."""

    def forward(self, input: Tensor) -> Tensor:
        # pooling first gives the same numbers and gradients, with ReLU on a quarter of the values
        return relu(max_pool2d(super().forward(input), 2))


class MNISTCNN(Net):
    """Two convolutions and one fully connected layer (28 x 28 -> 10: 50,186 parameters; FlexCFL's MNIST).

    Args:
        input_shape: Channels, height, width; None = the data's.
        num_labels: Number of outputs; None = the data's.
    """

    def __init__(self, input_shape: Sequence[int] | None = None, num_labels: int | None = None) -> None:
        super().__init__()
        channels, pixels, labels = image_sizes(input_shape, num_labels, border=0, halvings=2)
        self.conv1 = glorot(Conv2dPooled(channels, 32, 3, padding=1))
        self.conv2 = glorot(Conv2dPooled(32, 64, 3, padding=1))
        self.dropout = nn.Dropout(0.5)
        self.fc1 = glorot(nn.Linear(64 * pixels, labels))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.conv2(self.conv1(inputs))
        outputs: Tensor = self.fc1(self.dropout(hidden.flatten(1)))
        return outputs


class FEMNISTCNN(Net):
    """Six convolutions, two of them with stride 2 (28 x 28 -> 10: 325,578 parameters; FlexCFL's FEMNIST).

    Args:
        input_shape: Channels, height, width; None = the data's.
        num_labels: Number of outputs; None = the data's.
    """

    def __init__(self, input_shape: Sequence[int] | None = None, num_labels: int | None = None) -> None:
        super().__init__()
        channels, pixels, labels = image_sizes(input_shape, num_labels, border=4, halvings=2)
        self.conv1 = glorot(nn.Conv2d(channels, 32, 3))
        self.conv2 = glorot(nn.Conv2d(32, 32, 3))
        self.conv3 = glorot(nn.Conv2d(32, 32, 5, stride=2))
        self.dropout1 = nn.Dropout(0.4)
        self.conv4 = glorot(nn.Conv2d(32, 64, 3))
        self.conv5 = glorot(nn.Conv2d(64, 64, 3))
        self.conv6 = glorot(nn.Conv2d(64, 64, 5, stride=2))
        self.dropout2 = nn.Dropout(0.4)
        self.fc1 = glorot(nn.Linear(64 * pixels, 128))
        self.dropout3 = nn.Dropout(0.4)
        self.fc2 = glorot(nn.Linear(128, labels))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = relu(self.conv2(relu(self.conv1(inputs))))
        hidden = self.dropout1(relu(self.conv3(_pad(hidden))))
        hidden = relu(self.conv5(relu(self.conv4(hidden))))
        hidden = self.dropout2(relu(self.conv6(_pad(hidden))))
        outputs: Tensor = self.fc2(self.dropout3(relu(self.fc1(hidden.flatten(1)))))
        return outputs


class FashionCNN(Net):
    """Two wide convolutions, two fully connected layers (28 x 28 -> 10: 3,274,634 parameters; FlexCFL's FashionMNIST).

    Args:
        input_shape: Channels, height, width; None = the data's.
        num_labels: Number of outputs; None = the data's.
    """

    def __init__(self, input_shape: Sequence[int] | None = None, num_labels: int | None = None) -> None:
        super().__init__()
        channels, pixels, labels = image_sizes(input_shape, num_labels, border=0, halvings=2)
        self.conv1 = glorot(Conv2dPooled(channels, 32, 5, padding=2))
        self.conv2 = glorot(Conv2dPooled(32, 64, 5, padding=2))
        self.fc1 = glorot(nn.Linear(64 * pixels, 1024))
        self.fc2 = glorot(nn.Linear(1024, labels))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.conv2(self.conv1(inputs))
        outputs: Tensor = self.fc2(relu(self.fc1(hidden.flatten(1))))
        return outputs


class LeNet(Net):
    """LeNet-5 with ReLU (3 x 32 x 32 -> 10: 62,006 parameters; StoCFL's CIFAR-10).

    Args:
        input_shape: Channels, height, width; None = the data's.
        num_labels: Number of outputs; None = the data's.
    """

    def __init__(self, input_shape: Sequence[int] | None = None, num_labels: int | None = None) -> None:
        super().__init__()
        channels, pixels, labels = image_sizes(input_shape, num_labels, border=4, halvings=2)
        self.conv1 = glorot(Conv2dPooled(channels, 6, 5))
        self.conv2 = glorot(Conv2dPooled(6, 16, 5))
        self.fc1 = glorot(nn.Linear(16 * pixels, 120))
        self.fc2 = glorot(nn.Linear(120, 84))
        self.fc3 = glorot(nn.Linear(84, labels))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.conv2(self.conv1(inputs))
        outputs: Tensor = self.fc3(relu(self.fc2(relu(self.fc1(hidden.flatten(1))))))
        return outputs


class StoCFLCNN(Net):
    """Two convolutions, one pooling, two dropouts (28 x 28 -> 62: 1,206,590 parameters; StoCFL's FEMNIST).

    Args:
        input_shape: Channels, height, width; None = the data's.
        num_labels: Number of outputs; None = the data's.
    """

    def __init__(self, input_shape: Sequence[int] | None = None, num_labels: int | None = None) -> None:
        super().__init__()
        channels, pixels, labels = image_sizes(input_shape, num_labels, border=4, halvings=1)
        self.conv1 = glorot(nn.Conv2d(channels, 32, 3))
        self.conv2 = glorot(Conv2dPooled(32, 64, 3))
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = glorot(nn.Linear(64 * pixels, 128))
        self.dropout2 = nn.Dropout(0.5)
        self.fc2 = glorot(nn.Linear(128, labels))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout1(self.conv2(relu(self.conv1(inputs))))
        outputs: Tensor = self.fc2(self.dropout2(relu(self.fc1(hidden.flatten(1)))))
        return outputs


class SattlerCNN(Net):
    """Two convolutions and one fully connected layer (28 x 28 -> 62: 18,506 parameters; Sattler's CFL).

    Args:
        input_shape: Channels, height, width; None = the data's.
        num_labels: Number of outputs; None = the data's.
    """

    def __init__(self, input_shape: Sequence[int] | None = None, num_labels: int | None = None) -> None:
        super().__init__()
        channels, pixels, labels = image_sizes(input_shape, num_labels, border=4, halvings=2)
        self.conv1 = glorot(Conv2dPooled(channels, 6, 5))
        self.conv2 = glorot(Conv2dPooled(6, 16, 5))
        self.fc1 = glorot(nn.Linear(16 * pixels, labels))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.conv2(self.conv1(inputs))
        outputs: Tensor = self.fc1(hidden.flatten(1))
        return outputs


def _pad(inputs: Tensor) -> Tensor:
    """Pads as TensorFlow's "same" does for a 5 x 5 kernel with stride 2 on even sizes: one before, two after."""
    return pad(inputs, (1, 2, 1, 2))
