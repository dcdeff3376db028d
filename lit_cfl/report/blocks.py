"""The elements of a page: sections of paragraphs, tables, figures and images, independent of HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from lit_cfl.pictures.figure import Figure, Table

__all__ = ["Block", "Code", "Figure", "Page", "Section", "Table", "Text", "as_yaml"]


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Args:
        text: Text of the paragraph.
    """

    text: str


@dataclass(frozen=True)
class Code:
    """Lines to be copied, such as a command.

    Args:
        text: Lines to be copied.
        title: Heading above the lines.
        folded: Show on demand only.
    """

    text: str
    title: str
    folded: bool = False


Block = Text | Code | Table | Figure


def as_yaml(content: Mapping[str, Any], title: str) -> Code:
    """Shows the content of a file as YAML on demand."""
    return Code(yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True), title, folded=True)


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading.

    Args:
        title: Heading.
        blocks: Blocks in order.
        parts: Subsections.
    """

    title: str
    blocks: Sequence[Block]
    parts: Sequence["Section"] = ()

    @property
    def figures(self) -> list[Figure]:
        """Lists the section's figures, including those of its parts."""
        own = [block for block in self.blocks if isinstance(block, Figure)]
        return own + [figure for part in self.parts for figure in part.figures]


@dataclass(frozen=True)
class Page:
    """A whole page.

    Args:
        title: Heading.
        lines: Summary lines below the title.
        problems: Sentences about anything missing, damaged or unfinished.
        sections: Sections in order.
    """

    title: str
    lines: Sequence[str]
    problems: Sequence[str]
    sections: Sequence[Section]

    @property
    def figures(self) -> list[Figure]:
        """Lists all figures of the page."""
        return [figure for section in self.sections for figure in section.figures]
