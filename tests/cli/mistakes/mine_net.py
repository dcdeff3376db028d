"""Nets that cannot be built."""

from torch import nn


class Broken(nn.Module):
    def __init__(self) -> None:
        self.x = 1 / 0


class Untyped(nn.Module):
    def __init__(self, width) -> None:  # type: ignore[no-untyped-def]  # no type: the mistake
        super().__init__()


class Sized(nn.Module):
    def __init__(self, input_shape: list[int]) -> None:
        super().__init__()


class Wide(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()


class Whole(nn.Module):
    """A net with a layer, a class of which no list of names exists."""

    def __init__(self, layer: nn.Flatten | None = None) -> None:
        super().__init__()
