"""From a command line and YAML files to an `Experiment`."""
