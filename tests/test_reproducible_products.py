"""Tests whether MKL is asked for matrix products that do not depend on memory alignment."""

import os
from pathlib import Path

import pytest

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
