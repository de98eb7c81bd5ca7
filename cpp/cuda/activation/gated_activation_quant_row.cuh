// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A row of gated_activation_quant in the shared-memory pipeline, aligned or not.
#include "cuda/activation/gated_activation_quant_kernel.cuh"
#include "cuda/launch/async_copy.cuh"
#include "cuda/launch/bulk_copy.cuh"

namespace membound::cuda {

#if MEMBOUND_HAS_CLUSTERS
// An aligned row: its units are the vectors of gate and up.
template <class T, Access kAccess>
class QuantRow {
  using A = accumulate_t<T>;
  using U = QuantUnit<T, Access::kAligned>;
  using Params = GatedActivationQuantParams<A>;

 public:
  // 16-byte vectors of shared memory for gate and up.
  static __device__ int shared_vectors(const Params& p) { return 2 * static_cast<int>(p.units); }
  struct RowOffsets {};  // written by the fetching thread for the others
  static __device__ void fetch(const Params& p, std::int64_t row, uint4* to, RowOffsets&,
                               std::uint64_t* mbar) {
    const int units = static_cast<int>(p.units), bytes = kVectorBytes * units;
    const bool has_up = p.up.data != nullptr;
    expect_bytes(mbar, has_up ? 2 * bytes : bytes);
    copy_bulk(to, p.gate.template row<T>(p.gate_rows, row), bytes, mbar);
    if (has_up) copy_bulk(to + units, p.up.template row<T>(p.up_rows, row), bytes, mbar);
  }

  __device__ QuantRow(const Params& p, std::int64_t row, const RowOffsets&) : p_(p), row_(row) {}
  __device__ bool has(int unit) const { return unit < static_cast<int>(p_.units); }
  // Loads the units `first`, `first + apart`, ...
  template <int kUnits>
  __device__ void load(const uint4* staged, int first, int apart, uint4 (&gates)[kUnits],
                       uint4 (&ups)[kUnits]) const {
    const uint4* const up = p_.up.data != nullptr ? staged + p_.units : staged;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!has(first + i * apart)) continue;
      gates[i] = staged[first + i * apart];
      ups[i] = up[first + i * apart];
    }
  }
  __device__ void clear_padding(int, typename U::Values&) const {}
  __device__ std::uint64_t out() const {
    return reinterpret_cast<std::uint64_t>(p_.out.data) +
           static_cast<std::uint64_t>(p_.out.offset(p_.out_rows, row_));
  }
  __device__ void store(std::uint64_t out, int unit, uint2 codes) const {
    store_aligned_codes<U::kWidth>(out + static_cast<std::uint64_t>(unit) * U::kWidth, codes);
  }

 private:
  const Params& p_;
  const std::int64_t row_;
};

// An unaligned row: its units are the aligned vectors of the result, with as many codes as a
// 16-byte vector has elements. They are stored whole; each is assembled from two 16-byte vectors of
// gate and of up.
template <class T>
class QuantRow<T, Access::kUnaligned> {
  using A = accumulate_t<T>;
  using U = QuantUnit<T, Access::kAligned>;
  using Params = GatedActivationQuantParams<A>;
  static constexpr int kSize = static_cast<int>(sizeof(T)), kWidth = U::kWidth;

 public:
  // Each array has one vector before its first block, where unit 0 may begin, and two after the
  // last.
  static __device__ int shared_vectors(const Params& p) { return 2 * vectors_of_array(p); }
  struct alignas(kVectorBytes) RowOffsets {
    std::uint64_t out;
    int gate, up;  // byte offset of unit 0 in shared memory
  };
  static __device__ void fetch(const Params& p, std::int64_t row, uint4* to, RowOffsets& offsets,
                               std::uint64_t* mbar) {
    const std::uint64_t out = reinterpret_cast<std::uint64_t>(p.out.data) +
                              static_cast<std::uint64_t>(p.out.offset(p.out_rows, row));
    const int before = kSize * static_cast<int>(out % kWidth);
    const int gate = fetch_one(p.gate.template row<T>(p.gate_rows, row), p.gate_end, p, to, mbar);
    int up = gate;
    if (p.up.data != nullptr) {
      const T* const ups = p.up.template row<T>(p.up_rows, row);
      up = fetch_one(ups, p.up_end, p, to + vectors_of_array(p), mbar);
    }
    offsets = {out, gate - before, up - before};
    expect_bytes(mbar, 0);
  }

