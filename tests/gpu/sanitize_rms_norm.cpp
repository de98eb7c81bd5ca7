// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Runs every rms_norm kernel once or more, for compute-sanitizer: each dtype, each way to hold a
// row, aligned and not, each kind of weight, rescaled rows, strided rows. Device buffers end where
// the array ends, so one element too far is caught; results are compared with the CPU's.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "membound/membound.hpp"

namespace {

using namespace membound;

struct Format {
  DType dtype;
  int exponent_bits, mantissa_bits;
  double tolerance;  // relative, between two right results
  int huge;          // biased exponent whose squares leave the accumulator's range
};
constexpr Format kFormats[] = {
    {DType::kFloat16, 5, 10, 2.2 / (1 << 10), 28},  // one step of each of two roundings
    {DType::kBFloat16, 8, 7, 2.2 / (1 << 7), 240},
    {DType::kFloat32, 8, 23, 8.0 / (1 << 23), 240},
    {DType::kFloat64, 11, 52, 8.0 / (1ll << 52), 2000},
};

const Format& format_of(DType dtype) {
  for (const Format& format : kFormats) {
    if (format.dtype == dtype) return format;
  }
  std::abort();
}

std::uint64_t next_random() {
  static std::uint64_t state = 20251121;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

double decode(const char* at, const Format& f) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, dtype_size(f.dtype));
  const std::uint64_t mantissa = bits & ((1ull << f.mantissa_bits) - 1);
  const int exponent = (bits >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const double sign = bits >> (f.mantissa_bits + f.exponent_bits) ? -1.0 : 1.0;
  if (exponent == (1 << f.exponent_bits) - 1) return mantissa ? std::nan("") : sign * INFINITY;
  const double lead = exponent ? 1.0 : 0.0;
  const int power = (exponent ? exponent : 1) - bias;
  return sign * std::ldexp(lead + std::ldexp(double(mantissa), -f.mantissa_bits), power);
}

// A random value of either sign with the biased exponent at or one below `exponent`.
std::uint64_t draw(const Format& f, int exponent) {
  const std::uint64_t random = next_random();
  const std::uint64_t mantissa = random & ((1ull << f.mantissa_bits) - 1);
  const std::uint64_t biased = exponent - (random >> 62 & 1);
  const std::uint64_t sign = random >> 63;
  return sign << (f.mantissa_bits + f.exponent_bits) | biased << f.mantissa_bits | mantissa;
}

// A matrix in its own exactly sized host bytes: `offset` elements before it, `gap` after each row.
struct Matrix {
  const Format& format;
  std::int64_t rows, cols, offset, gap;
  std::vector<char> bytes;

  Matrix(const Format& f, std::int64_t rows_, std::int64_t cols_, int offset_, int gap_)
      : format(f), rows(rows_), cols(cols_), offset(offset_), gap(gap_) {
    const std::int64_t count = offset + (rows - 1) * (cols + gap) + cols;
    bytes.assign(count * dtype_size(f.dtype), char(0xFF));  // NaN in every format
  }
  char* at(std::int64_t row, std::int64_t col) {
    return bytes.data() + (offset + row * (cols + gap) + col) * dtype_size(format.dtype);
  }
  void fill() {
    const int one = (1 << (format.exponent_bits - 1)) - 1;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        const std::uint64_t value =
            row % 5 == 4 ? 0 : draw(format, row % 5 == 3 ? format.huge : one);
        std::memcpy(at(row, col), &value, dtype_size(format.dtype));
      }
    }
  }
  // The rows in two axes that do not merge when there are four or more of them.
  TensorView view(void* data, Device device, bool split) const {
    TensorView view(static_cast<char*>(data) + offset * dtype_size(format.dtype), format.dtype,
                    device, {rows, cols});
    view.strides[0] = cols + gap;
    if (split && rows % 2 == 0 && rows >= 4) {
      const std::int64_t shape[] = {2, rows / 2, cols}, row = cols + gap;
      const std::int64_t strides[] = {row, 2 * row, 1};
      view.rank = 3;
      for (int axis = 0; axis < 3; ++axis) {
        view.shape[axis] = shape[axis];
        view.strides[axis] = strides[axis];
      }
    }
    return view;
  }
};

DeviceBuffer upload(const std::vector<char>& bytes, Device gpu, StreamView stream) {
  DeviceBuffer buffer(bytes.size(), gpu, stream);
  copy_bytes(buffer.data(), gpu, bytes.data(), Device::cpu(), bytes.size(), stream);
  return buffer;
}

struct Case {
  const Format& format;
  std::int64_t rows, cols;
  int offset, gap;
  const Format* weight;
  Rounding rounding;
  bool split, in_place;

  std::string text() const {
    return std::string(dtype_name(format.dtype)) + " " + std::to_string(rows) + " x " +
           std::to_string(cols) + " offset " + std::to_string(offset) + " gap " +
           std::to_string(gap) + " weight " + (weight ? dtype_name(weight->dtype) : "none") +
           (split ? " split" : "") + (in_place ? " in place" : "");
  }
};

