"""Runs and studies on a cluster through Ray's Jobs API: `lit-cfl launch`."""
