// What the kernels of perceptrons share: layers, what SGD makes of a gradient, the cross-entropy.
#pragma once

#include <algorithm>
#include <cmath>

#include "tiles.h"

namespace {

// A fully connected layer: where its parameters lie in the row, and their options. `Layer` in perceptron.py is the same.
struct Layer {
  int64_t inputs, outputs, weight, bias;
  double weight_rate, weight_decay, bias_rate, bias_decay, kernel_l2;
};

// What SGD makes of parameters and a gradient: p - rate (g + decay p + prox (p - center)) = keep p - rate g + pull center.
template <typename T>
struct Rule {
  T keep, rate, pull;
  Rule(double rate, double decay, double prox) : keep(1 - rate * (decay + prox)), rate(rate), pull(rate * prox) {}
};

// Computes the sum of what `of` makes of each number.
template <typename T, typename Of>
double sum_of(const T* x, int64_t size, const Of& of) {
  using S = Simd<T, kVectorBytes>;
  typename S::type sum[4] = {};
  int64_t k = 0;
  for (; k + 4 * S::size <= size; k += 4 * S::size)
    for (int v = 0; v < 4; ++v) sum[v] += of(S::load(x + k + v * S::size));
  double total = 0;
  for (int v = 0; v < 4; ++v)
    for (int i = 0; i < S::size; ++i) total += sum[v][i];
  for (; k < size; ++k) total += of(double(x[k]));
  return total;
}

template <typename T>
double sum(const T* x, int64_t size) {
  return sum_of(x, size, [](auto v) { return v; });
}

template <typename T>
double squares(const T* x, int64_t size) {
  return sum_of(x, size, [](auto v) { return v * v; });
}

// The cross-entropy of an example, and the sum that turns the exponentials of its outputs into probabilities.
template <typename T>
struct CrossEntropy {
  double loss;
  T total;
};

// Turns the outputs of an example `[labels]` into their exponentials, divided by the largest one.
template <typename T>
CrossEntropy<T> exponentials(T* outputs, int64_t labels, int64_t label) {
  const T largest = *std::max_element(outputs, outputs + labels), right = outputs[label];
  T total = 0;
  for (int64_t j = 0; j < labels; ++j) total += outputs[j] = std::exp(outputs[j] - largest);
  return {double(std::log(total)) + double(largest) - double(right), total};
}

// Turns outputs `[count, labels]` into the gradient of the mean cross-entropy by them. Returns the sum of the losses.
template <typename T>
double cross_entropy(T* outputs, int64_t count, int64_t labels, const int64_t* examples, const int64_t* label_of) {
  double sum = 0;
  for (int64_t n = 0; n < count; ++n, outputs += labels) {
    const int64_t label = label_of[examples[n]];
    const auto [loss, total] = exponentials(outputs, labels, label);
    sum += loss;
    for (int64_t j = 0; j < labels; ++j) outputs[j] /= total * T(count);
    outputs[label] -= T(1) / T(count);
  }
  return sum;
}

}  // namespace
