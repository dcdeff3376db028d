"""What a client trains: LightningModules."""

from lit_cfl.tasks.classification import Classification

__all__ = ["Classification"]
