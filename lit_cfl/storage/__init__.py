"""Reads and writes files: tables, checkpoints, configurations. What a run has written is whole, or is not there."""

from lit_cfl.storage.atomic_writes import write_text
from lit_cfl.storage.csv_log import read_table, write_rows

__all__ = ["read_table", "write_rows", "write_text"]
