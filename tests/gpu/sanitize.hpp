// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the compute-sanitizer drivers: random arrays of any dtype and layout on host and GPU,
// their comparison, and the loop over dtypes and sizes. Arrays end with their last element, so that
// an access past it is caught; padding is NaN and must stay NaN.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "membound/membound.hpp"

namespace membound::sanitize {

struct Format {
  DType dtype;
  int exponent_bits, mantissa_bits;
  double tolerance;  // relative, between two correct results
  int huge;          // biased exponent whose squares overflow the accumulator

  int one() const { return (1 << (exponent_bits - 1)) - 1; }
  std::int64_t size() const { return std::int64_t(dtype_size(dtype)); }
};
inline constexpr Format kFormats[] = {
    {DType::kFloat16, 5, 10, 2.2 / (1 << 10), 28},  // one ulp for each of two roundings
    {DType::kBFloat16, 8, 7, 2.2 / (1 << 7), 240},
    {DType::kFloat32, 8, 23, 8.0 / (1 << 23), 240},
    {DType::kFloat64, 11, 52, 8.0 / (1ll << 52), 2000},
};
inline constexpr const Format& kSingle = kFormats[2];
inline constexpr const Format& kDouble = kFormats[3];

// Format of rstd and of sums.
inline const Format& statistics_of(const Format& format) {
  return format.dtype == DType::kFloat64 ? kDouble : kSingle;
}

inline std::uint64_t next_random() {
  static std::uint64_t state = 20251121;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

inline double decode(const char* at, const Format& f) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, dtype_size(f.dtype));
  const std::uint64_t mantissa = bits & ((1ull << f.mantissa_bits) - 1);
  const int exponent = (bits >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
  const double sign = bits >> (f.mantissa_bits + f.exponent_bits) ? -1.0 : 1.0;
  if (exponent == (1 << f.exponent_bits) - 1) return mantissa ? std::nan("") : sign * INFINITY;
  const double lead = exponent ? 1.0 : 0.0;
  const int power = (exponent ? exponent : 1) - f.one();
  return sign * std::ldexp(lead + std::ldexp(double(mantissa), -f.mantissa_bits), power);
}

// A random value of either sign with the biased exponent at or one below `exponent`.
inline std::uint64_t draw(const Format& f, int exponent) {
  const std::uint64_t random = next_random();
  const std::uint64_t mantissa = random & ((1ull << f.mantissa_bits) - 1);
  const std::uint64_t biased = exponent - (random >> 62 & 1);
  const std::uint64_t sign = random >> 63;
  return sign << (f.mantissa_bits + f.exponent_bits) | biased << f.mantissa_bits | mantissa;
}

// Sizes with more rows than this run few cases.
inline constexpr std::int64_t kManyRows = 1100;

struct Layout {
  std::int64_t offset = 0;  // elements before the first
  std::int64_t gap = 0;     // after each row
  std::int64_t step = 1;    // from one column to the next
  bool split = false;       // rows in two axes that do not merge, if their number is even
};

inline std::string to_string(const Layout& layout) {
  return "offset " + std::to_string(layout.offset) + " gap " + std::to_string(layout.gap) +
         " step " + std::to_string(layout.step) + (layout.split ? " split" : "");
}

enum class Side { kHost, kTarget };

// The device under test. With "cpu" (a driver's self-test) both sides are the CPU.
struct Target {
  Device device;
  StreamView stream;
};

// A matrix on both sides: the host's result is the reference for the target's.
class Matrix {
 public:
  Matrix(const Format& format, std::int64_t rows, std::int64_t cols, const Layout& layout)
      : format_(format), rows_(rows), cols_(cols), layout_(layout) {
    layout_.split = layout.split && rows % 2 == 0 && rows >= 4;
    const std::int64_t count = layout.offset + (rows - 1) * pitch() + (cols - 1) * layout.step + 1;
    bytes_.assign(count * format.size(), char(0xFF));  // NaN in every format
  }

  // Ordinary values; with extremes, every fifth row is huge and every fifth is zero.
  Matrix& fill(bool extremes = false) {
    for (std::int64_t row = 0; row < rows_; ++row) {
      const bool huge = extremes && row % 5 == 3, zero = extremes && row % 5 == 4;
      for (std::int64_t col = 0; col < cols_; ++col) {
        const std::uint64_t value = zero ? 0 : draw(format_, huge ? format_.huge : format_.one());
        std::memcpy(bytes_.data() + index(row, col) * format_.size(), &value, format_.size());
      }
    }
    return *this;
  }
  void upload(const Target& target) {
    device_ = target.device;
    target_data_ = DeviceBuffer(bytes_.size(), device_, target.stream);
    copy_bytes(target_data_.data(), device_, bytes_.data(), Device::cpu(), bytes_.size(),
               target.stream);
  }

  const Format& format() const { return format_; }
  TensorView view(Side side) {
    TensorView view = start(side);
    if (layout_.split) append(view, 2, pitch());
    append(view, layout_.split ? rows_ / 2 : rows_, layout_.split ? 2 * pitch() : pitch());
    append(view, cols_, layout_.step);
    return view;
  }
  // A one-row matrix as a vector: a weight, or, with two_axes, the rstd of rows in two axes.
  TensorView vector(Side side, bool two_axes = false) {
    TensorView view = start(side);
    if (two_axes) append(view, 2, cols_ / 2 * layout_.step);
    append(view, two_axes ? cols_ / 2 : cols_, layout_.step);
    return view;
  }
  bool split() const { return layout_.split; }

