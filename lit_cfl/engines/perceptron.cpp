// Trains and scores perceptrons; perceptron.py says why, and compiles this file.
#include <algorithm>
#include <vector>

#include "perceptron.h"

namespace {

// A matrix of weights, from which gradients are taken as they are computed.
template <typename T>
struct Updated {
  T* weight;
  const T* center;  // null = no proximal term
  int64_t row;
  Rule<T> rule;
  Updated from(int64_t i, int64_t j) const {
    return {weight + i * row + j, center ? center + i * row + j : nullptr, row, rule};
  }
  template <int Bytes>
  void put(int64_t i, int64_t j, typename Simd<T, Bytes>::type gradient) const {
    using S = Simd<T, Bytes>;
    T* at = weight + i * row + j;
    auto after = rule.keep * S::load(at) - rule.rate * gradient;
    if (center) after += rule.pull * S::load(center + i * row + j);
    S::store(at, after);
  }
};

// The layers of a net, and room for what it computes of at most `batch` examples.
template <typename T>
struct Net {
  const std::vector<Layer> layers;
  std::vector<std::vector<T>> values;  // the layers' inputs, then the outputs, each [batch, width]

  Net(const Layer* first, int64_t count, int64_t batch) : layers(first, first + count) {
    for (const Layer& layer : layers) values.emplace_back(batch * layer.inputs);
    values.emplace_back(batch * layers.back().outputs);
  }

  // Computes the outputs of a model, from the inputs of the first layer.
  void forward(const T* row, int64_t count) {
    for (int64_t l = 0; l < int64_t(layers.size()); ++l) forward(row, l, count);
  }

  // Computes the inputs of the next layer, or the net's outputs.
  void forward(const T* row, int64_t number, int64_t count) {
    const Layer& layer = layers[number];
    T* outputs = values[number + 1].data();
    dot_rows<T>(layer.outputs, count, row + layer.weight, layer.inputs, values[number].data(), layer.inputs,
                {outputs, 1, layer.outputs}, layer.inputs);
    const T* bias = row + layer.bias;
    const bool last = number + 1 == int64_t(layers.size());
    for (int64_t n = 0; n < count; ++n, outputs += layer.outputs)
      for (int64_t j = 0; j < layer.outputs; ++j) {
        const T sum = outputs[j] + bias[j];
        outputs[j] = !last && sum < 0 ? 0 : sum;
      }
  }
};

// A client's model and its training.
template <typename T>
struct Client {
  T* row;
  const T* center;
  double prox;
  Net<T> net;
  std::vector<std::vector<T>> gradients;  // by the net's values

  Client(T* row, const T* center, double prox, const Layer* first, int64_t count, int64_t batch)
      : row(row), center(center), prox(prox), net(first, count, batch), gradients(net.values) {}

  // Computes the gradient by the layer's inputs, unless they are the net's own, and takes the step of its parameters.
  void backward(int64_t number, int64_t count) {
    const Layer& layer = net.layers[number];
    const T* by_outputs = gradients[number + 1].data();
    const int64_t inputs = layer.inputs, outputs = layer.outputs;
    if (number) {
      T* by_inputs = gradients[number].data();
      outer_columns<T>(count, inputs, outputs, {by_outputs, outputs, 1}, row + layer.weight, inputs,
                       Written<T>{by_inputs, inputs});
      const T* given = net.values[number].data();
      for (int64_t k = 0; k < count * inputs; ++k) by_inputs[k] = given[k] <= 0 ? 0 : by_inputs[k];
    }
    const Rule<T> rule(layer.weight_rate, layer.weight_decay + 2 * layer.kernel_l2, prox);
    const Updated<T> weights{row + layer.weight, center ? center + layer.weight : nullptr, inputs, rule};
    outer_columns<T>(outputs, inputs, count, {by_outputs, 1, outputs}, net.values[number].data(), inputs, weights);
    const Rule<T> of_bias(layer.bias_rate, layer.bias_decay, prox);
    for (int64_t j = 0; j < outputs; ++j) {
      T gradient = 0;
      for (int64_t n = 0; n < count; ++n) gradient += by_outputs[n * outputs + j];
      T& bias = row[layer.bias + j];
      bias = of_bias.keep * bias - of_bias.rate * gradient + (center ? of_bias.pull * center[layer.bias + j] : 0);
    }
  }

