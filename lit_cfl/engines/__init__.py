"""Trains clients: the engines behind `LocalWork`. All give the same results up to rounding."""
