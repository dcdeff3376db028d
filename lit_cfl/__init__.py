"""Lit-CFL: clustered federated learning on PyTorch Lightning."""
