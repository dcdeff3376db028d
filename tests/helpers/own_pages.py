"""Extracts the files, commands and code of pages."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_NAMED = re.compile(r"`([a-z_]+\.(?:py|yaml))`(?:, [^\n]*)?:\n\n```(?:python|yaml)\n(.*?)```", re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """Returns the blocks of a page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / f"{page}.md").read_text(), flags=re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """Returns the commands of a page."""
    return [line.partition(" #")[0].strip() for block in blocks(page, "bash") for line in block.splitlines()]


def unpack(page: str) -> list[str]:
    """Writes the files of a page into the current folder; returns its commands."""
    for name, code in _NAMED.findall((DOCS / f"{page}.md").read_text()):
        Path(name).write_text(code)
    for code in blocks(page, "yaml"):
        if name := re.search(r"^name: (\w+)", code, flags=re.MULTILINE):  # other blocks are parts of files
            Path(f"{name[1]}.yaml").write_text(code)
    return commands(page)
