"""Handles plans of earlier versions in configurations: drops a run's recorded plan if possible, refuses others."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_cfl.config.given_options import merge_options
from lit_cfl.engines.earlier_plans import is_earlier, refuse_earlier, refuse_earlier_run, without_earlier_plan
from lit_cfl.storage.config_file import as_yaml

Content = Mapping[str, Any]


def current_plans(
    contents: Mapping[str, Content], words: Sequence[str], recorded: Path | None = None, own_plan: bool = True
) -> tuple[dict[str, Content], dict[str, str]]:
    """Removes a run's plan of an earlier version if it is not needed; refuses any other such plan.

    Args:
        contents: Contents by file.
        words: Words of the command line.
        recorded: Run directory that is opened or resumed.
        own_plan: Keep the recorded plan.

    Returns:
        the contents, and for each word that names a changed file the text that replaces it.

    Raises:
        InputError: a plan of an earlier version is requested.
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
    refuse_earlier("", merge_options([], words))
    return found, texts
