"""Reads and writes files: tables, checkpoints, configurations. Files of a run are complete or absent."""

from lit_cfl.storage.atomic_writes import write_text
from lit_cfl.storage.csv_log import read_table, write_rows

__all__ = ["read_table", "write_rows", "write_text"]
