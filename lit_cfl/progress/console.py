"""Makes the consoles on which commands print."""

from rich.console import Console


def new_console(stderr: bool = False) -> Console:
    """Makes a console that prints text as it is: brackets and colons in paths and values are no markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)
