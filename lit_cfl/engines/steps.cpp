// Trains clients of small chains of fully connected layers, one after the other, each in all its steps: plain SGD,
// cross-entropy, float32. compiled.py says when and why, and has the same structs. No client's numbers enter another's.
// Also draws the orders of all clients' mini-batches, for permutations.py.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace {

// Vectors, and the tiles of a product. A tile's sums and one row of its right matrix fit into the vector registers.
#if defined(__AVX512F__)
constexpr int64_t kWidth = 16, kRows = 5, kVectors = 4, kDots = 5;
#elif defined(__AVX2__)
constexpr int64_t kWidth = 8, kRows = 4, kVectors = 2, kDots = 3;
#else
constexpr int64_t kWidth = 4, kRows = 4, kVectors = 2, kDots = 3;
#endif
constexpr int64_t kPadded = 16;  // numbers: the rows of all matrices are filled up with zeros to a multiple of it
typedef float Vector __attribute__((vector_size(4 * kWidth)));

Vector load(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <int64_t N>
float total(const float* numbers) {
  float halves[N / 2];
  for (int64_t k = 0; k < N / 2; ++k) halves[k] = numbers[k] + numbers[k + N / 2];
  if constexpr (N == 2) return halves[0];
  else return total<N / 2>(halves);
}

// A matrix whose rows are those of `index`, or as they are. Entry (i, k) is k columns behind the beginning of row i.
struct View {
  const float* data;
  int64_t row, column = 1;
  const int64_t* index = nullptr;
  const float* operator[](int64_t i) const { return data + (index ? index[i] : i) * row; }
};

// A matrix of its own memory, 0 at first.
struct Matrix {
  int64_t rows, columns, row, size;  // `row`: numbers from row to row
  std::unique_ptr<float, decltype(&std::free)> data{nullptr, &std::free};
  Matrix(int64_t rows, int64_t columns)
      : rows(rows), columns(columns), row((columns + kPadded - 1) / kPadded * kPadded), size(rows * row) {
    data.reset(static_cast<float*>(std::aligned_alloc(64, std::max<int64_t>(64, size * sizeof(float)))));
    clear(rows);
  }
  float* operator[](int64_t i) const { return data.get() + i * row; }
  View view() const { return {data.get(), row}; }
  View transposed() const { return {data.get(), 1, row}; }
  void clear(int64_t count) const { std::fill_n(data.get(), count * row, 0.0f); }
  void read(const float* from) const {
    clear(rows);  // also behind the columns, where 0 times NaN of the client before may be
    for (int64_t i = 0; i < rows; ++i) std::copy_n(from + i * columns, columns, (*this)[i]);
  }
  void write(float* to) const {
    for (int64_t i = 0; i < rows; ++i) std::copy_n((*this)[i], columns, to + i * columns);
  }
};

// C = A B^T, from rows of A and B.
void dot(const View& a, int64_t rows, const View& b, int64_t columns, int64_t depth, const Matrix& c) {
  for (int64_t j = 0; j < columns; j += kDots)
    for (int64_t i = 0; i < rows; i += kDots) {
      const float *left[kDots], *right[kDots];
      for (int64_t k = 0; k < kDots; ++k) left[k] = a[std::min(i + k, rows - 1)];
      for (int64_t k = 0; k < kDots; ++k) right[k] = b[std::min(j + k, columns - 1)];
      Vector sum[kDots][kDots] = {};
      for (int64_t k = 0; k < depth; k += kWidth) {
        Vector v[kDots];
#pragma GCC unroll 8
        for (int64_t n = 0; n < kDots; ++n) v[n] = load(right[n] + k);
#pragma GCC unroll 8
        for (int64_t r = 0; r < kDots; ++r) {
          const Vector u = load(left[r] + k);
#pragma GCC unroll 8
          for (int64_t n = 0; n < kDots; ++n) sum[r][n] += u * v[n];
        }
      }
      for (int64_t r = 0; r < kDots && i + r < rows; ++r)
        for (int64_t n = 0; n < kDots && j + n < columns; ++n)
          c[i + r][j + n] = total<kWidth>(reinterpret_cast<const float*>(&sum[r][n]));
    }
}

struct Rule {  // of updates.py
  float rate, shrink, pull;
};

// Some columns of `add_product`: V vectors of them.
template <int64_t V>
void add_columns(const View& a, int64_t rows, const View& b, int64_t depth, const Matrix& c, const Matrix* center,
                 const Rule& rule, int64_t from) {
  for (int64_t i = 0; i < rows; i += kRows) {
    const float* left[kRows];
    for (int64_t r = 0; r < kRows; ++r) left[r] = a[std::min(i + r, rows - 1)];
    Vector sum[kRows][V] = {};
    for (int64_t k = 0; k < depth; ++k) {
      const float* right = b[k] + from;
      Vector v[V];
#pragma GCC unroll 8
      for (int64_t n = 0; n < V; ++n) v[n] = load(right + n * kWidth);
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int64_t n = 0; n < V; ++n) sum[r][n] += left[r][k * a.column] * v[n];
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r)
      if (i + r < rows)
#pragma GCC unroll 8
        for (int64_t n = 0; n < V; ++n) {
          const int64_t at = from + n * kWidth;
          Vector after = -rule.rate * sum[r][n];
          if (rule.shrink != 0) after += rule.shrink * load(c[i + r] + at);  // 0 NaN, of a client before, is NaN
          if (center) after += rule.pull * load((*center)[i + r] + at);
          std::memcpy(c[i + r] + at, &after, sizeof after);
        }
  }
}

