"""`lit-cfl report`: one page, or figures for a paper, of runs, comparisons and studies."""
