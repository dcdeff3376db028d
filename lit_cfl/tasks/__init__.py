"""The LightningModules that clients train."""

from lit_cfl.tasks.base import mixed_logits
from lit_cfl.tasks.classification import Classification
from lit_cfl.tasks.multi_label import MultiLabel
from lit_cfl.tasks.next_token import NextToken
from lit_cfl.tasks.regression import Regression

__all__ = ["Classification", "MultiLabel", "NextToken", "Regression", "mixed_logits"]
