// Multiplies batches of small matrices; products.py says why, and compiles this file.
//
// A product goes through the tiles of tiles.h: "outer" where rows of the right matrix are contiguous, "dot" where both
// matrices are contiguous along the sum; else the transposed product is taken, whose right matrix has contiguous rows.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <algorithm>

#include "tiles.h"

namespace {

constexpr int64_t kShared = 1 << 18;  // multiply-adds from which on it pays to wake another thread

// Computes C = A B, where rows of B are contiguous, or columns of B and rows of A.
template <typename T>
void multiply(int64_t rows, int64_t columns, int64_t depth, Matrix<const T> a, Matrix<const T> b, Matrix<T> c) {
  if (b.column == 1) {
    outer_columns<T>(rows, columns, depth, a, b.data, b.row, Written<T>{c.data, c.row});
  } else {
    dot_rows<T>(rows, columns, a.data, a.row, b.data, b.column, c, depth);
  }
}

// Returns a matrix of a batch, transposed if flipped.
template <typename T>
Matrix<T> matrix(const at::Tensor& t, int64_t index, bool flipped) {
  T* data = static_cast<T*>(t.data_ptr()) + index * t.stride(0);
  return flipped ? Matrix<T>{data, t.stride(2), t.stride(1)} : Matrix<T>{data, t.stride(1), t.stride(2)};
}

// Computes c = a b of every matrix in the batch; if flipped, as the transposed product of b and a.
template <typename T>
void multiply_all(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, bool flipped) {
  const int64_t rows = c.size(flipped ? 2 : 1), columns = c.size(flipped ? 1 : 2), depth = a.size(2);
  // Threads share the matrices; where these are fewer, each takes a block of rows of one. Blocks end where tiles end: a
  // row in a lower tile may differ in its last bits.
  const int64_t count = c.size(0), threads = at::get_num_threads(), unit = kRows * kDotRows;
  const int64_t wanted = count < threads && rows * columns * depth >= kShared ? threads : 1;
  const int64_t block = (rows + unit * wanted - 1) / (unit * wanted) * unit;
  const int64_t blocks = block ? (rows + block - 1) / block : 0;
  const int64_t least = std::max<int64_t>(1, kShared / std::max<int64_t>(1, block * columns * depth));
  at::parallel_for(0, count * blocks, least, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t i = task / blocks, first = task % blocks * block;
      auto left = matrix<T>(flipped ? b : a, i, flipped), right = matrix<T>(flipped ? a : b, i, flipped);
      auto result = matrix<T>(c, i, flipped);
      result.data += first * result.row;
      multiply<T>(std::min(block, rows - first), columns, depth, {left.data + first * left.row, left.row, left.column},
                  {right.data, right.row, right.column}, result);
    }
  });
}

// Computes torch.bmm for float32 or float64. products.py:_like_bmm repeats the strides of the result.
at::Tensor bmm(const at::Tensor& left, const at::Tensor& right) {
  TORCH_CHECK(left.scalar_type() == right.scalar_type() && left.dim() == 3 && right.dim() == 3 &&
                  left.size(0) == right.size(0) && left.size(2) == right.size(1) &&
                  (left.scalar_type() == at::kFloat || left.scalar_type() == at::kDouble),
              "lit_cfl::bmm takes two batches of matrices of float32 or of float64 that can be multiplied");
  auto readable = [](const at::Tensor& t) { return t.stride(1) == 1 || t.stride(2) == 1 ? t : t.contiguous(); };
  const at::Tensor a = readable(left), b = readable(right);
  const int64_t lanes = a.size(0), rows = a.size(1), columns = b.size(2);
  const bool flipped = b.stride(2) != 1 && a.stride(2) != 1;
  at::Tensor c = flipped ? at::empty_strided({lanes, rows, columns}, {rows * columns, 1, rows}, a.options())
                         : at::empty_strided({lanes, rows, columns}, {rows * columns, columns, 1}, a.options());
  if (a.scalar_type() == at::kDouble)
    multiply_all<double>(a, b, c, flipped);
  else
    multiply_all<float>(a, b, c, flipped);
  return c;
}

}  // namespace

TORCH_LIBRARY(lit_cfl, library) { library.def("bmm(Tensor left, Tensor right) -> Tensor"); }
TORCH_LIBRARY_IMPL(lit_cfl, CPU, library) { library.impl("bmm", &bmm); }