// C = shrink C - rate A B + pull center, from rows of B, which are as long as those of C.
void add_product(const View& a, int64_t rows, const View& b, int64_t depth, const Matrix& c, const Matrix* center,
                 const Rule& rule) {
  int64_t from = 0;
  for (; from + kVectors * kWidth <= c.row; from += kVectors * kWidth)
    add_columns<kVectors>(a, rows, b, depth, c, center, rule, from);
  for (; from < c.row; from += kWidth) add_columns<1>(a, rows, b, depth, c, center, rule, from);
}

struct Layer {
  int64_t inputs, outputs, weight, bias, relu;  // weight, bias: where they are in a model; -1 = not trained
  const float *fixed_weight, *fixed_bias;       // where they are not trained; null = there is none
  Rule weight_rule, bias_rule;
  double penalty;
};

struct Work {  // of CohortFit, for some of its clients
  const Layer* layers;
  int64_t num_layers, columns, clients;
  float offset, scale;  // of bytes
  const float* models;
  const int64_t* start;
  const float* centers;  // null = no proximal term
  const int64_t* center;
  const float* inputs;   // [examples, inputs], rows filled up with zeros to a multiple of kPadded; null = bytes
  const uint8_t* bytes;  // [examples, inputs]
  const int64_t *labels, *sizes, *steps, *dual, *drawn, *begins, *counts;
  float* rows;
  double* losses;
};

// A layer of the client that trains, and what it computes of a mini-batch.
struct Held {
  const Layer& layer;
  Matrix weight, bias, weight_center, bias_center, outputs, slopes;
  Held(const Layer& layer, int64_t widest)
      : layer(layer), weight(layer.outputs, layer.inputs), bias(1, layer.outputs),
        weight_center(layer.outputs, layer.inputs), bias_center(1, layer.outputs), outputs(widest, layer.outputs),
        slopes(widest, layer.outputs) {}

  void begin(const float* model, const float* center) {
    outputs.clear(outputs.rows);
    if (layer.weight >= 0) weight.read(model + layer.weight);
    else if (layer.fixed_weight) weight.read(layer.fixed_weight);
    if (layer.bias >= 0) bias.read(model + layer.bias);
    else if (layer.fixed_bias) bias.read(layer.fixed_bias);
    if (center && layer.weight >= 0) weight_center.read(center + layer.weight);
    if (center && layer.bias >= 0) bias_center.read(center + layer.bias);
  }

  double penalty() const {
    float squares[kPadded] = {};
    for (int64_t i = 0; i < weight.size; i += kPadded)
      for (int64_t k = 0; k < kPadded; ++k) squares[k] += weight[0][i + k] * weight[0][i + k];
    return layer.penalty * total<kPadded>(squares);
  }

