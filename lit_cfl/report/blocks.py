"""What a page is made of: sections of paragraphs, tables, figures and images, without a word of HTML."""

from collections.abc import Sequence
from dataclasses import dataclass

from lit_cfl.pictures.figure import Figure, Table

__all__ = ["Block", "Code", "Figure", "Page", "Section", "Table", "Text"]


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Args:
        text: of the paragraph.
    """

    text: str


@dataclass(frozen=True)
class Code:
    """Lines to copy, such as a command.

    Args:
        text: the lines.
        title: what they are.
        folded: whether they are shown on demand.
    """

    text: str
    title: str
    folded: bool = False


Block = Text | Code | Table | Figure


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading.

    Args:
        title: its heading.
        blocks: in order.
        parts: smaller sections inside it.
    """

    title: str
    blocks: Sequence[Block]
    parts: Sequence["Section"] = ()

    @property
    def figures(self) -> list[Figure]:
        """Lists its figures, and those of its parts."""
        own = [block for block in self.blocks if isinstance(block, Figure)]
        return own + [figure for part in self.parts for figure in part.figures]


@dataclass(frozen=True)
class Page:
    """A whole page.

    Args:
        title: its heading.
        lines: that sum it up, below the title.
        problems: what is missing, damaged or not over, in sentences.
        sections: in order.
    """

    title: str
    lines: Sequence[str]
    problems: Sequence[str]
    sections: Sequence[Section]

    @property
    def figures(self) -> list[Figure]:
        """Lists all of its figures."""
        return [figure for section in self.sections for figure in section.figures]
