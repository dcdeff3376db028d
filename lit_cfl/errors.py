"""Errors whose message is meant for the user: it quotes the value and names the remedy."""


class InputError(ValueError):
    """Something the user gave cannot be used. The command line prints the message alone and exits with 2."""


class DivergedError(InputError):
    """A client's training loss or model became NaN or infinite."""
