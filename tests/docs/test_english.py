"""Tests the English of sources and pages: arguments are described by noun phrases, and idioms are avoided."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("lit_cfl", "tune", "datamodules", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
PACKAGE = [path for path in SOURCES if path.relative_to(ROOT).parts[0] != "benchmarks"]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "configs").rglob("*.yaml")),
]
_ARGUMENT = re.compile(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.+)$")
_FRAGMENT = re.compile(r"(of|that|in|by|to|its|whether|what)\b", re.IGNORECASE)
IDIOMS = {
    r"\banew\b": "again, from scratch",
    r"\b(is|are) none of\b": "is not one of",
    r"\bto and fro\b": "back and forth",
    r"\bmend(s|ed)?\b": "fix",
    r"([0-9] (µs|ms|s|seconds|MiB|MB)|[Mm]icroseconds) an? (client|client-step|step|round|seed|core)\b": "per step",
    r"\b(goes|go|going|went) on (with|from|behind|after|in place)\b": "resumes, continues, falls back to",
    r"\b[Bb]eside (?!else\b)[a-z]": "next to, besides",
    r"\b(is|are|comes?|stands?|starts?) behind (?!a\b)": "after, is worse than",
    r"\bthe (least|greatest)\b(?! (similar|loaded))": "the minimum, the lowest, the largest",
    r"\b(is|are|was|were|been) told (?!apart)": "is notified, reports, receives",
    r"\bset by hand\b": "set explicitly",
    r"\bso many\b": "n",
    r"\b(process(es)?|files?|folders?|names?|scales?|groups?) of (its|their) own\b": "a separate",
    r"\b(is|are|was|were) (over|through)(?=[.,;:)]|$)": "has finished",
    r"\bholds for (?!its cells)": "applies to",
    r"\bwhat (stands there|there is|is there)\b": "the existing, the current",
    r"\b(are|is) (printed|shown|kept|left) as (they are|it is)\b": "unchanged",
    r"\b(run|study|trial|command|process|worker)s? (that )?((was|is) )?(begins?|began|begun)\b": "starts",
}
# Applies to the package and the pages, except pages that scripts write from texts of tests and runs.
PACKAGE_IDIOMS = {
    r"(?<![Tt]here )\b(is|are) no (?!longer\b|more\b|less\b|fewer\b|larger\b|other\b|one\b|such\b)[a-z-]+": "is not a",
    r"\bnobody (else )?[a-z]+(s|ed|e)\b": "no client, or the passive",
    r"# whatever .+ raises$": "a module may raise anything",
    r"\b(is|are) (not there|there already)\b": "does not exist, already exists",
    r"\bto the base of [0-9{]": "in base 8",
}
_WRITTEN = {"testing.md"}


def described_arguments(docstring: str) -> Iterator[tuple[str, str]]:
    """Yields each argument under `Args:`, with the first line of its description."""
    _, _, rest = docstring.partition("Args:\n")
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            break
        if found := _ARGUMENT.match(line):
            yield found[1], found[2]


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            yield getattr(node, "name", path.stem), ast.get_docstring(node) or ""


def test_arguments_are_described_by_noun_phrases():
    seen, fragments = 0, []
    for path in SOURCES:
        for name, docstring in docstrings(path):
            for argument, text in described_arguments(docstring):
                seen += 1
                if _FRAGMENT.match(text):
                    fragments.append(f"{path.relative_to(ROOT)}: {name}: {argument}: {text}")
    assert seen > 1_000
    assert not fragments, "\n".join(fragments)


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        (
            "Trains.\n\nArgs:\n    rows: of it.\n        more.\n    a, b: Numbers.\n\nReturns:\n    c: to do.\n",
            ["of it.", "Numbers."],
        ),
        ("Trains.", []),
    ],
)
def test_only_the_first_line_of_an_argument_is_read(docstring: str, expected: list[str]):
    assert [text for _, text in described_arguments(docstring)] == expected


@pytest.mark.parametrize("idiom", IDIOMS)
def test_pages_and_sources_use_the_usual_words(idiom: str):
    """The values of `IDIOMS` say what to write instead."""
    found = []
    for path in (*SOURCES, *PAGES):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(idiom, re.sub(r"`[^`]*`", "", line)):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}; write {IDIOMS[idiom]}")
    assert not found, "\n".join(found)


def test_arguments_of_the_package_begin_with_a_capital_letter():
    small = [
        f"{path.relative_to(ROOT)}: {name}: {argument}: {text}"
        for path in PACKAGE
        for name, docstring in docstrings(path)
        for argument, text in described_arguments(docstring)
        if text[0].islower()
    ]
    assert not small, "\n".join(small)


@pytest.mark.parametrize("idiom", PACKAGE_IDIOMS)
def test_package_and_pages_use_plain_words(idiom: str):
    found = []
    for path in (*PACKAGE, *(page for page in PAGES if page.name not in _WRITTEN)):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(idiom, re.sub(r"`[^`]*`", "", line)):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}; write {PACKAGE_IDIOMS[idiom]}")
    assert not found, "\n".join(found)