  // Turns products with the weight into outputs.
  void complete(int64_t count) const {
    for (int64_t n = 0; n < count; ++n)
      for (int64_t j = 0; j < layer.outputs; ++j) {
        const float sum = outputs[n][j] + bias[0][j];
        outputs[n][j] = layer.relu && sum <= 0 ? 0 : sum;
      }
  }

  // Turns the gradient by outputs into that by products with the weight, and updates the bias.
  void receive(int64_t count) const {
    for (int64_t k = 0; layer.relu && k < count * slopes.row; ++k)
      slopes[0][k] = outputs[0][k] <= 0 ? 0 : slopes[0][k];
    for (int64_t j = 0; layer.bias >= 0 && j < layer.outputs; ++j) {
      float slope = 0, &number = bias[0][j];
      for (int64_t n = 0; n < count; ++n) slope += slopes[n][j];
      const Rule& rule = layer.bias_rule;
      number = rule.shrink * number - rule.rate * slope + rule.pull * bias_center[0][j];
    }
  }

  // Computes the gradient of the mean cross-entropy by the outputs. Returns the sum of the losses.
  double cross_entropy(int64_t count, const int64_t* examples, const int64_t* labels) const {
    double sum = 0;
    for (int64_t n = 0; n < count; ++n) {
      const float *found = outputs[n], largest = *std::max_element(found, found + layer.outputs), share = 1.0f / count;
      const int64_t label = labels[examples[n]];
      float total = 0;
      for (int64_t j = 0; j < layer.outputs; ++j) total += slopes[n][j] = std::exp(found[j] - largest);
      for (int64_t j = 0; j < layer.outputs; ++j) slopes[n][j] *= share / total;
      slopes[n][label] -= share;
      sum += double(std::log(total)) + double(largest) - double(found[label]);
    }
    return sum;
  }
};

// The first layer of the client that trains, in dual form: see inputs.py.
struct Dual {
  const Held& first;
  Matrix gram, products, pulls, sums;
  View examples{};
  int64_t size = 0;
  double left = 1, pulled = 0;
  Dual(const Held& first, int64_t most)
      : first(first), gram(most, most), products(most, first.layer.outputs), pulls(most, first.layer.outputs),
        sums(most, first.layer.outputs) {}

  void begin(const View& own, int64_t count, bool centers) {
    examples = own, size = count, left = 1, pulled = 0;
    const int64_t depth = first.weight.row;
    dot(own, size, own, size, depth, gram);
    dot(own, size, first.weight.view(), first.layer.outputs, depth, products);
    if (centers) dot(own, size, first.weight_center.view(), first.layer.outputs, depth, pulls);
    sums.clear(size);
  }

  void forward(int64_t count, const int64_t* batch) const {
    for (int64_t n = 0; n < count; ++n)
      for (int64_t j = 0; j < sums.row; ++j)
        first.outputs[n][j] = float(left) * products[batch[n]][j] + float(pulled) * pulls[batch[n]][j];
    add_product({gram[0], gram.row, 1, batch}, count, sums.view(), size, first.outputs, nullptr, {1, 1, 0});
  }

  void take(int64_t count, const int64_t* batch) {
    const Rule& rule = first.layer.weight_rule;
    left *= rule.shrink, pulled = rule.shrink * pulled + rule.pull;
    for (int64_t k = 0; rule.shrink != 1 && k < size * sums.row; ++k) sums[0][k] *= rule.shrink;
    for (int64_t n = 0; n < count; ++n)
      for (int64_t j = 0; j < sums.row; ++j) sums[batch[n]][j] += rule.rate * first.slopes[n][j];
  }

  void end(const Matrix* center) const {
    const Rule rule{1, float(left), float(pulled)};
    add_product(sums.transposed(), first.layer.outputs, examples, size, first.weight, center, rule);
  }
};

