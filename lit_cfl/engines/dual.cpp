// Trains perceptrons of one hidden layer with the first layer's weights in dual form; dual.py says why, and compiles this
// file.
//
// What belongs to a hidden unit is a row, so that units are visited a block at a time, whose numbers stay in the caches:
// a visit takes the step of the units' weights, and then computes their share of the outputs for the next mini-batch.
#include <ATen/Parallel.h>

#include <new>
#include <optional>
#include <vector>

#include "factors.h"
#include "perceptron.h"

namespace {

// Gradients [units, examples], which pass where the unit's value is above 0.
template <typename T>
struct Passed {
  T* data;
  int64_t row;
  const T* values;
  int64_t value_row;
  Passed from(int64_t i, int64_t j) const { return {data + i * row + j, row, values + i * value_row + j, value_row}; }
  template <int Bytes>
  void put(int64_t i, int64_t j, typename Simd<T, Bytes>::type gradient) const {
    using S = Simd<T, Bytes>;
    S::store(data + i * row + j, S::load(values + i * value_row + j) <= 0 ? typename S::type{} : gradient);
  }
};

// A mini-batch: ascending positions among the client's examples.
struct Batch {
  const int64_t* positions;
  int64_t count;
  bool whole;  // whether it is all examples, in their order

  Batch(const int64_t* row, int64_t width, int64_t examples)
      : positions(row), count(std::find(row, row + width, -1) - row), whole(count == examples) {
    for (int64_t i = 0; i < count && whole; ++i) whole = row[i] == i;
  }
  bool operator==(const Batch& other) const {
    return std::equal(positions, positions + count, other.positions, other.positions + other.count);
  }

  // Calls `work` with the place of each example in the batch, and its position among the client's.
  template <typename Work>
  void each(const Work& work) const {
    if (whole)
      for (int64_t i = 0; i < count; ++i) work(i, i);
    else
      for (int64_t i = 0; i < count; ++i) work(i, positions[i]);
  }
};

// A client's model and its training. `Right` makes right factors, `Exact` or `Halves`.
template <typename Right>
class Client {
  using T = typename Right::Number;
  static constexpr int64_t kUnits = 128;  // of a block: half as many would read a right factor twice as often

  struct Scratch {  // of a block, whose rows are of examples, a batch, inputs or labels, and of a product's left factor
    Room<T> gradients, product;
    typename Right::Scratch left;
    explicit Scratch(int64_t widest) : gradients(kUnits * widest), product(kUnits * widest), left(kUnits, widest) {}
  };

 public:
  // inputs [examples, inputs]; labels [examples]; widest: most examples of a mini-batch.
  Client(T* row, const T* center, double prox, const Layer* layers, const T* inputs, const int64_t* labels,
         int64_t examples, int64_t widest)
      : row_(row),
        center_(center),
        first_(layers[0]),
        second_(layers[1]),
        examples_(examples),
        widest_(widest),
        inputs_(inputs),
        labels_(labels),
        of_weights_(first_.weight_rate, first_.weight_decay, prox),
        of_bias_(first_.bias_rate, first_.bias_decay, prox),
        of_second_(second_.weight_rate, second_.weight_decay + 2 * second_.kernel_l2, prox),
        of_last_(second_.bias_rate, second_.bias_decay, prox),
        of_first_weights_(first_.outputs * examples),
        of_center_(center ? first_.outputs * examples : 0),
        sums_(first_.outputs * examples),
        values_(first_.outputs * widest),
        shares_(blocks() * second_.outputs * widest),
        by_outputs_(second_.outputs * widest),
        outputs_(second_.outputs * widest) {}

  // Trains on mini-batches [steps, widest]. Returns the sum of the losses of all examples seen.
  double train(const int64_t* table, int64_t steps) {
    const int64_t n = examples_, d = first_.inputs;
    const Right turned({inputs_, 1, d}, d, n);
    std::vector<T> gram(n * n);
    Scratch scratch(width());
    for (int64_t i = 0; i < n; i += kUnits)
      turned.multiply(std::min(kUnits, n - i), inputs_ + i * d, d, &gram[i * n], scratch.left);
    Batch batch(table, widest_, n);
    visit([&](int64_t first, int64_t units, Scratch& scratch) {
      begin(first, units, turned, scratch);
      forward(first, units, batch, scratch);
    });
    const Right examples({inputs_, d, 1}, n, d);
    std::optional<Right> to_batch;  // columns of the Gram matrix
    double losses = loss(batch);
    for (int64_t step = 1; step <= steps; ++step) {
      kept_ *= of_weights_.keep;
      pulled_ = of_weights_.keep * pulled_ + of_weights_.pull;
      const bool last = step == steps;
      const Batch next = last ? batch : Batch(table + step * widest_, widest_, n);
      if (!last && !(to_batch && next == batch)) to_batch.emplace(columns(gram, next));
      visit([&](int64_t first, int64_t units, Scratch& scratch) {
        backward(first, units, batch, scratch);
        if (last)
          put_weights(first, units, examples, scratch);
        else
          forward(first, units, next, scratch, &*to_batch);
      });
      for (int64_t l = 0; l < second_.outputs; ++l)
        take_step(of_last_, second_.bias + l, T(sum(&by_outputs_.data()[l * batch.count], batch.count)));
      batch = next;
      if (!last) losses += loss(batch);
    }
    return losses;
  }

