"""`lit-cfl report`: makes a page, or figures for a paper, of runs, comparisons and studies."""
