// Multiplies batches of small matrices; products.py says why, and compiles this file.
//
// A product goes through tiles of the result that fit into the vector registers. Rows of the right matrix that are
// contiguous are scaled and added ("outer"); where both matrices are contiguous along the sum, vectors are multiplied and
// summed up at the end ("dot"); else the transposed product is taken, whose right matrix has contiguous rows.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>

namespace {

// Sizes of tiles, in vectors: all sums, a row of the right matrix and an entry of the left one have to fit into the
// 32 registers of AVX-512, or into 16.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRows = 5, kVectors = 4, kDotRows = 5, kDotColumns = 5;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kRows = 4, kVectors = 2, kDotRows = 3, kDotColumns = 3;
#else
constexpr int kVectorBytes = 16, kRows = 4, kVectors = 2, kDotRows = 3, kDotColumns = 3;
#endif

constexpr int64_t kShared = 1 << 18;  // multiply-adds of a product from which on it pays to wake another thread

// A vector of so many bytes, in the portable form that GCC and Clang have.
template <typename T, int Bytes>
struct Simd {
  typedef T type __attribute__((vector_size(Bytes)));
  static constexpr int size = Bytes / sizeof(T);
  static type load(const T* from) {
    type v;
    std::memcpy(&v, from, Bytes);
    return v;
  }
  static void store(T* to, type v) { std::memcpy(to, &v, Bytes); }
};

// A view of a matrix, with the strides of its rows and columns.
template <typename T>
struct Matrix {
  T* data;
  int64_t row, column;
  T& at(int64_t i, int64_t j) const { return data[i * row + j * column]; }
};

// Computes R rows and V vectors of columns of C = A B, where rows of B and C are contiguous.
template <typename T, int Bytes, int R, int V>
void outer_tile(Matrix<const T> a, const T* b, int64_t b_row, T* c, int64_t c_row, int64_t depth) {
  using S = Simd<T, Bytes>;
  typename S::type sum[R][V] = {};
  for (int64_t k = 0; k < depth; ++k) {
    typename S::type right[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) right[v] = S::load(b + k * b_row + v * S::size);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const T left = a.at(r, k);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) S::store(c + r * c_row + v * S::size, sum[r][v]);
}

// Computes V vectors of columns: R rows at a time, then what is left in tiles of fewer rows.
template <typename T, int Bytes, int V, int R = kRows>
void outer_rows(int64_t rows, Matrix<const T> a, const T* b, int64_t b_row, T* c, int64_t c_row, int64_t depth) {
  for (; rows >= R; rows -= R, a.data += R * a.row, c += R * c_row)
    outer_tile<T, Bytes, R, V>(a, b, b_row, c, c_row, depth);
  if constexpr (R > 1)
    if (rows) outer_rows<T, Bytes, V, R - 1>(rows, a, b, b_row, c, c_row, depth);
}

// Computes all columns from `done` on: V vectors at a time, what is left with fewer and then with shorter vectors.
template <typename T, int Bytes, int V>
void outer_columns(int64_t& done, int64_t rows, int64_t columns, int64_t depth, Matrix<const T> a, const T* b,
                   int64_t b_row, T* c, int64_t c_row) {
  for (; columns - done >= V * Simd<T, Bytes>::size; done += V * Simd<T, Bytes>::size)
    outer_rows<T, Bytes, V>(rows, a, b + done, b_row, c + done, c_row, depth);
  if constexpr (V > 1)
    outer_columns<T, Bytes, V / 2>(done, rows, columns, depth, a, b, b_row, c, c_row);
  else if constexpr (Bytes > int(sizeof(T)))
    outer_columns<T, Bytes / 2, 1>(done, rows, columns, depth, a, b, b_row, c, c_row);
}

// Computes R rows and N columns of C = A B^T, where rows of A and B are contiguous.
template <typename T, int R, int N>
void dot_tile(const T* a, int64_t a_row, const T* b, int64_t b_row, Matrix<T> c, int64_t depth) {
  using S = Simd<T, kVectorBytes>;
  typename S::type sum[R][N] = {};
  int64_t k = 0;
  for (; k + S::size <= depth; k += S::size) {
    typename S::type right[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) right[n] = S::load(b + n * b_row + k);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto left = S::load(a + r * a_row + k);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[r][n] += left * right[n];
    }
  }
  if (k < depth) {  // a last vector, filled up with zeros
    const int64_t bytes = (depth - k) * sizeof(T);
    typename S::type right[N] = {};
    for (int n = 0; n < N; ++n) std::memcpy(&right[n], b + n * b_row + k, bytes);
    for (int r = 0; r < R; ++r) {
      typename S::type left = {};
      std::memcpy(&left, a + r * a_row + k, bytes);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[r][n] += left * right[n];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) {
      T parts[S::size];
      std::memcpy(parts, &sum[r][n], sizeof(parts));
      for (int half = S::size / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
      c.at(r, n) = parts[0];
    }
}

// Computes R rows: N columns at a time, then what is left in tiles of fewer columns.
template <typename T, int R, int N = kDotColumns>
void dot_columns(int64_t columns, const T* a, int64_t a_row, const T* b, int64_t b_row, Matrix<T> c, int64_t depth) {
  for (; columns >= N; columns -= N, b += N * b_row, c.data += N * c.column)
    dot_tile<T, R, N>(a, a_row, b, b_row, c, depth);
  if constexpr (N > 1)
    if (columns) dot_columns<T, R, N - 1>(columns, a, a_row, b, b_row, c, depth);
}

// Computes all rows: R at a time, then what is left in tiles of fewer rows.
template <typename T, int R = kDotRows>
void dot_rows(int64_t rows, int64_t columns, const T* a, int64_t a_row, const T* b, int64_t b_row, Matrix<T> c,
              int64_t depth) {
  for (; rows >= R; rows -= R, a += R * a_row, c.data += R * c.row)
    dot_columns<T, R>(columns, a, a_row, b, b_row, c, depth);
  if constexpr (R > 1)
    if (rows) dot_rows<T, R - 1>(rows, columns, a, a_row, b, b_row, c, depth);
}

// Computes C = A B, where rows of B are contiguous, or columns of B and rows of A.
template <typename T>
void multiply(int64_t rows, int64_t columns, int64_t depth, Matrix<const T> a, Matrix<const T> b, Matrix<T> c) {
  if (b.column == 1) {
    int64_t done = 0;
    outer_columns<T, kVectorBytes, kVectors>(done, rows, columns, depth, a, b.data, b.row, c.data, c.row);
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
  at::parallel_for(0, count * blocks, 1, [&](int64_t begin, int64_t end) {
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
