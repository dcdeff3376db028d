"""What runs show on the screen: a live line, a line now and then, JSON or nothing, and the tables at the end."""

from lit_cfl.progress.live import describe
from lit_cfl.progress.screen import Screen
from lit_cfl.progress.summary_table import closing_table
from lit_cfl.progress.tables import assignment_table, score_table

__all__ = ["Screen", "assignment_table", "closing_table", "describe", "score_table"]
