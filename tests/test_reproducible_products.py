"""Tests that matrix products do not depend on memory alignment."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lit_cfl.engines.reproducible_products import SETTING, STRICT, ask_for_reproducible_products

AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512dq\n"
INTEL = "vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f avx512dq\n"
OLDER = "vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2\n"


@pytest.mark.parametrize(
    ("processor", "before", "after"),
    [(AMD, None, STRICT), (OLDER, None, STRICT), (None, None, STRICT), (INTEL, None, None), (AMD, "AVX2", "AVX2")],
    ids=["AMD", "Intel with AVX2", "no list", "Intel with AVX-512", "user's own"],
)
def test_mkl_is_asked_unless_the_user_or_the_processor_decides(
    processor: str | None, before: str | None, after: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(SETTING, raising=False)
    if before is not None:
        monkeypatch.setenv(SETTING, before)
    file = tmp_path / "cpuinfo"
    if processor is not None:
        file.write_text(processor)
    ask_for_reproducible_products(file)
    assert os.environ.get(SETTING) == after


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 32, 16), (10, 784, 10), (10, 784, 128)])
def test_products_have_the_same_bits_at_every_place(rows: int, inner: int, columns: int, dtype: torch.dtype):
    rng = torch.Generator().manual_seed(1)
    a = torch.randn(1, rows, inner, dtype=dtype, generator=rng)
    b = torch.randn(1, columns, inner, dtype=dtype, generator=rng)

    def moved(matrix: Tensor, place: int) -> Tensor:
        room = torch.empty(place + matrix.numel(), dtype=dtype)
        return room[place:].view(matrix.shape).copy_(matrix)

    expected = torch.bmm(a, b.mT)
    for place in range(1, 16):
        assert torch.equal(torch.bmm(moved(a, place), b.mT), expected)
        assert torch.equal(torch.bmm(a, moved(b, place).mT), expected)
        out = moved(expected, place)
        assert torch.equal(torch.bmm(a, b.mT, out=out), expected)