  // Takes a step on a mini-batch. Returns the sum of its losses, each with the penalty.
  double step(const T* pool, const int64_t* labels, const int64_t* examples, int64_t count) {
    const int64_t width = net.layers[0].inputs, number = net.layers.size();
    for (int64_t n = 0; n < count; ++n) std::copy_n(pool + examples[n] * width, width, &net.values[0][n * width]);
    double penalty = 0;
    for (const Layer& layer : net.layers)
      if (layer.kernel_l2) penalty += layer.kernel_l2 * squares(row + layer.weight, layer.inputs * layer.outputs);
    net.forward(row, count);
    gradients[number].swap(net.values[number]);
    const double sum = cross_entropy(gradients[number].data(), count, net.layers.back().outputs, examples, labels);
    for (int64_t l = number - 1; l >= 0; --l) backward(l, count);
    return sum + count * penalty;
  }
};

template <typename T>
double train(T* row, const T* center, double prox, const Layer* layers, int64_t num_layers, const T* pool,
             const int64_t* labels, const int64_t* table, int64_t steps, int64_t batch) {
  Client<T> client(row, center, prox, layers, num_layers, batch);
  double sum = 0;
  for (int64_t k = 0; k < steps; ++k, table += batch)  // those that are there come first; -1 = no example
    if (const int64_t count = std::find(table, table + batch, -1) - table)
      sum += client.step(pool, labels, table, count);
  return sum;
}

// Examples to score, and the models to score them with. `_Scoring` in perceptron_scorer.py is the same.
template <typename T>
struct Scoring {
  const T* models;  // [K, columns]
  int64_t num_models, columns;
  const Layer* layers;
  int64_t num_layers;
  const void* pool;  // [N, inputs], of bytes or of T
  int64_t bytes;     // whether it is of bytes
  const T *offset, *scale;     // [inputs] or null: x becomes (x - offset) scale, and then is rotated
  const int32_t* positions;    // [views, inputs]: the position in the pool's example from which an input comes
  const int64_t *example, *view, *label;  // of each of the `count` examples; view -1 = positions as they are
  const int64_t* which;        // the model of each, ascending; null = all models
  int64_t count;
  double* losses;  // [count], or [K, count] of all models
  double* right;   // the same: 1 where the largest output is the label's, else 0
};

// Reads an example of the pool as a net's inputs.
template <typename P, typename T>
void read(const Scoring<T>& asked, int64_t number, T* __restrict inputs) {
  const int64_t width = asked.layers[0].inputs, view = asked.view[number];
  const P* __restrict from = static_cast<const P*>(asked.pool) + asked.example[number] * width;
  const int32_t* positions = asked.positions + view * width;
  const T *offset = asked.offset, *scale = asked.scale;
  const auto scaled = [=](int64_t at) {
    T input = T(from[at]);
    if (offset) input -= offset[at];
    if (scale) input *= scale[at];
    return input;
  };
  if (view < 0)
    for (int64_t k = 0; k < width; ++k) inputs[k] = scaled(k);
  else
    for (int64_t k = 0; k < width; ++k) inputs[k] = scaled(positions[k]);
}

// Asks for an example of the pool, which lies anywhere in memory, to be brought into the caches.
template <typename T>
void fetch(const Scoring<T>& asked, int64_t number) {
  const int64_t size = asked.layers[0].inputs * (asked.bytes ? 1 : sizeof(T));
  const char* from = static_cast<const char*>(asked.pool) + asked.example[number] * size;
  for (int64_t k = 0; k < size; k += 64) __builtin_prefetch(from + k);
}

// Returns the place of the first largest output; NaN counts as larger than any number, as in PyTorch.
template <typename T>
int64_t largest_of(const T* outputs, int64_t labels) {
  int64_t best = 0;
  for (int64_t j = 1; j < labels && outputs[best] == outputs[best]; ++j)
    if (!(outputs[j] <= outputs[best])) best = j;
  return best;
}

// Scores examples from `first` on, whose inputs the net has read, with one model.
template <typename T>
void score_block(const Scoring<T>& asked, Net<T>& net, int64_t model, int64_t first, int64_t count, int64_t place) {
  net.forward(asked.models + model * asked.columns, count);
  const int64_t labels = net.layers.back().outputs;
  T* outputs = net.values.back().data();
  for (int64_t n = 0; n < count; ++n, outputs += labels) {
    const int64_t label = asked.label[first + n];
    asked.right[place + n] = largest_of(outputs, labels) == label;
    asked.losses[place + n] = exponentials(outputs, labels, label).loss;
  }
}

template <typename T>
void score(const Scoring<T>& asked) {
  constexpr int64_t kBlock = 30, kAhead = 4;  // examples: whose inputs stay in the caches; that come from memory meanwhile
  Net<T> net(asked.layers, asked.num_layers, kBlock);
  const int64_t width = net.layers[0].inputs;
  for (int64_t first = 0, last; first < asked.count; first = last) {
    last = std::min(first + kBlock, asked.count);
    if (asked.which) last = std::find_if(asked.which + first, asked.which + last, [&](int64_t model) {
                              return model != asked.which[first];
                            }) - asked.which;
    for (int64_t n = first; n < last; ++n) {
      T* inputs = &net.values[0][(n - first) * width];
      if (n + kAhead < asked.count) fetch(asked, n + kAhead);
      asked.bytes ? read<uint8_t>(asked, n, inputs) : read<T>(asked, n, inputs);
    }
    if (asked.which)
      score_block(asked, net, asked.which[first], first, last - first, first);
    else
      for (int64_t k = 0; k < asked.num_models; ++k)
        score_block(asked, net, k, first, last - first, k * asked.count + first);
  }
}

}  // namespace

// Trains a client: its row changes in place. Returns the sum of the losses of all examples seen.
//
// layers [num_layers]; pool [examples, inputs] and labels [examples]; table [steps, batch]: positions in the pool.
extern "C" double train_float(float* row, const float* center, double prox, const Layer* layers, int64_t num_layers,
                              const float* pool, const int64_t* labels, const int64_t* table, int64_t steps,
                              int64_t batch) {
  return train(row, center, prox, layers, num_layers, pool, labels, table, steps, batch);
}
extern "C" double train_double(double* row, const double* center, double prox, const Layer* layers, int64_t num_layers,
                               const double* pool, const int64_t* labels, const int64_t* table, int64_t steps,
                               int64_t batch) {
  return train(row, center, prox, layers, num_layers, pool, labels, table, steps, batch);
}

// Scores examples; see `Scoring`.
extern "C" void score_float(const Scoring<float>* asked) { score(*asked); }
extern "C" void score_double(const Scoring<double>* asked) { score(*asked); }
