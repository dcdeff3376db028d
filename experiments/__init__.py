"""Compares the numbers of the papers' tables with our runs, and gives each a verdict."""
