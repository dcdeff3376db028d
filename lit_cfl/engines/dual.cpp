// Trains perceptrons of one hidden layer on full batches, the first layer's weights in dual form; dual.py says why, and
// compiles this file.
//
// What belongs to a hidden unit is a row, so that units are visited a block at a time, whose numbers stay in the caches:
// a visit takes the step of the units' weights, and then computes their share of the outputs for the next step.
#include <ATen/Parallel.h>

#include <optional>
#include <vector>

#include "factors.h"
#include "perceptron.h"

namespace {

// Numbers [units, examples] from which gradients pass where the unit's sum, product and bias, is above 0.
template <typename T>
struct Passed {
  T* data;
  const T *products, *bias;
  int64_t row;
  Passed from(int64_t i, int64_t j) const { return {data + i * row + j, products + i * row + j, bias + i, row}; }
  template <int Bytes>
  void put(int64_t i, int64_t j, typename Simd<T, Bytes>::type gradient) const {
    using S = Simd<T, Bytes>;
    const auto sum = S::load(products + i * row + j) + bias[i];
    S::store(data + i * row + j, sum <= 0 ? typename S::type{} : gradient);
  }
};

// A client's model and its training. `Right` makes right factors, `Exact` or `Halves`.
template <typename Right>
class Client {
  using T = typename Right::Number;
  static constexpr int64_t kUnits = 128;  // of a block: half as many read a right factor twice as often

  struct Scratch {  // of a block, and of a product's left factor
    Room<T> hidden, by_products, product;
    typename Right::Scratch left;
    Scratch(int64_t examples, int64_t inputs)
        : hidden(kUnits * examples),
          by_products(kUnits * examples),
          product(kUnits * std::max(examples, inputs)),
          left(kUnits, std::max(examples, inputs)) {}
  };

 public:
  // inputs [examples, inputs]; labels of the whole pool, and the examples' positions there.
  Client(T* row, const T* center, double prox, const Layer* layers, const T* inputs, const int64_t* labels,
         const int64_t* positions, int64_t examples)
      : row_(row),
        center_(center),
        first_(layers[0]),
        second_(layers[1]),
        count_(examples),
        inputs_(inputs),
        labels_(labels),
        positions_(positions),
        of_weights_(first_.weight_rate, first_.weight_decay, prox),
        of_bias_(first_.bias_rate, first_.bias_decay, prox),
        of_second_(second_.weight_rate, second_.weight_decay + 2 * second_.kernel_l2, prox),
        of_last_(second_.bias_rate, second_.bias_decay, prox),
        products_(first_.outputs * examples),
        sums_(first_.outputs * examples),
        of_center_(center ? first_.outputs * examples : 0),
        shares_(blocks() * second_.outputs * examples),
        by_outputs_(second_.outputs * examples),
        outputs_(second_.outputs * examples) {}

  // Takes so many steps. Returns the sum of their mean losses.
  double train(int64_t steps) {
    const int64_t n = count_, d = first_.inputs;
    const Right turned({inputs_, 1, d}, d, n);
    std::vector<T> gram(n * n);
    Scratch scratch(n, d);
    for (int64_t i = 0; i < n; i += kUnits)
      turned.multiply(std::min(kUnits, n - i), inputs_ + i * d, d, &gram[i * n], scratch.left);
    gram_.emplace(Matrix<const T>{gram.data(), n, 1}, n, n);
    visit([&](int64_t first, int64_t units, Scratch& scratch) {
      const int64_t weight = first_.weight + first * d;
      turned.multiply(units, row_ + weight, d, &products_.data()[first * n], scratch.left);
      if (center_) turned.multiply(units, center_ + weight, d, &of_center_.data()[first * n], scratch.left);
      std::fill_n(&sums_.data()[first * n], units * n, T(0));
      share(first, units, scratch);
    });
    double losses = loss();
    for (int64_t step = 1; step < steps; ++step) {
      visit([&](int64_t first, int64_t units, Scratch& scratch) {
        backward(first, units, scratch);
        move_products(first, units, scratch);
        share(first, units, scratch);
      });
      step_last_bias();
      losses += loss();
    }
    const Right examples({inputs_, d, 1}, n, d);
    visit([&](int64_t first, int64_t units, Scratch& scratch) {
      backward(first, units, scratch);
      put_weights(first, units, steps, examples, scratch);
    });
    step_last_bias();
    return losses;
  }

