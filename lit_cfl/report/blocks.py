"""What a page is made of: sections of paragraphs, tables, figures and images, without a word of HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lit_cfl.pictures.cells import CellGrid, Matrix
from lit_cfl.pictures.panels import Panel, Style

Cell = str | int | float | None


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Args:
        text: of it.
    """

    text: str


@dataclass(frozen=True)
class Code:
    """Lines to copy, such as a command.

    Args:
        text: of them.
        title: what they are.
        folded: whether they are shown on demand.
    """

    text: str
    title: str
    folded: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        title: above it.
        head: names of its columns.
        rows: with a cell for each column; None = blank.
        folded: whether it is shown on demand.
        note: below it.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    folded: bool = False
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        name: of its file, and its anchor on the page.
        title: above it.
        drawing: what it shows.
        caption: below it.
        alt: what can be seen on it, for those who cannot.
        styles: of the names in a panel.
        table: what a hover shows; None = the values of the panel.
        height: on the page, in pixels.
    """

    name: str
    title: str
    drawing: Panel | Matrix | CellGrid
    caption: str
    alt: str
    styles: Mapping[str, Style] = field(default_factory=dict)
    table: Table | None = None
    height: int = 340


@dataclass(frozen=True)
class Image:
    """A small image.

    Args:
        alt: what it is.
        png: its file's content.
    """

    alt: str
    png: bytes


@dataclass(frozen=True)
class Images:
    """Images in rows.

    Args:
        title: above them.
        rows: by the name of the row.
        caption: below them.
    """

    title: str
    rows: Mapping[str, Sequence[Image]]
    caption: str


Block = Text | Code | Table | Figure | Images


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
        title: of it.
        lines: that sum it up, below the title.
        problems: what is missing, damaged or not over, in sentences.
        sections: in order.
        live: whether what it shows goes on.
    """

    title: str
    lines: Sequence[str]
    problems: Sequence[str]
    sections: Sequence[Section]
    live: bool = False

    @property
    def figures(self) -> list[Figure]:
        """Lists all of its figures."""
        return [figure for section in self.sections for figure in section.figures]
