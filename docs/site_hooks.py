"""Adds pages of the repository's root, linked sources and the API to the site that mkdocs builds from docs/.

A link that works in the repository works in the site: README.md is the start page, CONTRIBUTING.md and CHANGELOG.md are
pages, and a file outside docs/ that a page links to becomes a page with its text. Links to experiments/ become plain
text if that folder is absent. The page of an algorithm ends with what its file says: paper, departures and options.
"""

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
SHARED = {"ClusterNumberOptions": "automatic_clusters", "MigrationOptions": "migration", "SplittingAlgorithm": "splits"}
IN_REPOSITORY = {place: path for path, place in MOVED.items()}
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[\w.-]+)?\))")
TO_EXPERIMENTS = re.compile(r"\[([^]]+)\]\([^)#:\s]*\bexperiments/[^)\s]*\)")
LANGUAGES = {
    ".md": "markdown",
    ".py": "python",
    ".toml": "toml",
    ".yaml": "yaml",
    ".cff": "yaml",
    ".json": "json",
    ".csv": "text",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the pages of the API reference to the menu."""
    for entry in config.nav or []:
        entry.get("API", []).extend({module: f"api/{module}.md"} for module in public_modules())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages from outside docs/, and pages that have another name in the site."""
    for path, place in MOVED.items():
        files.append(File.generated(config, place, content=(ROOT / path).read_text("utf-8")))
    for module in public_modules():
        files.append(File.generated(config, f"api/{module}.md", content=f"# `{module}`\n\n::: {module}\n"))
    for path in linked_sources(files):
        files.append(File.generated(config, place_of(path), content=source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Converts a page's links from paths in the repository to paths in the site."""
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]

    if not (ROOT / "experiments").is_dir():
        markdown = TO_EXPERIMENTS.sub(r"\1", markdown)
    if here.startswith("algorithms/") and (source := ROOT / "lit_cfl" / f"{here.removesuffix('.md')}.py").is_file():
        markdown += from_source(source)

    def turned(found: re.Match[str]) -> str:
        place = place_of(linked(here, found[2]))
        end = ")" if place.startswith("source/") else found[3]  # the page of a source has no headings
        return found[1] + posixpath.relpath(place, posixpath.dirname(here) or ".") + end

    return LINK.sub(turned, markdown)


def from_source(file: Path) -> str:
    """Returns the paper, departures and options of an algorithm, for its page, from the docstrings of its file."""
    tree = ast.parse(file.read_text("utf-8"))
    algorithm = [node for node in tree.body if isinstance(node, ast.ClassDef)][-1]
    paper = re.findall(r"paper: ClassVar\[str\] = (.*)", ast.unparse(algorithm))
    departures = (ast.get_docstring(tree) or "").partition("\n\n")[2].replace(":\n* ", ":\n\n* ")
    shared = [f"{SHARED[name]}.{name}" for name in map(ast.unparse, algorithm.bases) if name in SHARED]
    options = [
        f"::: lit_cfl.algorithms.{name}\n    options: {{members: false, show_bases: false}}"
        for name in (f"{file.stem}.{algorithm.name}", *shared)
    ]
    return "\n\n".join(["", *map(ast.literal_eval, paper), departures, "## Options", *options, ""])


def public_modules() -> list[str]:
    """Reads the names of the public modules from the table in docs/api.md."""
    return re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs" / "api.md").read_text("utf-8"), flags=re.MULTILINE)


def linked(here: str, target: str) -> str:
    """Returns the repository path to which a link in a page of the site refers."""
    folder = posixpath.dirname(IN_REPOSITORY.get(here, f"docs/{here}"))
    return posixpath.normpath(posixpath.join(folder, target))


def place_of(path: str) -> str:
    """Returns the path in the site for a path in the repository."""
    if path in MOVED:
        return MOVED[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def linked_sources(files: Files) -> list[str]:
    """Lists the files outside docs/ that pages link to and that are not pages."""
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    found = {linked(here, link[2]) for here, text in pages.items() for link in LINK.finditer(text)}
    return sorted(path for path in found if place_of(path).startswith("source/") and (ROOT / path).is_file())


def source_page(path: str) -> str:
    """Makes a page that shows the content of a file."""
    language = LANGUAGES[Path(path).suffix]
    head = "---\nhide: [navigation, toc]\n---\n\n"
    return f"{head}# `{path}`\n\n````{language}\n{(ROOT / path).read_text('utf-8')}\n````\n"
