"""Command line of a comparison that takes seconds, to which a test adds the algorithms."""

OPTIONS = "--config quickstart --data.num_clients 12 --cohort_size 4 --local.epochs 1 --rounds 3 --num_cpus 1"
SMALL = ("compare", *OPTIONS.split())
