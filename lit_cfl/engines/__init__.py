"""Trains clients: the engines behind `LocalWork`. All compute the same numbers, each in a different way."""
