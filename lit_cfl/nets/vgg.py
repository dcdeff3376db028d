"""VGG16 (Simonyan and Zisserman, ICLR 2015), the net of LayerCFL's experiments.

LayerCFL does not state the number of parameters. The width of the head, which the paper leaves open, is an option.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from lit_cfl.errors import InputError
from lit_cfl.nets.base import Net, he, image_sizes

_BLOCKS = (2, 2, 3, 3, 3)  # convolutions before each pooling
_TIMES = (1, 2, 4, 8, 8)  # channels of each block, in multiples of `width`


class VGG16(Net):
    """Thirteen convolutions, up to three linear layers (3 x 32 x 32 -> 10: 33,638,218 parameters; LayerCFL's images).

    Sides are halved five times, so images need 32 x 32: pad MNIST and EMNIST by 2. Layers are `conv1` to `conv13`,
    `fc1`, `fc2`, ..., and with `batch_norm` also `bn1` to `bn13`.

    Args:
        hidden: Widths of the fully connected layers before the last one: `[4096, 4096]` (the original net), `[512,
            512]`, or `[]` for a head of one layer.
        dropout: Dropout after each hidden fully connected layer, 0 to 1; 0.5 in the original.
        batch_norm: BatchNorm after each convolution.
        width: Channels of the first block, 1 or more; 64 in the original. The other blocks have 2, 4, 8 and 8 times as
            many.
        input_shape: Channels, height, width; None = the data's.
        num_labels: Number of outputs; None = the data's.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (4096, 4096),
        dropout: float = 0.5,
        batch_norm: bool = False,
        width: int = 64,
        input_shape: Sequence[int] | None = None,
        num_labels: int | None = None,
    ) -> None:
        super().__init__()
        if min([width, *hidden]) < 1:
            raise InputError(f"width is {width}, hidden {list(hidden)}; give widths of 1 or more")
        if not 0 <= dropout <= 1:
            raise InputError(f"dropout is {dropout}; give 0 to 1")
        channels, pixels, labels = image_sizes(input_shape, num_labels, border=0, halvings=len(_BLOCKS))
        widths = [width * times for times, length in zip(_TIMES, _BLOCKS, strict=True) for _ in range(length)]
        for number, (before, after) in enumerate(pairwise([channels, *widths]), 1):
            self.add_module(f"conv{number}", he(nn.Conv2d(before, after, 3, padding=1)))
            self.add_module(f"bn{number}", nn.BatchNorm2d(after) if batch_norm else nn.Identity())
        for number, (before, after) in enumerate(pairwise([widths[-1] * pixels, *hidden, labels]), 1):
            self.add_module(f"fc{number}", he(nn.Linear(before, after)))
        for number in range(1, len(hidden) + 1):
            self.add_module(f"dropout{number}", nn.Dropout(dropout))
        self._last = len(hidden) + 1

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, ends = inputs, set(accumulate(_BLOCKS))
        for number in range(1, sum(_BLOCKS) + 1):
            outputs = relu(self._through(f"bn{number}", self._through(f"conv{number}", outputs)))
            outputs = max_pool2d(outputs, 2) if number in ends else outputs
        outputs = outputs.flatten(1)
        for number in range(1, self._last):
            outputs = self._through(f"dropout{number}", relu(self._through(f"fc{number}", outputs)))
        return self._through(f"fc{self._last}", outputs)

    def _through(self, name: str, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.get_submodule(name)(inputs)
        return outputs
