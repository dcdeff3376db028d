"""Several algorithms on the same clients over several seeds: `lit-cfl compare`."""
