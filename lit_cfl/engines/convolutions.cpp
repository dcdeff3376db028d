// Convolves images of few channels, adds a bias, applies ReLU and takes the largest number of each 2 x 2; convolutions.py
// says why.
//
// A vector holds neighbours in a row of an image; those beyond the row's end are computed in vain. The gradient of the
// images is a convolution again: of the outputs' gradient, with mirrored kernels.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "tiles.h"

namespace {

using V = Simd<float, kVectorBytes>;
using Mask = decltype(V::type() < V::type());
typedef uint8_t Corners __attribute__((vector_size(V::size)));

constexpr int kChannels = kVectorBytes == 64 ? 8 : 4;   // whose sums of two rows fit into the registers
constexpr int kGradients = kVectorBytes == 64 ? 4 : 2;  // whose sums for each column of the kernel do
constexpr int kNone = 4;                                // in place of a corner: ReLU gives 0

int64_t whole_vectors(int64_t columns) { return (columns + V::size - 1) / V::size * V::size; }

// The channels of one image, with a border of zeros around each. A row begins where a vector may be loaded in one go.
struct Planes {
  Planes(int64_t channels, int64_t height, int64_t width, int64_t border)
      : row(whole_vectors(border) + whole_vectors(width + border)),
        plane((height + 2 * border) * row),
        numbers(channels * plane + 3 * V::size) {
    const auto place = reinterpret_cast<uintptr_t>(numbers.data());
    begin = numbers.data() + (-place % kVectorBytes) / sizeof(float) + border * row + whole_vectors(border);
  }
  float* at(int64_t channel, int64_t y, int64_t x) { return begin + channel * plane + y * row + x; }
  int64_t row, plane;

 private:
  std::vector<float> numbers;
  float* begin;
};

// What a layer is called with: images [n, in, height, width], kernels [out, in, K, K], and zeros around the images.
struct Layer {
  Layer(const at::Tensor& images, const at::Tensor& kernels, int64_t border)
      : count(images.size(0)),
        in(images.size(1)),
        out(kernels.size(0)),
        height(images.size(2)),
        width(images.size(3)),
        border(border),
        rows((height + 2 * border - kernels.size(2) + 1) / 2),
        columns((width + 2 * border - kernels.size(3) + 1) / 2),
        images(images.const_data_ptr<float>()),
        kernels(kernels.const_data_ptr<float>()) {}

  // Copies an image into planes, whose border stays 0.
  void read(int64_t image, Planes& planes) const {
    const float* from = images + image * in * height * width;
    for (int64_t c = 0; c < in; ++c)
      for (int64_t y = 0; y < height; ++y, from += width) std::copy_n(from, width, planes.at(c, y, 0));
  }

  int64_t count, in, out, height, width, border;
  int64_t rows, columns;  // of the pooled outputs
  const float *images, *kernels;
};

// Computes two rows of one vector for N channels.
template <int K, int N>
void convolve_tile(int64_t in, Planes& from, int64_t first, int64_t y, int64_t x, const float* kernels, Planes& to,
                   int64_t channel) {
  const float* corner = from.at(0, first + y, first + x);
  typename V::type sum[N][2] = {};
  for (int64_t c = 0; c < in; ++c)
    for (int i = 0; i < K; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j) {
        const float* place = corner + c * from.plane + i * from.row + j;
        const auto upper = V::load(place), lower = V::load(place + from.row);
        const float* weight = kernels + (c * K + i) * K + j;
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          sum[n][0] += weight[n * in * K * K] * upper;
          sum[n][1] += weight[n * in * K * K] * lower;
        }
      }
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < 2; ++r) V::store(to.at(channel + n, y + r, x), sum[n][r]);
}

