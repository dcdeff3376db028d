"""Builds an `Experiment` from a command line and YAML files."""