  // Number of elements that are not finite or differ from the host's by more than format tolerance
  // + `slack`, plus padding elements that were overwritten.
  long wrong(const Target& target, double slack) {
    std::vector<char> got(bytes_.size());
    copy_bytes(got.data(), Device::cpu(), target_data_.data(), device_, got.size(), target.stream);
    target.stream.synchronize();
    long wrong = 0;
    for (std::int64_t at = 0; at * format_.size() < std::int64_t(got.size()); ++at) {
      const char *left = got.data() + at * format_.size(),
                 *right = bytes_.data() + at * format_.size();
      wrong += holds(at) ? !close(decode(left, format_), decode(right, format_), slack)
                         : std::memcmp(left, right, format_.size()) != 0;
    }
    return wrong;
  }

 private:
  std::int64_t pitch() const { return cols_ * layout_.step + layout_.gap; }
  std::int64_t index(std::int64_t row, std::int64_t col) const {
    return layout_.offset + row * pitch() + col * layout_.step;
  }
  bool holds(std::int64_t at) const {
    const std::int64_t in_row = (at - layout_.offset) % pitch();
    return at >= layout_.offset && in_row < cols_ * layout_.step && in_row % layout_.step == 0;
  }
  bool close(double got, double expected, double slack) const {
    if (std::isnan(got) && std::isnan(expected)) return true;
    if (!std::isfinite(got) || !std::isfinite(expected)) return false;
    return std::abs(got - expected) <= format_.tolerance * std::abs(expected) + slack;
  }
  TensorView start(Side side) {
    char* data = side == Side::kHost ? bytes_.data() : target_data_.as<char>();
    return TensorView(data + layout_.offset * format_.size(), format_.dtype,
                      side == Side::kHost ? Device::cpu() : device_, {});
  }
  static void append(TensorView& view, std::int64_t extent, std::int64_t stride) {
    view.shape[view.rank] = extent;
    view.strides[view.rank++] = stride;
  }

  const Format& format_;
  std::int64_t rows_, cols_;
  Layout layout_;
  std::vector<char> bytes_;
  Device device_;
  DeviceBuffer target_data_;
};

// Ids in and around a range on both sides, some of them far outside; skewed: half of them are the
// same.
struct Ids {
  Ids(std::int64_t tokens, std::int64_t first, std::int64_t count, const Target& target,
      bool skewed = false)
      : numbers(tokens),
        on_target(tokens * sizeof(std::int64_t), target.device, target.stream),
        device(target.device) {
    for (std::int64_t& one : numbers) {
      one = first - 1 + static_cast<std::int64_t>(next_random() % std::uint64_t(count + 2));
      if (skewed && next_random() % 2 == 0) one = first + count / 2;
    }
    numbers[tokens / 2] = std::int64_t{1} << 62;
    numbers[tokens / 3] = -(std::int64_t{1} << 62);
    copy_bytes(on_target.data(), device, numbers.data(), Device::cpu(),
               tokens * sizeof(std::int64_t), target.stream);
  }
  ConstTensorView view(Side side, bool split) {
    const bool host = side == Side::kHost;
    const std::int64_t count = numbers.size();
    const void* data = host ? numbers.data() : on_target.data();
    const Device where = host ? Device::cpu() : device;
    if (split) return ConstTensorView(data, DType::kInt64, where, {2, count / 2});
    return ConstTensorView(data, DType::kInt64, where, {count});
  }

  std::vector<std::int64_t> numbers;
  DeviceBuffer on_target;
  Device device;
};

// DRIVER [DTYPE [MIN_CHUNKS MAX_CHUNKS [cpu]]]: "float16" selects that dtype, two numbers select
// the rows with that many 16-byte vectors, "cpu" needs no GPU. cases(format, chunks, rows) lists
// the arguments of run(case, target), which returns the number of wrong elements; case.text()
// describes the case.
template <class Sizes, class Cases, class Run>
int run_driver(int argc, char** argv, const Sizes& sizes, Cases cases, Run run) {
  const bool on_cpu = argc > 4 && std::string(argv[4]) == "cpu";
  if (const CudaStatus status = cuda_status(); !on_cpu && status.device_count == 0) {
    std::printf("no GPU: %s\n", status.message.c_str());
    return 2;
  }
  const Device device = on_cpu ? Device::cpu() : Device::cuda();
  const Stream stream(device);
  const Target target{device, stream};
  const std::int64_t least = argc > 3 ? std::atoll(argv[2]) : 0;
  const std::int64_t most = argc > 3 ? std::atoll(argv[3]) : 1 << 30;
  long count = 0, failures = 0;
  for (const Format& format : kFormats) {
    if (argc > 1 && std::string(argv[1]) != dtype_name(format.dtype)) continue;
    for (const auto& [vectors, rows] : sizes) {
      if (vectors < least || vectors > most) continue;
      for (const auto& one : cases(format, vectors, rows)) {
        ++count;
        const long wrong = run(one, target);
        failures += wrong != 0;
        if (wrong) std::printf("WRONG in %ld elements: %s\n", wrong, one.text().c_str());
      }
    }
  }
  std::printf("%ld cases, %ld wrong\n", count, failures);
  return failures || count == 0 ? 1 : 0;
}

}  // namespace membound::sanitize
