"""The output of commands: displays of ongoing runs, and tables of results."""