// Convolves to channels from `done` on, N at a time, then what is left; an odd last row is computed with one more.
template <int K, int N = kChannels>
void convolve(int64_t in, int64_t out, int64_t rows, int64_t columns, Planes& from, int64_t first, const float* kernels,
              Planes& to, int64_t done = 0) {
  for (; out - done >= N; done += N)
    for (int64_t y = 0; y < rows; y += 2)
      for (int64_t x = 0; x < columns; x += V::size)
        convolve_tile<K, N>(in, from, first, y, x, kernels + done * in * K * K, to, done);
  if constexpr (N > 1)
    if (out > done) convolve<K, N - 1>(in, out, rows, columns, from, first, kernels, to, done);
}

// Adds to the gradients of one row of the kernels of N channels, for one channel of the images; each sum is a vector.
template <int K, int N>
void gradients_tile(int64_t rows, int64_t columns, const float* image, int64_t row, const float* gradient,
                    const Planes& outputs, float* sums, int64_t kernel) {
  typename V::type sum[N][K];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) sum[n][j] = V::load(sums + (n * kernel + j) * V::size);
  for (int64_t y = 0; y < rows; ++y)
    for (int64_t x = 0; x < columns; x += V::size) {
      typename V::type of_output[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) of_output[n] = V::load(gradient + n * outputs.plane + y * outputs.row + x);
#pragma GCC unroll 8
      for (int j = 0; j < K; ++j) {
        auto pixels = V::load(image + y * row + x + j);
#if defined(__AVX__)
        asm("" : "+v"(pixels));  // into a register: GCC else reads them from memory for each of the N products
#endif
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sum[n][j] += of_output[n] * pixels;
      }
    }
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) V::store(sums + (n * kernel + j) * V::size, sum[n][j]);
}

// Adds to the gradients of the kernels of channels from `first` on, N at a time, then what is left.
template <int K, int N = kGradients>
void add_gradients(const Layer& l, Planes& image, Planes& outputs, float* sums, int64_t first = 0) {
  const int64_t kernel = l.in * K * K;
  for (; l.out - first >= N; first += N)
    for (int64_t c = 0; c < l.in; ++c)
      for (int i = 0; i < K; ++i)
        gradients_tile<K, N>(2 * l.rows, 2 * l.columns, image.at(c, i - l.border, -l.border), image.row,
                             outputs.at(first, 0, 0), outputs, sums + (first * kernel + (c * K + i) * K) * V::size, kernel);
  if constexpr (N > 1)
    if (l.out > first) add_gradients<K, N - 1>(l, image, outputs, sums, first);
}

// Returns the numbers of two vectors at these places, counted through both.
template <int... I>
V::type chosen(V::type first, V::type second) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(first, second, I...);
#else
  return __builtin_shuffle(first, second, Mask{I...});
#endif
}

// Returns the numbers at even or at odd places of two vectors in a row.
template <int Odd, int... I>
V::type every_other(V::type first, V::type second, std::integer_sequence<int, I...>) {
  return chosen<(2 * I + Odd)...>(first, second);
}

// Returns numbers of both vectors in turn, from their lower or from their upper halves.
template <int Upper, int... I>
V::type in_turn(V::type first, V::type second, std::integer_sequence<int, I...>) {
  return chosen<(I / 2 + Upper * V::size / 2 + I % 2 * V::size)...>(first, second);
}

template <int... I>
Mask counted(std::integer_sequence<int, I...>) {
  return Mask{I...};
}

constexpr auto kPlaces = std::make_integer_sequence<int, V::size>();

// A channel of pooled numbers, and the corner of its 2 x 2 that each comes from. There is room for a vector behind them.
struct Pooled {
  explicit Pooled(int64_t size) : numbers(size + V::size), corners(size + V::size) {}
  std::vector<float> numbers;
  std::vector<uint8_t> corners;
};