// Takes a step on a mini-batch, given by positions among a client's own examples. Returns the sum of its losses.
double take_step(const std::vector<Held>& layers, Dual* dual, const View& own, const int64_t* labels, int64_t count,
                 const int64_t* batch, bool centers) {
  const View inputs{own.data, own.row, 1, batch};
  double penalty = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    const Held& held = layers[l];
    if (held.layer.penalty) penalty += held.penalty();
    if (!l && dual) dual->forward(count, batch);
    else dot(l ? layers[l - 1].outputs.view() : inputs, count, held.weight.view(), held.layer.outputs,
             held.weight.row, held.outputs);
    held.complete(count);
  }
  const double losses = layers.back().cross_entropy(count, batch, labels) + count * penalty;
  for (size_t l = layers.size(); l-- > 0;) {
    const Held& held = layers[l];
    held.receive(count);
    if (l) add_product(held.slopes.view(), count, held.weight.view(), held.layer.outputs, layers[l - 1].slopes,
                       nullptr, {-1, 0, 0});
    if (!l && dual)
      dual->take(count, batch);
    else if (held.layer.weight >= 0)
      add_product(held.slopes.transposed(), held.layer.outputs, l ? layers[l - 1].outputs.view() : inputs, count,
                  held.weight, centers ? &held.weight_center : nullptr, held.layer.weight_rule);
  }
  return losses;
}

// Converts a client's bytes to floats, with the roundings of `Decoding`.
View decode(const Work& work, int64_t example, int64_t count, const Matrix& to) {
  const uint8_t* from = work.bytes + example * to.columns;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t k = 0; k < to.columns; ++k)
      to[i][k] = (float(from[i * to.columns + k]) - work.offset) * work.scale;
  return to.view();
}

}  // namespace

extern "C" const char* source() { return SOURCE; }

// Writes the clients' trained models, and the sum of the losses of all examples that each has seen.
extern "C" void train(const Work* work) {
  const int64_t clients = work->clients;
  int64_t all_steps = 0, most = 0, largest = 0;
  for (int64_t i = 0; i < clients; ++i) {
    all_steps += work->steps[i];
    if (work->dual[i]) most = std::max(most, work->sizes[i]);
    if (work->bytes) largest = std::max(largest, work->sizes[i]);
  }
  std::vector<Held> layers;
  for (int64_t l = 0; l < work->num_layers; ++l)
    layers.emplace_back(work->layers[l], *std::max_element(work->counts, work->counts + all_steps));
  Dual dual(layers[0], most);
  const Matrix floats(largest, work->layers[0].inputs);
  int64_t example = 0, step = 0;
  for (int64_t i = 0; i < clients; ++i) {
    const float* center = work->centers ? work->centers + work->center[i] * work->columns : nullptr;
    for (Held& held : layers) held.begin(work->models + work->start[i] * work->columns, center);
    const int64_t row = layers[0].weight.row;
    const View given{work->inputs + example * row, row};
    const View own = work->bytes ? decode(*work, example, work->sizes[i], floats) : given;
    if (work->dual[i]) dual.begin(own, work->sizes[i], center);
    double losses = 0;
    for (const int64_t end = step + work->steps[i]; step < end; ++step)
      losses += take_step(layers, work->dual[i] ? &dual : nullptr, own, work->labels + example, work->counts[step],
                          work->drawn + work->begins[step], center);
    if (work->dual[i]) dual.end(center ? &layers[0].weight_center : nullptr);
    for (const Held& held : layers) {
      if (held.layer.weight >= 0) held.weight.write(work->rows + i * work->columns + held.layer.weight);
      if (held.layer.bias >= 0) held.bias.write(work->rows + i * work->columns + held.layer.bias);
    }
    work->losses[i] = losses;
    example += work->sizes[i];
  }
}

// Writes each client's permutations of 0 to sizes - 1, drawn as `torch.randperm` does with a generator of its seed.
extern "C" void permute(int64_t clients, const int64_t* seeds, const int64_t* sizes, const int64_t* counts,
                        int64_t* drawn) {
  for (int64_t i = 0; i < clients; ++i) {
    std::mt19937 bits(static_cast<uint32_t>(seeds[i]));
    const uint32_t size = sizes[i];
    for (int64_t k = 0; k < counts[i]; ++k, drawn += size) {
      for (uint32_t j = 0; j < size; ++j) drawn[j] = j;
      for (uint32_t j = 0; j + 1 < size; ++j) std::swap(drawn[j], drawn[j + bits() % (size - j)]);
    }
  }
}
