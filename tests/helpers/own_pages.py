"""Extracts the files and commands of pages about user code."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_NAMED = re.compile(r"`([a-z_]+\.(?:py|yaml))`(?:, [^\n]*)?:\n\n```(?:python|yaml)\n(.*?)```", re.DOTALL)


def unpack(page: str) -> list[str]:
    """Writes the files of a page into the current folder; returns its commands."""
    text = (DOCS / f"{page}.md").read_text()
    for name, code in _NAMED.findall(text):
        Path(name).write_text(code)
    for code in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL):
        if name := re.search(r"^name: (\w+)", code, flags=re.MULTILINE):  # other blocks are parts of files
            Path(f"{name[1]}.yaml").write_text(code)
    return [line for block in re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL) for line in block.splitlines()]
