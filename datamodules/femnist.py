"""FEMNIST: handwritten characters by writer."""

from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, ClassVar, Literal

import numpy as np

from lit_cfl.datamodules.columns import require_in_range
from lit_cfl.datamodules.image_sets import ImageSet
from lit_cfl.datamodules.partition import Partition
from lit_cfl.datamodules.partition.natural import Natural
from lit_cfl.errors import InputError

CHARACTERS = digits + ascii_uppercase + ascii_lowercase
_NUM_LABELS = {"all": 62, "a-j": 10, "a-j_26": 26}


class FEMNIST(ImageSet):
    """Handwritten characters (grey, 28 x 28, black on white, up to 62 labels), with one client per writer.

    The Hub copy has only a `train` split, so a share of each writer's images is for testing. The FEMNIST of the papers
    (FedProx: 200 artificial clients with the letters a to j from NIST) is not public; `labels: a-j` selects the same
    ten letters from LEAF's. Not tried on the live Hub.

    Args:
        source: Hub id, or a local folder in the same format.
        labels: `all`: 62 (0-9, A-Z, a-z); `a-j`: only lower-case a to j, labels 0 to 9 (FlexCFL); `a-j_26`: the same
            images for a model with 26 outputs (FedGroup, whose text says 62 classes).
        partition: Rule that divides the images among clients.
        options: Options of `ImageSet`.
    """

    paper: ClassVar[str] = "Caldas et al. LEAF: A Benchmark for Federated Settings. 2018. arXiv:1812.01097"
    label_column: ClassVar[str] = "character"
    client_column: ClassVar[str | None] = "writer_id"
    background: ClassVar[int] = 255

    def __init__(
        self,
        source: str = "flwrlabs/femnist",
        labels: Literal["all", "a-j", "a-j_26"] = "all",
        partition: Partition = Natural(),
        **options: Any,
    ) -> None:
        super().__init__(source, partition=partition, **options)
        if labels not in _NUM_LABELS:
            raise InputError(f"data.labels is {labels!r}; give one of {', '.join(_NUM_LABELS)}")
        self.labels, self.num_labels = labels, _NUM_LABELS[labels]

    @property
    def variant(self) -> tuple[str, ...]:
        return (self.labels,)

    def relabel(self, labels: np.ndarray, names: Sequence[str] | None) -> np.ndarray:
        characters = list(CHARACTERS) if names is None else list(names)
        if set(characters) != set(CHARACTERS):
            raise InputError(
                f"{self.source} has the characters {' '.join(characters)}; FEMNIST has 0-9, A-Z and a-z: "
                "give another source"
            )
        wanted = CHARACTERS if self.labels == "all" else "abcdefghij"
        place = np.array([wanted.find(character) for character in characters])  # -1: the image is left out
        kept: np.ndarray = place[require_in_range(labels, len(characters), f"label column {self.label_column!r}")]
        return kept