// Takes the largest of four corners, adds the bias and applies ReLU. Of equal corners it is the first, as in PyTorch, and
// NaN is larger than any number. What is written behind a row, the next one replaces.
void pool(const Layer& l, float bias, Planes& planes, int64_t channel, Pooled& to) {
  const V::type zero = {};
  for (int64_t y = 0; y < l.rows; ++y)
    for (int64_t x = 0; x < l.columns; x += V::size) {
      const float *upper = planes.at(channel, 2 * y, 2 * x), *lower = planes.at(channel, 2 * y + 1, 2 * x);
      const auto u = V::load(upper), v = V::load(upper + V::size), s = V::load(lower), t = V::load(lower + V::size);
      const auto a = every_other<0>(u, v, kPlaces), b = every_other<1>(u, v, kPlaces);
      const auto c = every_other<0>(s, t, kPlaces), d = every_other<1>(s, t, kPlaces);
      const Mask right = (b > a) | (b != b), lower_right = (d > c) | (d != d);
      const V::type above = right ? b : a, below = lower_right ? d : c;
      const Mask down = (below > above) | (below != below);
      const V::type value = (down ? below : above) + bias;
      const Mask corner = down ? 2 - lower_right : -right, none = value <= 0;
      const auto corners = __builtin_convertvector(none ? Mask() + kNone : corner, Corners);
      V::store(to.numbers.data() + y * l.columns + x, none ? zero : value);
      std::memcpy(to.corners.data() + y * l.columns + x, &corners, V::size);
    }
}

// Puts the gradients of pooled numbers where these come from; all else is 0. Returns their sum.
float unpool(const Layer& l, const Pooled& from, Planes& planes, int64_t channel) {
  const Mask lanes = counted(kPlaces);
  const V::type zero = {};
  V::type sum = {};
  for (int64_t y = 0; y < l.rows; ++y)
    for (int64_t x = 0; x < l.columns; x += V::size) {
      Corners corners;
      std::memcpy(&corners, from.corners.data() + y * l.columns + x, V::size);
      const Mask corner = __builtin_convertvector(corners, Mask);
      const Mask none = (corner == kNone) | (lanes >= int(l.columns - x));
      const V::type g = none ? zero : V::load(from.numbers.data() + y * l.columns + x);
      const V::type a = corner == 0 ? g : zero, b = corner == 1 ? g : zero;
      const V::type c = corner == 2 ? g : zero, d = corner == 3 ? g : zero;
      float *upper = planes.at(channel, 2 * y, 2 * x), *lower = upper + planes.row;
      V::store(upper, in_turn<0>(a, b, kPlaces));
      V::store(upper + V::size, in_turn<1>(a, b, kPlaces));  // zeros where it is behind the row, which are there anyway
      V::store(lower, in_turn<0>(c, d, kPlaces));
      V::store(lower + V::size, in_turn<1>(c, d, kPlaces));
      sum += g;
    }
  return total<float, kVectorBytes>(sum);
}

template <int K>
void forward(const Layer& l, const float* bias, float* out, uint8_t* corners) {
  const int64_t size = l.rows * l.columns;
  at::parallel_for(0, l.count, 1, [&](int64_t begin, int64_t end) {
    Planes image(l.in, l.height, l.width, l.border), outputs(l.out, 2 * l.rows, 2 * l.columns, 0);
    Pooled pooled(size);
    for (int64_t i = begin; i < end; ++i) {
      l.read(i, image);
      convolve<K>(l.in, l.out, 2 * l.rows, 2 * l.columns, image, -l.border, l.kernels, outputs);
      for (int64_t o = 0; o < l.out; ++o) {
        pool(l, bias[o], outputs, o, pooled);
        std::copy_n(pooled.numbers.data(), size, out + (i * l.out + o) * size);
        std::copy_n(pooled.corners.data(), size, corners + (i * l.out + o) * size);
      }
    }
  });
}

// Returns the kernels from outputs to inputs: those from inputs to outputs, turned by 180 degrees.
template <int K>
std::vector<float> mirrored(const Layer& l) {
  std::vector<float> turned(l.in * l.out * K * K);
  for (int64_t o = 0; o < l.out; ++o)
    for (int64_t c = 0; c < l.in; ++c)
      for (int k = 0; k < K * K; ++k)
        turned[(c * l.out + o) * K * K + K * K - 1 - k] = l.kernels[(o * l.in + c) * K * K + k];
  return turned;
}

