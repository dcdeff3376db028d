"""Trains clients: the engines behind `LocalWork`, each of which computes the same numbers in another way."""
