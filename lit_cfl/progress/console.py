"""Makes the consoles to which commands print."""

from typing import Any

from rich.console import Console


def new_console(**options: Any) -> Console:
    """Makes a Rich console that prints text unchanged: brackets and colons in paths and values are not markup."""
    return Console(markup=False, emoji=False, highlight=False, **options)
