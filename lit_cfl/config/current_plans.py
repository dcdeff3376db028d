"""Refuses plans of earlier versions in files and options, or ignores recorded ones that no longer apply."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_cfl.engines.earlier_plans import is_earlier, refuse_earlier, refuse_earlier_run, without_earlier_plan
from lit_cfl.storage.config_file import as_yaml

Content = Mapping[str, Any]


def current_plans(
    contents: Mapping[str, Content], words: Sequence[str], recorded: Path | None = None, own_plan: bool = True
) -> tuple[dict[str, Content], dict[str, str]]:
    """Returns file contents without plans of earlier versions, and the new texts of words that name changed files.

    Args:
        contents: Contents by file.
        words: Words of the command line.
        recorded: the run directory that is opened or resumed.
        own_plan: Keep the recorded plan.

    Raises:
        InputError: such a plan is asked for.
    """
    found: dict[str, Content] = {}
    texts: dict[str, str] = {}
    for file, content in contents.items():
        found[file] = content
        if recorded is not None and Path(file).parent == recorded and is_earlier(content):
            if own_plan:
                refuse_earlier_run(recorded, content)
            found[file] = without_earlier_plan(content)
            texts |= {file: as_yaml(found[file]), f"--config={file}": f"--config={as_yaml(found[file])}"}
        else:
            refuse_earlier(f"{file}: ", content)
    refuse_earlier("", _of_options(words))
    return found, texts


def _of_options(words: Sequence[str]) -> dict[str, Any]:
    """Returns the engine and the plan options that are set, whatever their values."""
    found: dict[str, Any] = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        option, given, value = word.partition("=")
        value = value if given else following
        if option == "--engine":
            found["engine"] = value
        elif option.startswith("--plan."):
            found.setdefault("plan", {})[option.removeprefix("--plan.")] = value
    return found