 private:
  int64_t width() const { return std::max({examples_, widest_, first_.inputs, second_.outputs}); }
  int64_t blocks() const { return (first_.outputs + kUnits - 1) / kUnits; }

  // Calls `work` with the first unit of each block, how many there are, and room.
  template <typename Work>
  void visit(const Work& work) {
    at::parallel_for(0, blocks(), 1, [&](int64_t begin, int64_t end) {
      Scratch scratch(width());
      for (int64_t block = begin; block < end; ++block)
        work(block * kUnits, std::min(kUnits, first_.outputs - block * kUnits), scratch);
      Right::release();
    });
  }

  // Copies a batch's columns of the Gram matrix into a right factor.
  Right columns(const std::vector<T>& gram, const Batch& batch) const {
    std::vector<T> chosen(examples_ * batch.count);
    for (int64_t k = 0; k < examples_; ++k)
      batch.each([&](int64_t i, int64_t at) { chosen[k * batch.count + i] = gram[k * examples_ + at]; });
    return Right({chosen.data(), batch.count, 1}, examples_, batch.count);
  }

  // Computes a block's products with the first weights and with the centre.
  void begin(int64_t first, int64_t units, const Right& turned, Scratch& scratch) {
    const int64_t d = first_.inputs, weight = first_.weight + first * d, at = first * examples_;
    turned.multiply(units, row_ + weight, d, &of_first_weights_.data()[at], scratch.left);
    if (center_) turned.multiply(units, center_ + weight, d, &of_center_.data()[at], scratch.left);
    std::fill_n(&sums_.data()[at], units * examples_, T(0));
  }

  // Computes a block's values for a batch, and its share of the outputs [outputs, examples].
  void forward(int64_t first, int64_t units, const Batch& batch, Scratch& scratch, const Right* to_batch = nullptr) {
    const int64_t at = first * examples_;
    T *change = scratch.product.data(), *values = &values_.data()[first * widest_];
    if (to_batch) to_batch->multiply(units, &sums_.data()[at], examples_, change, scratch.left);
    for (int64_t j = 0; j < units; ++j) {
      const T *own = &of_first_weights_.data()[at + j * examples_], bias = row_[first_.bias + first + j];
      const T *of_center = &of_center_.data()[at + j * examples_], *changed = change + j * batch.count;
      T* unit = values + j * widest_;
      batch.each([&](int64_t i, int64_t from) { unit[i] = kept_ * own[from] + bias; });
      if (center_) batch.each([&](int64_t i, int64_t from) { unit[i] += pulled_ * of_center[from]; });
      if (to_batch)
        for (int64_t i = 0; i < batch.count; ++i) unit[i] -= changed[i];
      for (int64_t i = 0; i < batch.count; ++i) unit[i] = unit[i] < 0 ? 0 : unit[i];
    }
    T* share = &shares_.data()[first / kUnits * second_.outputs * widest_];
    outer_columns<T>(second_.outputs, batch.count, units, {row_ + second_.weight + first, second_.inputs, 1}, values,
                     widest_, Written<T>{share, batch.count});
  }

  // Returns the sum of a batch's losses, and computes the gradient of their mean by the outputs.
  double loss(const Batch& batch) {
    const int64_t labels = second_.outputs, count = batch.count;
    T *sums = by_outputs_.data(), *outputs = outputs_.data();
    for (int64_t l = 0; l < labels; ++l) std::fill_n(sums + l * count, count, row_[second_.bias + l]);
    for (int64_t block = 0; block < blocks(); ++block)
      for (int64_t k = 0; k < labels * count; ++k) sums[k] += shares_.data()[block * labels * widest_ + k];
    for (int64_t l = 0; l < labels; ++l)
      for (int64_t i = 0; i < count; ++i) outputs[i * labels + l] = sums[l * count + i];
    const double losses = cross_entropy(outputs, count, labels, batch.positions, labels_);
    for (int64_t l = 0; l < labels; ++l)
      for (int64_t i = 0; i < count; ++i) sums[l * count + i] = outputs[i * labels + l];
    return losses + (second_.kernel_l2 ? count * second_.kernel_l2 * squares(row_ + second_.weight, second_.inputs * labels) : 0);
  }