 private:
  int64_t blocks() const { return (first_.outputs + kUnits - 1) / kUnits; }

  // Calls `work` with the first unit of each block, how many there are, and room.
  template <typename Work>
  void visit(const Work& work) {
    at::parallel_for(0, blocks(), 1, [&](int64_t begin, int64_t end) {
      Scratch scratch(count_, first_.inputs);
      for (int64_t block = begin; block < end; ++block)
        work(block * kUnits, std::min(kUnits, first_.outputs - block * kUnits), scratch);
      Right::release();
    });
  }

  // Computes what units give to the next layer [units, examples].
  void compute_hidden(int64_t first, int64_t units, T* hidden) const {
    for (int64_t j = first; j < first + units; ++j, hidden += count_) {
      const T *products = &products_.data()[j * count_], bias = row_[first_.bias + j];
      for (int64_t i = 0; i < count_; ++i) hidden[i] = products[i] + bias < 0 ? 0 : products[i] + bias;
    }
  }

  // Computes the share of a block in the outputs [outputs, examples].
  void share(int64_t first, int64_t units, Scratch& scratch) {
    compute_hidden(first, units, scratch.hidden.data());
    T* share = &shares_.data()[first / kUnits * second_.outputs * count_];
    outer_columns<T>(second_.outputs, count_, units, {row_ + second_.weight + first, second_.inputs, 1},
                     scratch.hidden.data(), count_, Written<T>{share, count_});
  }

  // Computes the mean loss, and its gradient by the outputs.
  double loss() {
    const int64_t labels = second_.outputs, size = labels * count_;
    T *sums = by_outputs_.data(), *outputs = outputs_.data();
    for (int64_t l = 0; l < labels; ++l) std::fill_n(sums + l * count_, count_, row_[second_.bias + l]);
    for (int64_t block = 0; block < blocks(); ++block)
      for (int64_t k = 0; k < size; ++k) sums[k] += shares_.data()[block * size + k];
    for (int64_t l = 0; l < labels; ++l)
      for (int64_t i = 0; i < count_; ++i) outputs[i * labels + l] = sums[l * count_ + i];
    const double losses = cross_entropy(outputs, count_, labels, positions_, labels_);
    for (int64_t l = 0; l < labels; ++l)
      for (int64_t i = 0; i < count_; ++i) sums[l * count_ + i] = outputs[i * labels + l];
    const double penalty = second_.kernel_l2 ? squares(row_ + second_.weight, second_.inputs * labels) : 0;
    return losses / count_ + second_.kernel_l2 * penalty;
  }

  // Computes the gradient by a block's products into `by_products`, adds it up, and takes the step of the units' biases
  // and of their weights in the next layer.
  void backward(int64_t first, int64_t units, Scratch& scratch) {
    const int64_t labels = second_.outputs;
    T *weights = row_ + second_.weight + first, *by_products = scratch.by_products.data();
    compute_hidden(first, units, scratch.hidden.data());
    const Passed<T> passed{by_products, &products_.data()[first * count_], row_ + first_.bias + first, count_};
    outer_columns<T>(units, count_, labels, {weights, 1, second_.inputs}, by_outputs_.data(), count_, passed);
    T* gradients = scratch.product.data();  // [labels, units]
    dot_rows<T>(labels, units, by_outputs_.data(), count_, scratch.hidden.data(), count_, {gradients, units, 1}, count_);
    for (int64_t l = 0; l < labels; ++l)
      for (int64_t j = 0; j < units; ++j)
        step(of_second_, second_.weight + l * second_.inputs + first + j, gradients[l * units + j]);
    for (int64_t j = 0; j < units; ++j) {
      const T* gradient = by_products + j * count_;
      T* sums = &sums_.data()[(first + j) * count_];
      for (int64_t i = 0; i < count_; ++i) sums[i] = of_weights_.keep * sums[i] + of_weights_.rate * gradient[i];
      step(of_bias_, first_.bias + first + j, T(sum(gradient, count_)));
    }
  }

