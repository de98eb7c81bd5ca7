// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// The DLPack 1.3 ABI as far as we read it: tensors in capsules, and the C exchange table that a
// type offers as __dlpack_c_exchange_api__. Field order and widths are the contract, the names are
// ours.
namespace membound::dlpack {

inline constexpr std::uint32_t kMajorVersion = 1;

enum DeviceType : std::int32_t {
  kCpu = 1,
  kCuda = 2,
  kCudaHost = 3,
  kCudaManaged = 13,
};

enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBFloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4M3Fn = 10,
  kFloat8E5M2 = 12,
};

struct DeviceId {
  std::int32_t type;
  std::int32_t index;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  DeviceId device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: C-contiguous
  std::uint64_t byte_offset;
};

// What a capsule named "dltensor" holds.
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

inline constexpr std::uint64_t kReadOnlyFlag = 1;
inline constexpr std::uint64_t kCopiedFlag = 2;

// What a capsule named "dltensor_versioned" holds.
struct ManagedTensorVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

struct ExchangeHeader {
  Version version;
  ExchangeHeader* previous;  // the table of an older major version, or null
};

// What a capsule named "dlpack_exchange_api" points to. All return 0, or -1 with a Python error
// set; none synchronises. Functions that we do not call are kept as untyped slots.
struct ExchangeApi {
  ExchangeHeader header;
  void (*allocate)();
  void (*to_managed)();
  void (*from_managed)();
  // A borrowed view: shape and strides belong to the array and may be null.
  int (*borrow)(void* array, Tensor* view);
  int (*current_stream)(std::int32_t device_type, std::int32_t device_index, void** stream);
};

}  // namespace membound::dlpack