// Both back ends on the same bytes; returns the number of elements that differ too much.
long run(const Case& c, StreamView stream) {
  const Device gpu = Device::cuda(), cpu = Device::cpu();
  Matrix x(c.format, c.rows, c.cols, c.offset, c.gap), out(c.format, c.rows, c.cols, c.offset, 0);
  x.fill();
  Matrix weight(c.weight ? *c.weight : c.format, 1, c.cols, c.offset, 0);
  weight.fill();
  RmsNormOptions options;
  options.rounding = c.rounding;
  const bool wide = c.format.dtype == DType::kFloat64;
  const DType statistics = wide ? DType::kFloat64 : DType::kFloat32;
  const Format& rstd_format = format_of(statistics);
  Matrix rstd(rstd_format, 1, c.rows, 0, 0);

  DeviceBuffer there_x = upload(x.bytes, gpu, stream), there_out = upload(out.bytes, gpu, stream);
  DeviceBuffer there_weight = upload(weight.bytes, gpu, stream);
  DeviceBuffer there_rstd = upload(rstd.bytes, gpu, stream);
  Matrix& written = c.in_place ? x : out;
  DeviceBuffer& there_written = c.in_place ? there_x : there_out;

  const auto call = [&](void* x_data, void* weight_data, void* out_data, void* rstd_data,
                        Device device) {
    const TensorView view = x.view(x_data, device, c.split);
    const TensorView target = written.view(out_data, device, c.split);
    TensorView factors(static_cast<char*>(weight_data) + c.offset * dtype_size(weight.format.dtype),
                       weight.format.dtype, device, {c.cols});
    const ConstTensorView const_factors = factors;
    TensorView saved(rstd_data, statistics, device, {c.rows});
    if (view.rank == 3) saved = TensorView(rstd_data, statistics, device, {2, c.rows / 2});
    rms_norm(view, c.weight ? &const_factors : nullptr, options, target, &saved, stream);
  };
  call(there_x.data(), there_weight.data(), there_written.data(), there_rstd.data(), gpu);
  std::vector<char> got(written.bytes.size()), got_rstd(rstd.bytes.size());
  copy_bytes(got.data(), cpu, there_written.data(), gpu, got.size(), stream);
  copy_bytes(got_rstd.data(), cpu, there_rstd.data(), gpu, got_rstd.size(), stream);
  stream.synchronize();
  call(x.bytes.data(), weight.bytes.data(), written.bytes.data(), rstd.bytes.data(), cpu);

  long wrong = 0;
  const auto compare = [&wrong](const std::vector<char>& a, const std::vector<char>& b,
                                const Format& f) {
    for (std::size_t at = 0; at < a.size(); at += dtype_size(f.dtype)) {
      const double left = decode(a.data() + at, f), right = decode(b.data() + at, f);
      const bool close = std::abs(left - right) <= f.tolerance * std::abs(right) + 1e-300;
      wrong += !(close || left == right || (std::isnan(left) && std::isnan(right)));
    }
  };
  compare(got, written.bytes, c.format);
  compare(got_rstd, rstd.bytes, rstd_format);
  return wrong;
}

}  // namespace

// sanitize_rms_norm [DTYPE [MIN_CHUNKS MAX_CHUNKS]]: "float16" takes that dtype alone, two numbers
// the rows of that many 16-byte chunks.
int main(int argc, char** argv) {
  const CudaStatus status = cuda_status();
  if (status.device_count == 0) {
    std::printf("no GPU: %s\n", status.message.c_str());
    return 2;
  }
  const Stream stream(Device::cuda());
  // 16-byte chunks per row at the ends of each kernel's range; the rows make threads hold more of
  // a row where the launch configuration does so for many rows. 110,000 do not fit the blocks of
  // a cluster, so that the row is read twice.
  constexpr std::int64_t kSizes[][2] = {{1, 6},     {2, 40},   {33, 7},     {64, 130},  {65, 5},
                                        {512, 600}, {513, 6},  {1024, 300}, {1025, 4},  {2048, 150},
                                        {2049, 5},  {9000, 6}, {20000, 3},  {110000, 2}};
  const std::int64_t least = argc > 3 ? std::atoll(argv[2]) : 0;
  const std::int64_t most = argc > 3 ? std::atoll(argv[3]) : 1 << 30;
  long cases = 0, failures = 0;
  for (const Format& format : kFormats) {
    if (argc > 1 && std::string(argv[1]) != dtype_name(format.dtype)) continue;
    for (const auto& [chunks, rows] : kSizes) {
      if (chunks < least || chunks > most) continue;
      const std::int64_t pack = 16 / std::int64_t(dtype_size(format.dtype)), cols = chunks * pack;
      const Format *same = &format, *fp32 = &kFormats[2], *fp64 = &kFormats[3];
      const Rounding once = Rounding::kOnce, before = Rounding::kBeforeWeight;
      const Case list[] = {
          {format, rows, cols, 0, 0, same, once, false, false},
          {format, rows, cols, 0, 0, fp32, before, false, true},
          {format, rows, cols, 0, int(pack), nullptr, once, false, false},
          {format, rows, cols, 1, 0, same, before, false, false},
          {format, rows, cols - 1, 0, 0, fp64, once, false, true},
          {format, rows, cols, 1, 3, fp32, once, true, false},
      };
      for (const Case& one : list) {
        if (one.cols < 1) continue;
        ++cases;
        const long wrong = run(one, stream);
        failures += wrong != 0;
        if (wrong) std::printf("WRONG in %ld elements: %s\n", wrong, one.text().c_str());
      }
    }
  }
  std::printf("%ld cases, %ld wrong\n", cases, failures);
  return failures ? 1 : 0;
}
