// Multiplies many matrices by one that is prepared once, as all of T or as sums of two bfloat16 numbers.
//
// The products themselves are oneDNN's, which PyTorch has, or PyTorch's own where oneDNN has none for the processor; those
// of float64 go through tiles.h.
#pragma once

#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

#include "tiles.h"

namespace {

// Room for so many numbers from the beginning of a cache line: oneDNN reads others at half the speed.
template <typename T>
struct Room {
  std::unique_ptr<T[], decltype(&std::free)> owned;
  explicit Room(int64_t size)
      : owned(static_cast<T*>(std::aligned_alloc(64, (size * sizeof(T) / 64 + 1) * 64)), &std::free) {
    if (!owned) throw std::bad_alloc();
  }
  T* data() const { return owned.get(); }
};

// A right factor [depth, columns] of T as it is.
template <typename T>
class Exact {
 public:
  using Number = T;
  struct Scratch {
    Scratch(int64_t, int64_t) {}
  };

  Exact(Matrix<const T> from, int64_t depth, int64_t columns)
      : depth_(depth), columns_(columns), row_((columns + 15) / 16 * 16), held_(depth * row_) {
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t j = 0; j < columns; ++j) held_.data()[k * row_ + j] = from.at(k, j);
  }

  // Computes [rows, columns] = left [rows, depth] held. Rows of `left` begin `left_row` numbers after one another.
  void multiply(int64_t rows, const T* left, int64_t left_row, T* out, Scratch&) const {
    if constexpr (std::is_same_v<T, float>)
      at::native::cpublas::brgemm(rows, columns_, depth_, left_row, row_, columns_, false, left, held_.data(), out, false);
    else
      outer_columns<T>(rows, columns_, depth_, {left, left_row, 1}, held_.data(), row_, Written<T>{out, columns_});
  }

  // Gives back what a thread's products hold of the processor.
  static void release() { at::native::cpublas::brgemm_release(false); }

 private:
  int64_t depth_, columns_, row_;
  Room<T> held_;
};

// A right factor [depth, columns] of float32, each number as the sum of two of bfloat16: 16 of its 24 bits. Three products
// of bfloat16 stand for one; the fourth, of both lower parts, is left out, for it is as small as what was rounded off.
class Halves {
 public:
  using Number = float;
  struct Scratch {
    Room<at::BFloat16> upper, lower;
    Scratch(int64_t rows, int64_t depth) : upper(rows * padded(depth)), lower(rows * padded(depth)) {}
  };

  Halves(Matrix<const float> from, int64_t depth, int64_t columns)
      : given_(depth),
        depth_(padded(depth)),
        columns_(columns),
        upper_(depth_ * (columns + kPanel)),
        lower_(depth_ * (columns + kPanel)) {
    int64_t at = 0;
    for (int64_t first = 0; first < columns; first += kPanel)
      for (int64_t k = 0; k < depth_; k += 2)
        for (int64_t j = first; j < first + kPanel; ++j)
          for (int64_t i = k; i < k + 2; ++i, ++at)
            split(i < depth && j < columns ? from.at(i, j) : 0, upper_.data()[at], lower_.data()[at]);
  }

  // As `Exact::multiply`.
  void multiply(int64_t rows, const float* left, int64_t left_row, float* out, Scratch& scratch) const {
    at::BFloat16 *upper = scratch.upper.data(), *lower = scratch.lower.data();
    for (int64_t i = 0; i < rows; ++i, left += left_row, upper += depth_, lower += depth_) {
      for (int64_t k = 0; k < given_; ++k) split(left[k], upper[k], lower[k]);
      for (int64_t k = given_; k < depth_; ++k) upper[k] = lower[k] = 0;
    }
    for (int64_t first = 0; first < columns_; first += kPanel) {
      const auto add = [&](const Room<at::BFloat16>& a, const Room<at::BFloat16>& b, bool to_others) {
        at::native::cpublas::brgemm(rows, std::min(kPanel, columns_ - first), depth_, depth_, kPanel, columns_, to_others,
                                    a.data(), b.data() + first * depth_, out + first, true);
      };
      add(scratch.lower, upper_, false);
      add(scratch.upper, lower_, true);
      add(scratch.upper, upper_, true);
    }
  }

  static void release() { at::native::cpublas::brgemm_release(true); }

 private:
  static constexpr int64_t kPanel = 64;  // columns, which for the depth of 600 examples stay in the caches

  static int64_t padded(int64_t depth) { return (depth + 31) / 32 * 32; }

  // Rounds to the nearest number of bfloat16, and what is left to another.
  static void split(float x, at::BFloat16& upper, at::BFloat16& lower) {
    const uint32_t above = rounded(x) & 0xffff0000u;
    upper.x = uint16_t(above >> 16);
    lower.x = uint16_t(rounded(x - std::bit_cast<float>(above)) >> 16);
  }
  static uint32_t rounded(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    return bits + 0x7fffu + (bits >> 16 & 1u);
  }

  int64_t given_, depth_, columns_;   // depth as it was given, and as it is held
  Room<at::BFloat16> upper_, lower_;  // panels of columns, in them rows 2 k and 2 k + 1 side by side, number by number
};

}  // namespace
