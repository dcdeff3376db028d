"""Random augmentation of training examples, drawn from a key for each example, so that it is the same in every engine.

A function changes a mini-batch, given a key for each example. The changed example depends only on its key, not on the
other examples, so that clients may train one by one or together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_cfl.errors import InputError
from lit_cfl.keyed_random import draw_keyed_uniform
from lit_cfl.options import import_object

Batch = tuple[Tensor, Tensor]  # inputs [n, ...], labels
if TYPE_CHECKING:  # a function that maps a mini-batch and keys, int64 [n], to the changed mini-batch
    AugmentFunction = Callable[[Batch, Tensor], Batch]
else:
    AugmentFunction = str  # in a configuration: the function's path


@dataclass(frozen=True)
class Augment:
    """Random crops and flips of images.

    Args:
        crop: Pixels of zeros added on each side; a window of the image's size is then cut at random. 0 = no crop.
        flip: Mirror each image from left to right with a probability of 1/2.
    """

    crop: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise InputError(f"data.augment.crop is {self.crop}; give 0 or more pixels")
        if not self.crop and not self.flip:
            raise InputError("data.augment changes nothing; give crop: 4, flip: true, or leave it out")

    def __call__(self, batch: Batch, keys: Tensor) -> Batch:
        """Augments images `[n, channels, height, width]` by their keys, int64 `[n]`; labels stay unchanged."""
        images, labels = batch
        down, right, mirror = draw_keyed_uniform(keys, 3).unbind(1)
        rows, inside = self._window(down, images.shape[2])
        columns, beside = self._window(right, images.shape[3])
        if self.flip:
            turned = (mirror < 0.5)[:, None]
            columns, beside = columns.flip(1).where(turned, columns), beside.flip(1).where(turned, beside)
        image = torch.arange(len(images), device=images.device)[:, None, None, None]
        channel = torch.arange(images.shape[1], device=images.device)[:, None, None]
        found = images[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
        shown = inside[:, None, :, None] & beside[:, None, None, :]
        return found.where(shown, 0), labels

    def _window(self, draws: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Returns the source index of each position of a window, int64 `[n, size]`, and whether it is in the image."""
        first = (draws * (2 * self.crop + 1)).long() - self.crop
        places = first[:, None] + torch.arange(size, device=draws.device)
        return places.clamp(0, size - 1), (places >= 0) & (places < size)

    def require_images(self, shape: Sequence[int], are_tokens: bool) -> None:
        """Raises InputError unless inputs are images whose sides are longer than `crop`.

        Args:
            shape: Shape of one input.
            are_tokens: True if inputs are token ids.
        """
        if len(shape) != 3 or are_tokens:
            raise InputError(
                f"data.augment crops and flips images [channels, height, width], but inputs have shape {tuple(shape)}; "
                "leave it out, or give a function of your own"
            )
        if self.crop >= min(shape[1:]):
            raise InputError(
                f"data.augment.crop is {self.crop}, but images have {shape[1]} x {shape[2]} pixels; give less than "
                f"{min(shape[1:])}"
            )


def augment_function(given: Augment | AugmentFunction | str | None) -> AugmentFunction | None:
    """Returns the function selected by the option `data.augment`.

    Raises:
        InputError: The option does not name a function, or the function cannot be imported.
    """
    found = import_object("data.augment", given) if isinstance(given, str) and "." in given else given
    if found is not None and not callable(found):
        raise InputError(
            f"data.augment is {found!r}; give {{crop: 4, flip: true}}, or a function of a batch and its keys, such as "
            "my_module.function"
        )
    return found


def require_augmentation(augment: AugmentFunction, batch: Batch, keys: Tensor) -> None:
    """Checks an augmentation function on some examples.

    Args:
        augment: Function to check.
        batch: Some examples; two or more to see whether they influence each other.
        keys: One key per example, int64 `[n]`.

    Raises:
        InputError: The function does not return a batch of the same form, or a changed example depends on something
            other than the example and its key.
    """

    def changed(part: slice) -> Batch:
        found = augment((batch[0][part].clone(), batch[1][part].clone()), keys[part])
        if not isinstance(found, tuple) or [_form(tensor) for tensor in found] != [_form(t[part]) for t in batch]:
            held = [_form(t) for t in found] if isinstance(found, tuple) else type(found).__name__
            raise InputError(
                f"data.augment returned {held} for a batch of {[_form(t[part]) for t in batch]}; return the inputs "
                "and labels with the same shapes and dtypes"
            )
        return found

    whole, half = changed(slice(None)), max(1, len(keys) // 2)
    for parts in ([slice(None)], [slice(0, half), slice(half, None)][: len(keys)]):
        again = [torch.cat(tensors) for tensors in zip(*map(changed, parts), strict=True)]
        if not all(torch.equal(mine, first) for mine, first in zip(again, whole, strict=True)):
            raise InputError(
                "data.augment changes an example differently when called again, or together with other examples; draw "
                "the random numbers of an example from its key (lit_cfl.keyed_random), and read no other example"
            )


def _form(tensor: object) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
