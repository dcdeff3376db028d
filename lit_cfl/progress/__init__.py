"""What commands print: displays of runs that go on, and tables of their results."""

from lit_cfl.progress.live import Display, describe
from lit_cfl.progress.screen import Screen
from lit_cfl.progress.summary_table import closing_table, page_line
from lit_cfl.progress.tables import assignment_table, score_table

__all__ = ["Display", "Screen", "assignment_table", "closing_table", "describe", "page_line", "score_table"]
