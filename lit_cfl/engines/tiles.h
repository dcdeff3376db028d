// Multiplies small matrices in tiles of the result that fit into the vector registers.
//
// Rows of the right matrix that are contiguous are scaled and added ("outer"); where both matrices are contiguous along the
// sum, vectors are multiplied and summed up at the end ("dot").
#pragma once

#include <cstdint>
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

// Sums up a vector: its halves, then theirs.
template <typename T, int Bytes>
T total(typename Simd<T, Bytes>::type v) {
  if constexpr (Bytes == sizeof(T)) {
    return v[0];
  } else {
    typename Simd<T, Bytes / 2>::type lower, upper;
    std::memcpy(&lower, &v, Bytes / 2);
    std::memcpy(&upper, reinterpret_cast<const char*>(&v) + Bytes / 2, Bytes / 2);
    return total<T, Bytes / 2>(lower + upper);
  }
}

// A view of a matrix, with the strides of its rows and columns.
template <typename T>
struct Matrix {
  T* data;
  int64_t row, column;
  T& at(int64_t i, int64_t j) const { return data[i * row + j * column]; }
};

// A result with contiguous rows, into which products are written. Others may do something else in `put`.
template <typename T>
struct Written {
  T* data;
  int64_t row;
  Written from(int64_t i, int64_t j) const { return {data + i * row + j, row}; }
  template <int Bytes>
  void put(int64_t i, int64_t j, typename Simd<T, Bytes>::type v) const {
    Simd<T, Bytes>::store(data + i * row + j, v);
  }
};

// Computes R rows and V vectors of columns of C = A B, where rows of B are contiguous, and puts them into C.
template <typename T, int Bytes, int R, int V, typename C>
void outer_tile(Matrix<const T> a, const T* b, int64_t b_row, C c, int64_t depth) {
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
    for (int v = 0; v < V; ++v) c.template put<Bytes>(r, v * S::size, sum[r][v]);
}

// Computes V vectors of columns: R rows at a time, then what is left in tiles of fewer rows.
template <typename T, int Bytes, int V, int R = kRows, typename C>
void outer_rows(int64_t rows, Matrix<const T> a, const T* b, int64_t b_row, C c, int64_t depth) {
  for (; rows >= R; rows -= R, a.data += R * a.row, c = c.from(R, 0)) outer_tile<T, Bytes, R, V>(a, b, b_row, c, depth);
  if constexpr (R > 1)
    if (rows) outer_rows<T, Bytes, V, R - 1>(rows, a, b, b_row, c, depth);
}

// Computes all columns from `done` on: V vectors at a time, what is left with fewer and then with shorter vectors.
template <typename T, int Bytes = kVectorBytes, int V = kVectors, typename C>
void outer_columns(int64_t rows, int64_t columns, int64_t depth, Matrix<const T> a, const T* b, int64_t b_row, C c,
                   int64_t done = 0) {
  for (; columns - done >= V * Simd<T, Bytes>::size; done += V * Simd<T, Bytes>::size)
    outer_rows<T, Bytes, V>(rows, a, b + done, b_row, c.from(0, done), depth);
  if constexpr (V > 1)
    outer_columns<T, Bytes, V / 2>(rows, columns, depth, a, b, b_row, c, done);
  else if constexpr (Bytes > int(sizeof(T)))
    outer_columns<T, Bytes / 2, 1>(rows, columns, depth, a, b, b_row, c, done);
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
    for (int n = 0; n < N; ++n) c.at(r, n) = total<T, kVectorBytes>(sum[r][n]);
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

}  // namespace
