"""The package's own matrix products: right, the same bits in any company, built once, and never another user's."""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
import torch
from ragged import SHAPE, fitted, task
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from lit_cfl.engines import products
from lit_cfl.engines.compiler import build_library
from lit_cfl.engines.kernel_cache import BuildError
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.stacked.compiled import _kinds
from lit_cfl.errors import Notice
from lit_cfl.nets import MCLR

SIZES = [(10, 784, 10), (10, 10, 784), (128, 10, 60), (1, 1, 1), (7, 33, 5), (3, 5, 61), (11, 17, 47), (6, 8, 16)]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    products.load()


def matrices(count: int, rows: int, columns: int, dtype: torch.dtype, transposed: bool) -> Tensor:
    rng = torch.Generator().manual_seed(rows + columns)
    shape = (count, columns, rows) if transposed else (count, rows, columns)
    drawn = torch.randn(shape, generator=rng, dtype=dtype)
    return drawn.mT if transposed else drawn


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_products_are_right_however_the_matrices_lie_in_memory(size: tuple[int, int, int], dtype: torch.dtype):
    rows, depth, columns = size
    for left, right in product((False, True), repeat=2):
        a, b = matrices(3, rows, depth, dtype, left), matrices(3, depth, columns, dtype, right)
        found = torch.ops.lit_cfl.bmm(a, b)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-13
        assert_close(found.double(), a.double() @ b.double(), rtol=0, atol=tolerance * depth)
        assert found.stride() == products._like_bmm(a, b).stride()


def test_matrices_with_gaps_between_all_numbers_are_copied():
    a, b = torch.arange(48.0).view(2, 4, 6)[:, ::2, ::2], torch.arange(60.0).view(2, 6, 5)[:, ::2, ::2]
    assert torch.equal(torch.ops.lit_cfl.bmm(a, b), a @ b)  # whole numbers: exact in any order


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_do_not_depend_on_company_or_threads(threads: int):
    a, b = matrices(5, 10, 784, torch.float32, False), matrices(5, 784, 128, torch.float32, True)
    before, alone = torch.get_num_threads(), [torch.ops.lit_cfl.bmm(a[k : k + 1], b[k : k + 1])[0] for k in range(5)]
    torch.set_num_threads(threads)
    try:
        together = torch.ops.lit_cfl.bmm(a, b)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, torch.stack(alone))


@pytest.mark.parametrize("flipped", [False, True])
def test_threads_share_the_rows_of_one_product_without_changing_a_bit(flipped: bool):
    a, b = matrices(1, 203, 300, torch.float32, flipped), matrices(1, 300, 47, torch.float32, flipped)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(torch.ops.lit_cfl.bmm(a, b))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert_close(found[0], a @ b, rtol=0, atol=1e-4)


def test_traced_steps_keep_the_products_of_other_types():
    def step(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b) + (a.bfloat16() @ b.bfloat16())

    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(step)(torch.ones(2, 3, 4), torch.ones(2, 4, 5))
    products.use_own_products(traced)
    targets = [str(node.target) for node in traced.graph.nodes if "bmm" in str(node.target)]
    assert targets == ["lit_cfl.bmm.default", "aten.bmm.default"]
    assert torch.equal(traced(torch.ones(2, 3, 4), torch.ones(2, 4, 5)), torch.full((2, 3, 5), 8.0))


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a compiler that writes down how often it was asked."""
    compiler = tmp_path / "g++"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "mine ${VERSION:-1}" && exit\n'
        f'echo once >> {tmp_path}/asked\nwhile [ "$1" != -o ]; do shift; done; echo made > "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("LITCFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def library_of_products() -> Path:
    return build_library("products", products._SOURCES)


def test_library_is_compiled_once_for_each_compiler_in_a_folder_of_the_users_own(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
):
    library = library_of_products()
    assert library_of_products() == library
    assert library.parent == kernels
    assert kernels.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("VERSION", "2")
    assert library_of_products() != library
    assert (kernels.parents[1] / "asked").read_text() == "once\n" * 2
    assert len(list(kernels.iterdir())) == 2  # nothing unfinished is left


def test_library_of_another_environment_with_the_same_pytorch_is_the_same(kernels: Path):
    one, other = (build_library("dual", products._SOURCES, [f"-I/{place}", f"-L/{place}"]) for place in ("a", "b"))
    assert one == other
    assert build_library("dual", products._SOURCES, ["-fopenmp"]) != one
    assert len(list(kernels.iterdir())) == 2


def test_of_those_that_need_a_library_at_once_one_compiles(kernels: Path):
    compiler = kernels.parents[1] / "g++"
    compiler.write_text(compiler.read_text().replace("echo once", "sleep 0.5; echo once"))
    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(lambda _: library_of_products(), range(3)))
    assert len(found) == 1
    assert (kernels.parents[1] / "asked").read_text() == "once\n"
    assert list(kernels.iterdir()) == list(found)


def test_compiled_steps_are_kept_for_one_device_and_one_model_of_gpu(monkeypatch: pytest.MonkeyPatch):
    name, capability, found = "H100", (9, 0), []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with FakeTensorMode():
        for device in ("cpu", "cuda:0"):
            found.append(_kinds([torch.empty(2, 3, device=device)]))
        name = "A100"
        found.append(_kinds([torch.empty(2, 3, device="cuda:0")]))
        capability = (8, 0)
        found.append(_kinds([torch.empty(2, 3, device="cuda:0")]))
    assert len({tuple(kinds) for kinds in found}) == 4
    assert found[0] == ["cpu torch.float32 (2, 3) (3, 1)"]


def test_damaged_library_is_made_anew(kernels: Path):
    library = library_of_products()
    library.write_text("mode\n")
    assert library_of_products().read_text() == "made\n"


@pytest.mark.parametrize("what", ["library", "folder"])
def test_what_others_may_write_to_is_not_loaded(what: str, kernels: Path):
    library = library_of_products()
    (library if what == "library" else kernels).chmod(0o777)
    with pytest.raises(BuildError, match="others may write to it; set LITCFL_CACHE to a folder of your own"):
        library_of_products()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_what_another_user_owns_is_not_loaded(kernels: Path):
    os.chown(library_of_products(), 4321, -1)
    with pytest.raises(BuildError, match="is another user's"):
        library_of_products()


def test_failing_compiler_is_told_and_clients_train_in_a_plain_loop(kernels: Path, monkeypatch: pytest.MonkeyPatch):
    (kernels.parents[1] / "g++").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit\necho "error: no disk" >&2; exit 1\n'
    )
    monkeypatch.setattr(products, "load", products.load.__wrapped__)
    with pytest.warns(Notice, match=r"compiling failed \(.*g\+\+ failed: error: no disk\): clients train in"):
        _, engine = fitted(task(lambda: MCLR(SHAPE, 10)), Plan("stacked", lanes=4, compile=True, products="own"))
    assert (engine.plan.compile, engine.plan.products) == (False, "torch")
    assert not any(kernels.glob(".making-*"))
