"""A run or a study on a cluster, through Ray's Jobs API: `lit-cfl launch`."""