// Computes the gradients; those of the images only where `of_images` is not null. One thread: sums run over the images.
template <int K>
void backward(const Layer& l, const float* gradient, const uint8_t* corners, float* of_images, float* of_kernels,
              float* of_bias) {
  const int64_t size = l.rows * l.columns, weights = l.out * l.in * K * K;
  Planes image(l.in, l.height, l.width, l.border), outputs(l.out, l.height + 1, l.width, K - 1);
  Planes inputs(l.in, l.height + 1, l.width, 0);
  Pooled pooled(size);
  const auto turned = mirrored<K>(l);
  std::vector<float> sums(weights * V::size);
  for (int64_t i = 0; i < l.count; ++i) {
    l.read(i, image);
    for (int64_t o = 0; o < l.out; ++o) {
      std::copy_n(gradient + (i * l.out + o) * size, size, pooled.numbers.data());
      std::copy_n(corners + (i * l.out + o) * size, size, pooled.corners.data());
      of_bias[o] += unpool(l, pooled, outputs, o);
    }
    add_gradients<K>(l, image, outputs, sums.data());
    if (of_images == nullptr) continue;
    convolve<K>(l.out, l.in, l.height, l.width, outputs, l.border - (K - 1), turned.data(), inputs);
    for (int64_t c = 0; c < l.in; ++c)
      for (int64_t y = 0; y < l.height; ++y, of_images += l.width) std::copy_n(inputs.at(c, y, 0), l.width, of_images);
  }
  for (int64_t k = 0; k < weights; ++k) of_kernels[k] = total<float, kVectorBytes>(V::load(sums.data() + k * V::size));
}

std::tuple<at::Tensor, at::Tensor> convolve_and_pool(const at::Tensor& images, const at::Tensor& kernels,
                                                     const at::Tensor& bias, int64_t border) {
  const at::Tensor x = images.contiguous(), w = kernels.contiguous(), b = bias.contiguous();
  const Layer l(x, w, border);
  at::Tensor out = at::empty({l.count, l.out, l.rows, l.columns}, x.options());
  at::Tensor corners = at::empty(out.sizes(), x.options().dtype(at::kByte));
  (w.size(2) == 3 ? forward<3> : forward<5>)(l, b.const_data_ptr<float>(), out.data_ptr<float>(),
                                             corners.data_ptr<uint8_t>());
  return {out, corners};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_and_pool_backward(
    const at::Tensor& gradient, const at::Tensor& corners, const at::Tensor& images, const at::Tensor& kernels, int64_t border,
    bool with_images) {
  const at::Tensor g = gradient.contiguous(), x = images.contiguous(), w = kernels.contiguous();
  const Layer l(x, w, border);
  at::Tensor of_images = at::empty(with_images ? x.sizes() : at::IntArrayRef{0}, x.options());
  at::Tensor of_kernels = at::empty(w.sizes(), w.options()), of_bias = at::zeros({l.out}, w.options());
  (w.size(2) == 3 ? backward<3> : backward<5>)(l, g.const_data_ptr<float>(), corners.const_data_ptr<uint8_t>(),
                                               with_images ? of_images.data_ptr<float>() : nullptr,
                                               of_kernels.data_ptr<float>(), of_bias.data_ptr<float>());
  return {of_images, of_kernels, of_bias};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lit_cfl, library) {
  library.def("convolve_and_pool(Tensor images, Tensor kernels, Tensor bias, int border) -> (Tensor, Tensor)");
  library.def(
      "convolve_and_pool_backward(Tensor gradient, Tensor corners, Tensor images, Tensor kernels, int border, "
      "bool with_images) -> (Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(lit_cfl, CPU, library) {
  library.impl("convolve_and_pool", &convolve_and_pool);
  library.impl("convolve_and_pool_backward", &convolve_and_pool_backward);
}