  // Adds up the gradient by a block's products, and takes the step of the units' biases and of their weights in the next
  // layer.
  void backward(int64_t first, int64_t units, const Batch& batch, Scratch& scratch) {
    const int64_t labels = second_.outputs, count = batch.count;
    const T* values = &values_.data()[first * widest_];
    T *weights = row_ + second_.weight + first, *gradients = scratch.gradients.data(), *by_weights = scratch.product.data();
    outer_columns<T>(units, count, labels, {weights, 1, second_.inputs}, by_outputs_.data(), count,
                     Passed<T>{gradients, count, values, widest_});
    dot_rows<T>(labels, units, by_outputs_.data(), count, values, widest_, {by_weights, units, 1}, count);
    for (int64_t l = 0; l < labels; ++l)
      for (int64_t j = 0; j < units; ++j)
        take_step(of_second_, second_.weight + l * second_.inputs + first + j, by_weights[l * units + j]);
    for (int64_t j = 0; j < units; ++j, gradients += count) {
      T* sums = &sums_.data()[(first + j) * examples_];
      if (of_weights_.keep != 1)
        for (int64_t i = 0; i < examples_; ++i) sums[i] *= of_weights_.keep;
      batch.each([&](int64_t i, int64_t to) { sums[to] += of_weights_.rate * gradients[i]; });
      take_step(of_bias_, first_.bias + first + j, T(sum(gradients, count)));
    }
  }

  // Computes a block's weights: what the steps have left of the first ones, the centre's share, the examples'.
  void put_weights(int64_t first, int64_t units, const Right& examples, Scratch& scratch) {
    const int64_t size = units * first_.inputs, weight = first_.weight + first * first_.inputs;
    T *weights = row_ + weight, *change = scratch.product.data();
    examples.multiply(units, &sums_.data()[first * examples_], examples_, change, scratch.left);
    for (int64_t k = 0; k < size; ++k) weights[k] = kept_ * weights[k] - change[k];
    if (!center_) return;
    for (int64_t k = 0; k < size; ++k) weights[k] += pulled_ * center_[weight + k];
  }

  // Takes the step of one parameter.
  void take_step(const Rule<T>& rule, int64_t at, T gradient) {
    row_[at] = rule.keep * row_[at] - rule.rate * gradient + (center_ ? rule.pull * center_[at] : 0);
  }

  T* row_;
  const T* center_;  // null = no proximal term
  const Layer first_, second_;
  const int64_t examples_, widest_;
  const T* inputs_;
  const int64_t* labels_;
  const Rule<T> of_weights_, of_bias_, of_second_, of_last_;
  T kept_ = 1, pulled_ = 0;                     // shares of the first weights and of the centre in today's
  Room<T> of_first_weights_, of_center_, sums_;  // [units, examples]: W_0 x, C x, gradients times the rate
  Room<T> values_;                              // [units, widest]: what units give to the next layer
  Room<T> shares_;                              // [blocks, outputs, widest]
  Room<T> by_outputs_, outputs_;                // [outputs, count], [count, outputs]
};

}  // namespace

// Trains a client: its row changes in place. Writes the sum of the losses of all examples seen, and returns whether there
// was memory enough.
//
// layers: two; inputs [examples, inputs]; labels [examples]; table [steps, widest]: ascending positions, then -1.
#define TRAIN(name, Right, T)                                                                                       \
  extern "C" bool name(T* row, const T* center, double prox, const Layer* layers, const T* inputs,                  \
                       const int64_t* labels, int64_t examples, const int64_t* table, int64_t steps, int64_t widest, \
                       double* losses) {                                                                            \
    try {                                                                                                           \
      *losses = Client<Right>(row, center, prox, layers, inputs, labels, examples, widest).train(table, steps);     \
      return true;                                                                                                  \
    } catch (const std::bad_alloc&) {                                                                               \
      return false;                                                                                                 \
    }                                                                                                               \
  }
TRAIN(train_float, Exact<float>, float)
TRAIN(train_double, Exact<double>, double)
TRAIN(train_halves, Halves, float)

// Says whether the processor multiplies bfloat16 faster than float32.
extern "C" bool has_halves() { return at::native::cpublas::could_pack(at::kBFloat16); }
