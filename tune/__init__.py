"""Hyper-parameter search with Ray Tune (to come: the command `lit-cfl tune`)."""
