"""The pool of examples, each stored once, and the views under which clients see them.

An index names a *view* of an example: `view * len(examples) + example`. So several clients can have one image under
several rotations without a copy, and the rotation moves with the index when clients swap their data.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor

from lit_cfl.data.augment import Augment, AugmentFunction
from lit_cfl.data.image_transforms import blur_images, rotate_images
from lit_cfl.devices import send
from lit_cfl.errors import InputError
from lit_cfl.keyed_random import draw_keyed_normal
from lit_cfl.notebook import short_repr

LabelKind = Literal["classes", "multi-label", "numbers", "none"]


@dataclass(frozen=True)
class View:
    """The transformation under which a client sees an example.

    Args:
        quarter_turns: Counter-clockwise rotations of the image by 90 degrees, 0 to 3.
        label_map: New label for each label, or None for unchanged labels.
        noise: Standard deviation of the Gaussian noise on the input, in units of the scaled input; an example always
            has the same noise.
        angle: Further counter-clockwise rotation in degrees; bilinear, 0 outside of the image. `then` makes quarter
            turns of multiples of 90.
        blur: Standard deviation of a Gaussian blur, in pixels.
        brightness: Factor on the scaled input, 0 or more.
        colour: Factor on each channel of the scaled image, 0 or more; empty = 1.

    An image is rotated, then blurred, then changed in brightness and colour; noise is added last.

    Raises:
        InputError: a number is missing, infinite, or too small.
    """

    quarter_turns: int = 0
    label_map: tuple[int, ...] | None = None
    noise: float = 0.0
    angle: float = 0.0
    blur: float = 0.0
    brightness: float = 1.0
    colour: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.quarter_turns not in range(4):
            raise InputError(f"quarter_turns is {self.quarter_turns!r}; give 0 to 3")
        if not all(isinstance(label, Integral) for label in self.label_map or ()):
            raise InputError(f"a label_map is {self.label_map}; give whole numbers")
        factors = [("a factor of a colour", factor) for factor in self.colour]
        numbers: list[tuple[str, Any]] = [("a rotation", self.angle), ("a noise level", self.noise), *factors]
        for what, value in [*numbers, ("a blur", self.blur), ("a brightness", self.brightness)]:
            least, wanted = (-inf, "a number") if what == "a rotation" else (0, "0 or more")
            if not (isinstance(value, Real) and isfinite(value)) or value < least:
                raise InputError(f"{what} is {value!r}; give {wanted}")

    def then(self, other: "View") -> "View":
        """Combines this view with a second view, which is applied after it."""
        maps = self.label_map, other.label_map
        both = tuple(maps[1][label] for label in maps[0]) if maps[0] and maps[1] else maps[0] or maps[1]
        both = None if both and list(both) == list(range(len(both))) else both
        turns, angle = divmod(90 * (self.quarter_turns + other.quarter_turns) + self.angle + other.angle, 90)
        colours = self.colour or (1.0,) * len(other.colour), other.colour or (1.0,) * len(self.colour)
        return View(
            int(turns) % 4,
            both,
            (self.noise**2 + other.noise**2) ** 0.5,
            angle,
            (self.blur**2 + other.blur**2) ** 0.5,
            self.brightness * other.brightness,
            tuple(one * more for one, more in zip(*colours, strict=True)),
        )

    @property
    def of_images(self) -> bool:
        """Whether the view applies to images only."""
        return bool(self.quarter_turns or self.angle or self.blur or self.colour)


_PLAIN = View()  # changes nothing


@dataclass(frozen=True, eq=False)
class Decoding:
    """Conversion of stored inputs to floats: `(input - offset) * scale`.

    Args:
        scale, offset: See `Examples`.
        dtype: Dtype of the floats.
    """

    scale: float | Tensor
    offset: float | Tensor
    dtype: torch.dtype

    @property
    def is_uniform(self) -> bool:
        """Whether all positions of an input have the same scale and offset."""
        return not (isinstance(self.scale, Tensor) or isinstance(self.offset, Tensor))

    def __call__(self, inputs: Tensor, out: Tensor | None = None) -> Tensor:
        """Converts inputs `[n, ...]` to floats, into `out` if given; may overwrite inputs that are floats already."""
        inputs = inputs.to(self.dtype) if out is None else out.copy_(inputs)
        inputs = inputs.sub_(self.offset) if isinstance(self.offset, Tensor) or self.offset else inputs
        return inputs.mul_(self.scale) if isinstance(self.scale, Tensor) or self.scale != 1.0 else inputs


_LONG_RUN = 32  # minimum mean number of consecutive indices under one view, above which slices are faster
_Seen = list[tuple[View, Tensor | slice]]  # each view with the positions of the indices that use it


@dataclass(frozen=True, eq=False)
class Examples:
    """The pool of examples, each stored once.

    Batches contain `(input - offset) * scale`.

    Args:
        inputs: Inputs `[N, ...]`, floats, uint8, int32 or int64; images `[N, channels, height, width]`. Batches contain
            integers as floats, but token ids unchanged.
        labels: Classes, int64 `[N]`, 0 to `num_labels - 1`; or, if `num_labels` is 0, numbers, floats `[N]`; or several
            labels per example, bool or floats of 0 to 1 `[N, L]`; or int64 zeros `[N]` if there are no labels.
        num_labels: Size of the label space.
        scale: Factor (1/255 for uint8 images), or one factor for each position of an input.
        offset: Offset to subtract first, in the input's own units: a number, or one per position of an input.
        views: Views that indices may refer to.
        embeddings: Fixed vectors `[vocabulary, width]` that replace the token ids, or None.
        vocabulary: Number of token ids if inputs are tokens, otherwise 0. With 0, int32 or int64 inputs become tokens
            if the net has an embedding (`lit_cfl.engines.check_module`).
        words: Fingerprint of the words behind the token ids; empty = unknown.
        label_names: Names of the labels 0, 1, ... (with several labels per example: of the columns); empty = none.
        augment: Random changes of the examples in local training only; None = none.
        input_names: Names of the columns of a table, `[columns]`, if inputs are its lines; empty = none.
    """

    inputs: Tensor
    labels: Tensor
    num_labels: int
    scale: float | Tensor = 1.0
    views: tuple[View, ...] = (View(),)
    offset: float | Tensor = 0.0
    embeddings: Tensor | None = None
    vocabulary: int = 0
    words: str = ""
    label_names: tuple[str, ...] = ()
    augment: AugmentFunction | None = None
    input_names: tuple[str, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name in ("inputs", "labels"):  # a gradient beyond the examples would join all mini-batches
            if getattr(self, name).requires_grad:
                object.__setattr__(self, name, getattr(self, name).detach())
        several = self.labels.ndim > 1
        if self.num_labels and (several or self.labels.is_floating_point()):
            raise InputError(
                f"labels have dtype {self.labels.dtype} and shape {tuple(self.labels.shape)}, and num_labels is "
                f"{self.num_labels}; give classes as int64 [N], or num_labels=0 for numbers and for several labels"
            )
        if self.label_names and len(self.label_names) != (self.labels.shape[1] if several else self.num_labels):
            raise InputError(
                f"label_names has {len(self.label_names)} names for {self.labels_in_words}; give one for each"
            )
        if isinstance(self.augment, Augment):
            self.augment.require_images(self.input_shape, bool(self.vocabulary))
        for view in self.views:
            self._require_fitting(view)

    def _require_fitting(self, view: View) -> None:
        """Raises InputError if the examples cannot be seen under a view."""
        shape, labels = self.inputs.shape[1:], range(self.num_labels)
        if view.label_map is not None and not (len(view.label_map) == len(labels) and set(view.label_map) <= {*labels}):
            raise InputError(f"a label_map is {view.label_map}; map each of the {len(labels)} labels to one of them")
        if view.of_images and (len(shape) != 3 or self.vocabulary):
            raise InputError(
                f"inputs of shape {tuple(shape)} are not images [channels, height, width]; only images can be rotated, "
                "blurred or coloured"
            )
        if view.colour and len(view.colour) != shape[0]:
            raise InputError(
                f"a colour has {len(view.colour)} factors for images of shape {tuple(shape)}; give one for each channel"
            )
        if view.quarter_turns % 2 and shape[-1] != shape[-2]:
            raise InputError(f"images of {tuple(shape)} are not square; rotate them by 0 and 180 degrees only")
        if (view.brightness != 1 or view.noise) and self.vocabulary and self.embeddings is None:
            raise InputError("token ids have no brightness and no noise; give embeddings, or leave these out")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def label_kind(self) -> LabelKind:
        """The kind of labels: classes, several per example, numbers, or none."""
        if self.labels.ndim > 1:
            return "multi-label"
        if self.num_labels:
            return "classes"
        return "numbers" if self.labels.is_floating_point() else "none"

    @property
    def num_outputs(self) -> int:
        """Number of outputs that a net needs: one per class, label or number; without labels, one per token id."""
        if self.labels.ndim > 1:
            return self.labels.shape[1]
        return {"classes": self.num_labels, "numbers": 1, "none": self.num_tokens}[self.label_kind]

    @property
    def labels_in_words(self) -> str:
        """Describes the labels, for a message."""
        return {
            "classes": f"{self.num_labels} labels",
            "multi-label": f"{self.num_outputs} labels for each example",
            "numbers": "labels that are numbers",
            "none": "no labels",
        }[self.label_kind]

    @cached_property
    def num_tokens(self) -> int:
        """Number of token ids; if not given, the largest input plus 1, or 0 if inputs cannot be token ids."""
        if self.vocabulary or self.inputs.dtype not in (torch.int32, torch.int64) or not self.inputs.numel():
            return self.vocabulary
        low, high = self.inputs.aminmax()
        plain = not isinstance(self.scale, Tensor) and self.scale == 1
        return int(high) + 1 if plain and low >= 0 else 0

    def label_name(self, label: int) -> str:
        """Returns a label for a message: its number, and its name if it has one."""
        name = self.label_names[label] if self.label_names else str(label)
        return str(label) if name == str(label) else f"{label} ({name!r})"

    def require_classes(self, who: str) -> None:
        """Raises InputError unless the labels are classes; the message says that `who` needs them."""
        if self.label_kind == "multi-label":
            raise InputError(
                f"{who} needs one label per example, but these have {self.labels.shape[1]} each; use a partition by "
                "sizes or clients, such as IID, LogNormalSizes or Natural, and skews of inputs, such as Rotations"
            )
        if self.label_kind != "classes":
            held = "are numbers" if self.label_kind == "numbers" else "are missing"
            raise InputError(f"{who} needs classes, but the labels of these data {held}; leave out {who}")

    def require_same_labels(self, other: "Examples", where: str) -> None:
        """Raises InputError if a label name has another number in the other examples, called `where` in the message."""
        numbers = {name: number for number, name in enumerate(self.label_names)}
        for number, name in enumerate(other.label_names):
            if numbers.get(name, number) != number:
                raise InputError(
                    f"the label named {name!r} is {numbers[name]} here and {number} in {where}; use the same numbers "
                    "in both, such as by a ClassLabel with the same names"
                )

    def without_labels(self) -> "Examples":
        """Returns the same inputs without labels: all labels are 0, in every view."""
        views = tuple(replace(view, label_map=None) for view in self.views)
        labels = torch.zeros(len(self), dtype=torch.int64, device=self.labels.device)
        return replace(self, labels=labels, num_labels=0, label_names=(), views=views)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input in a batch, without the batch dimension."""
        shape = tuple(self.inputs.shape[1:])
        return shape if self.embeddings is None else (*shape, self.embeddings.shape[1])

    @property
    def num_bytes(self) -> int:
        """The bytes of inputs, labels and embeddings."""
        return self.inputs.nbytes + self.labels.nbytes + (0 if self.embeddings is None else self.embeddings.nbytes)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the stored inputs, labels, their names, and embeddings, without the views."""
        about = self.inputs.dtype, tuple(self.inputs.shape), self.num_labels, self.label_names, self.input_names
        digest = blake2b(repr(about).encode(), digest_size=16)
        parts = (self.inputs, self.labels, *([] if self.embeddings is None else [self.embeddings]))
        for tensor in parts:
            digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def targets(self, index: Tensor) -> Tensor:
        """Returns the labels at these indices, under their views: `[n]`, or `[n, L]` if an example has several."""
        return self._labels(send(index, self.labels.device), self._find_views(index))

    def _labels(self, index: Tensor, seen: _Seen) -> Tensor:
        labels = self.labels[index % len(self)].clone()
        for view, those in seen:
            if view.label_map is not None:
                labels[those] = send(torch.tensor(view.label_map), labels.device)[labels[those]]
        return labels

    def batch(
        self, index: Tensor, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the inputs `[n, ...]`, as floats of `dtype` or as token ids, and the labels at these indices.

        Labels are `[n]`, classes or numbers; several of each example are floats `[n, L]`.

        Args:
            device: Device of the results; None = the device of the examples.
        """
        inputs, labels = self._gather(index, dtype)
        return (inputs, labels) if device is None else (send(inputs, device), send(labels, device))

    def stored_bytes(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Returns inputs `[n, ...]` as bytes, and labels; None if the inputs, under their views, are not bytes.

        `decoding` converts the bytes to what `batch` returns. Reading bytes takes a quarter of the time.
        """
        seen, varies = self._find_views(index), not self.decoding(dtype).is_uniform
        changed = any(replace(view, quarter_turns=0, label_map=None) != _PLAIN for view, _ in seen)
        rotate_images = any(view.quarter_turns for view, _ in seen)
        if self.inputs.dtype != torch.uint8 or self.embeddings is not None or changed or (rotate_images and varies):
            return None
        inputs = self.inputs.index_select(0, send(index, self.inputs.device) % len(self))
        for view, those in seen:
            if view.quarter_turns:
                inputs[those] = inputs[those].rot90(view.quarter_turns, (-2, -1))
        return inputs, self._targets(index, seen, dtype)

    def decoding(self, dtype: torch.dtype) -> Decoding:
        """Returns the conversion of stored inputs to floats of this dtype."""
        return Decoding(self.scale, self.offset, dtype)

    def _gather(self, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        seen = self._find_views(index)
        index = send(index, self.inputs.device)
        inputs = self.inputs.index_select(0, index % len(self))  # a copy, 20 times as fast as inputs[...]
        if self.embeddings is not None:
            inputs = self.embeddings[inputs.long()]
        elif self.vocabulary:
            return inputs, self._targets(index, seen, dtype)
        inputs = self.decoding(dtype)(inputs)
        for view, those in seen:
            if view.quarter_turns:
                inputs[those] = inputs[those].rot90(view.quarter_turns, (-2, -1))
            if view.angle:
                inputs[those] = rotate_images(inputs[those], view.angle)
            if view.blur:
                inputs[those] = blur_images(inputs[those], view.blur)
            if view.brightness != 1 or view.colour:
                factors = inputs.new_tensor(view.colour or (1.0,)) * view.brightness
                inputs[those] = inputs[those] * (factors[:, None, None] if view.colour else factors)
            if view.noise:
                noise = draw_keyed_normal(index[those] % len(self), inputs.shape[1:].numel()).to(inputs.dtype)
                inputs[those] += view.noise * noise.view_as(inputs[those])
        return inputs.to(dtype), self._targets(index, seen, dtype)

    def _targets(self, index: Tensor, seen: _Seen, dtype: torch.dtype) -> Tensor:
        """Returns the labels at these indices: integers for classes, else floats of `dtype`, but at least float32."""
        labels = self._labels(index, seen)
        return labels if labels.dtype == torch.int64 else labels.to(torch.promote_types(dtype, torch.float32))

    def _find_views(self, index: Tensor) -> _Seen:
        """Finds the views at these indices that change something, each with its positions among the indices.

        Does not wait for a GPU if the indices are on the CPU.
        """
        if len(self.views) == 1:
            return [(self.views[0], slice(None))] if self.views[0] != _PLAIN else []
        numbers = index // len(self)
        found, counts = numbers.unique_consecutive(return_counts=True)
        if len(found) * _LONG_RUN <= len(index):  # slices are read and written in place, positions are copied
            stops = counts.cumsum(0).tolist()
            runs = zip(map(self.views.__getitem__, found.tolist()), [0, *stops], stops, strict=False)
            return [(view, slice(start, stop)) for view, start, stop in runs if view != _PLAIN]
        changed = [int(number) for number in numbers.unique() if self.views[int(number)] != _PLAIN]
        return [
            (self.views[number], send((numbers == number).nonzero().flatten(), self.labels.device))
            for number in changed
        ]

    def to(self, device: torch.device | str) -> "Examples":
        parts: dict[str, Any] = {
            name: part.to(device)
            for name in ("inputs", "labels", "scale", "offset", "embeddings")
            if isinstance(part := getattr(self, name), Tensor)
        }
        return replace(self, **parts)
