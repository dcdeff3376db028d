"""The commands of `lit-cfl`. `main.py` is the entry point."""
