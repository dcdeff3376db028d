"""Counts Python files and lines by package: all lines, and lines of code without docstrings, comments and blanks.

    python benchmarks/count_lines.py [PATH ...]

Only files tracked by Git count. `native` are our own C++, JavaScript, CSS and HTML files.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("lit_cfl", "tune", "datamodules", "benchmarks", "tests")
NATIVE = (".cpp", ".h", ".js", ".css", ".html")
VENDORED = (".min.js",)  # third-party files
_EMPTY = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def list_tracked_files(paths: list[str]) -> list[str]:
    """Returns the Git-tracked files below the given paths, without links."""
    found = subprocess.run(
        ["git", "ls-files", "-z", "--", *paths], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in found.stdout.split("\0") if name and not (ROOT / name).is_symlink()]


def count_code_lines(source: str) -> int:
    """Counts the lines of Python code, excluding comments, blank lines and docstrings."""
    docstrings = set(_find_docstring_lines(ast.parse(source)))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _EMPTY:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def _find_docstring_lines(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def find_group(name: str) -> str:
    """Returns the package under which a file is counted, such as `lit_cfl/engines`, or its top-level folder."""
    parts = PurePath(name).parts
    return "/".join(parts[: 2 if len(parts) > 2 else 1])


def main(paths: list[str]) -> None:
    """Prints a row for each package, and the sum of each top-level folder."""
    groups: dict[str, list[tuple[int, int, int]]] = {}
    for name in list_tracked_files(paths):
        text = (ROOT / name).read_text("utf-8") if name.endswith((".py", *NATIVE)) else ""
        if name.endswith(".py"):
            groups.setdefault(find_group(name), []).append((1, text.count("\n"), count_code_lines(text)))
        elif name.endswith(NATIVE) and not name.endswith(VENDORED):
            groups.setdefault(f"{find_group(name)} native", []).append((1, text.count("\n"), 0))
    print(f"{'package':<32}{'files':>7}{'lines':>8}{'code':>8}")
    for place in dict.fromkeys(PurePath(group).parts[0].split()[0] for group in groups):
        own = {group: rows for group, rows in groups.items() if group.split()[0].split("/")[0] == place}
        for group, rows in sorted(own.items()):
            _print_row(group, rows)
        _print_row(f"{place}, all", [row for rows in own.values() for row in rows])
    print(f"{len(list_tracked_files(['.']))} files are tracked")


def _print_row(name: str, rows: list[tuple[int, int, int]]) -> None:
    files, lines, code = map(sum, zip(*rows, strict=True))
    print(f"{name:<32}{files:>7}{lines:>8}{code:>8}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(PLACES))