  __device__ QuantRow(const Params& p, std::int64_t, const RowOffsets& offsets)
      : p_(p),
        offsets_(offsets),
        before_(static_cast<int>(offsets_.out % kWidth)),
        cols_(static_cast<int>(p.cols)) {}
  __device__ bool has(int unit) const { return unit * kWidth - before_ < cols_; }
  template <int kUnits>
  __device__ void load(const uint4* staged, int first, int apart, uint4 (&gates)[kUnits],
                       uint4 (&ups)[kUnits]) const {
    load_one(staged, offsets_.gate, first, apart, gates);
    load_one(p_.up.data != nullptr ? staged + vectors_of_array(p_) : staged, offsets_.up, first,
             apart, ups);
  }
  // Zeroes elements outside the row.
  __device__ void clear_padding(int unit, typename U::Values& y) const {
    const int col = unit * kWidth - before_;
    if (col >= 0 && col + kWidth <= cols_) return;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      if (col + k < 0 || col + k >= cols_) y.at[k] = 0;
    }
  }
  __device__ std::uint64_t out() const { return offsets_.out; }
  __device__ void store(std::uint64_t out, int unit, uint2 codes) const {
    const int col = unit * kWidth - before_;
    std::uint64_t to = out + static_cast<std::uint64_t>(std::int64_t{col});
    if (col >= 0 && col + kWidth <= cols_) return store_aligned_codes<kWidth>(to, codes);
    std::uint64_t left = codes.x | std::uint64_t{codes.y} << 32;
    if (col >= 0) {  // the first codes of a vector
      const int count = cols_ - col;
      if (kWidth == 8 && (count & 4)) store_first_codes<4>(to, left);
      if (count & 2) store_first_codes<2>(to, left);
      if (count & 1) store_first_codes<1>(to, left);
    } else {  // the last codes of a vector: the row is wider than one
      const int count = kWidth - before_;
      to = out;
      left >>= 8 * before_;
      if (count & 1) store_first_codes<1>(to, left);
      if (count & 2) store_first_codes<2>(to, left);
      if (kWidth == 8 && (count & 4)) store_first_codes<4>(to, left);
    }
  }

 private:
  static __device__ int vectors_of_array(const Params& p) {
    return static_cast<int>(p.units) + tuning::kExtraUnalignedVectors;
  }
  // Returns the byte offset of the row in shared memory. Nothing is read past `end`, the end of the
  // array.
  static __device__ int fetch_one(const T* row, const char* end, const Params& p, uint4* to,
                                  std::uint64_t* mbar) {
    const int shift = shift_of(row);
    const char* const from = reinterpret_cast<const char*>(row) - shift;
    int blocks = (shift + static_cast<int>(p.cols) * kSize + kVectorBytes - 1) / kVectorBytes;
    if (end - from < blocks * kVectorBytes) {
      --blocks;
      const auto* const last = reinterpret_cast<const uint4*>(from) + blocks;
      copy_sync(to + 1 + blocks, last, static_cast<int>(end - reinterpret_cast<const char*>(last)));
    }
    expect_more_bytes(mbar, blocks * kVectorBytes);
    copy_bulk(to + 1, from, blocks * kVectorBytes, mbar);
    return kVectorBytes + shift;
  }
  template <int kUnits>
  __device__ void load_one(const uint4* staged, int first_byte, int first, int apart,
                           uint4 (&vectors)[kUnits]) const {
    const uint4* const from = staged + first_byte / kVectorBytes + first;
    const int shift = first_byte % kVectorBytes;
    if (shift == 0) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (has(first + i * apart)) vectors[i] = from[i * apart];
      }
      return;
    }
    with_shift<true>(shift, [&](auto realign) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (has(first + i * apart)) vectors[i] = realign(from[i * apart], from[i * apart + 1]);
      }
    });
  }

  const Params& p_;
  const RowOffsets offsets_;
  const int before_;  // elements of unit 0 that precede the row
  const int cols_;
};
#endif

}  // namespace membound::cuda
