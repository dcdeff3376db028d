"""The output of commands: displays of ongoing runs, and tables of results."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lit_cfl.progress.live import Display as Display
    from lit_cfl.progress.live import describe as describe
    from lit_cfl.progress.screen import Screen as Screen
    from lit_cfl.progress.summary_table import closing_table as closing_table
    from lit_cfl.progress.summary_table import page_line as page_line
    from lit_cfl.progress.tables import assignment_table as assignment_table
    from lit_cfl.progress.tables import score_table as score_table

_HOMES = {
    "Display": "live",
    "Screen": "screen",
    "assignment_table": "tables",
    "closing_table": "summary_table",
    "describe": "live",
    "page_line": "summary_table",
    "score_table": "tables",
}
__all__ = ["Display", "Screen", "assignment_table", "closing_table", "describe", "page_line", "score_table"]


def __getattr__(name: str) -> Any:  # a console alone needs no Lightning
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
