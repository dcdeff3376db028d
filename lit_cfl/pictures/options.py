"""Options of pictures."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from lit_cfl.errors import InputError

Format = Literal["png", "pdf"]


@dataclass(frozen=True)
class Pictures:
    """Chooses the files of a run's pictures; `docs/results.md` names them.

    Args:
        formats: File formats of each picture: `png`, `pdf` or both; an empty list draws nothing. W&B shows the PNG.
    """

    formats: list[Format] = field(default_factory=lambda: ["png"])

    def __post_init__(self) -> None:
        unknown = [name for name in self.formats if name not in get_args(Format)]
        if unknown:
            raise InputError(f"pictures.formats has {unknown[0]!r}; give png, pdf, both or none of them ([])")