  // Computes a block's products after the step of the weights.
  void move_products(int64_t first, int64_t units, Scratch& scratch) {
    T *products = &products_.data()[first * count_], *change = scratch.product.data();
    gram_->multiply(units, scratch.by_products.data(), count_, change, scratch.left);
    for (int64_t k = 0; k < units * count_; ++k)
      products[k] = of_weights_.keep * products[k] - of_weights_.rate * change[k];
    if (!center_) return;
    const T* of_center = &of_center_.data()[first * count_];
    for (int64_t k = 0; k < units * count_; ++k) products[k] += of_weights_.pull * of_center[k];
  }

  // Computes a block's weights: what so many steps have left of the first ones, the centre's share, the examples'.
  void put_weights(int64_t first, int64_t units, int64_t steps, const Right& examples, Scratch& scratch) {
    const int64_t d = first_.inputs, weight = first_.weight + first * d;
    T *weights = row_ + weight, *change = scratch.product.data(), kept = 1, pulled = 0;
    for (int64_t step = 0; step < steps; ++step) {
      kept *= of_weights_.keep;
      pulled = of_weights_.keep * pulled + of_weights_.pull;
    }
    examples.multiply(units, &sums_.data()[first * count_], count_, change, scratch.left);
    for (int64_t k = 0; k < units * d; ++k) weights[k] = kept * weights[k] - change[k];
    if (!center_) return;
    for (int64_t k = 0; k < units * d; ++k) weights[k] += pulled * center_[weight + k];
  }

  void step_last_bias() {
    for (int64_t l = 0; l < second_.outputs; ++l)
      step(of_last_, second_.bias + l, T(sum(&by_outputs_.data()[l * count_], count_)));
  }

  // Takes the step of one parameter.
  void step(const Rule<T>& rule, int64_t at, T gradient) {
    row_[at] = rule.keep * row_[at] - rule.rate * gradient + (center_ ? rule.pull * center_[at] : 0);
  }

  T* row_;
  const T* center_;  // null = no proximal term
  const Layer first_, second_;
  const int64_t count_;
  const T* inputs_;
  const int64_t *labels_, *positions_;
  const Rule<T> of_weights_, of_bias_, of_second_, of_last_;
  std::optional<Right> gram_;  // [examples, examples]
  Room<T> products_, sums_, of_center_;  // [units, examples]: W x, gradients times the rate, C x
  Room<T> shares_;                      // [blocks, outputs, examples]
  Room<T> by_outputs_, outputs_;        // [outputs, examples], [examples, outputs]
};

}  // namespace

// Trains a client: its row changes in place. Returns the sum of the steps' mean losses.
//
// layers: two; inputs [examples, inputs]; labels of the whole pool; positions [examples] there.
#define TRAIN(name, Right, T)                                                                                   \
  extern "C" double name(T* row, const T* center, double prox, const Layer* layers, const T* inputs,            \
                         const int64_t* labels, const int64_t* positions, int64_t examples, int64_t steps) {    \
    return Client<Right>(row, center, prox, layers, inputs, labels, positions, examples).train(steps);          \
  }
TRAIN(train_float, Exact<float>, float)
TRAIN(train_double, Exact<double>, double)
TRAIN(train_halves, Halves, float)
