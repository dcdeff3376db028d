"""Searches hyper-parameters with Ray Tune: the commands `lit-cfl tune` and `lit-cfl launch`."""
