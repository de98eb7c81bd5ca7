// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

// The part of XLA's FFI C ABI that our handlers use, declared here so that building needs no
// jaxlib. It is API version 0.1, which every jaxlib from 0.4.35 on loads. Fields that later
// versions appended are omitted; the runtime distinguishes sizes by struct_size. Checked against
// the headers of jaxlib 0.4.35, 0.7.2, 0.10.2 and 0.12.0.
namespace membound::xla {

inline constexpr int kApiMajor = 0;
inline constexpr int kApiMinor = 1;

struct Error;             // owned by the receiver
struct ExecutionContext;  // per invocation, opaque

struct Extension {
  std::size_t struct_size;
  std::int32_t type;
  Extension* next;
};
inline constexpr std::int32_t kMetadataExtension = 1;

struct ApiVersion {
  std::size_t struct_size;
  Extension* extensions;
  std::int32_t major;
  std::int32_t minor;
};

// The metadata that the runtime queries once per handler, by an extension of an empty call.
struct Metadata {
  std::size_t struct_size;
  ApiVersion api_version;
  std::uint32_t traits;
};
inline constexpr std::uint32_t kCommandBufferCompatible = 1;

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

enum class ErrorCode : std::int32_t {
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kInternal = 13,
};

struct ErrorCreateArgs {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

struct StreamGetArgs {
  std::size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  void* stream;  // out: a cudaStream_t
};

// The function table, up to the last entry that we use; their order has never changed.
struct Api {
  std::size_t struct_size;
  Extension* extensions;
  ApiVersion version;
  const void* internal;
  Error* (*error_create)(ErrorCreateArgs*);
  void* error_message;
  void* error_destroy;
  void* handler_register;
  Error* (*stream_get)(StreamGetArgs*);
};

// Values of xla::PrimitiveType.
enum class DataType : std::int32_t {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBF16 = 16,
  kC128 = 18,
  kF8E5M2 = 19,
  kF8E4M3FN = 20,
};

struct Buffer {  // row-major
  std::size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

struct ByteSpan {
  const char* data;
  std::size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

struct Array {
  DataType dtype;
  std::size_t size;
  void* data;
};

// Operands and results have the same form.
inline constexpr std::int32_t kBuffer = 1;  // the type of an operand or result
struct Buffers {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  std::int32_t* types;
  void** values;
};

inline constexpr std::int32_t kArrayAttribute = 1;
inline constexpr std::int32_t kScalarAttribute = 3;
struct Attributes {  // sorted by name
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  std::int32_t* types;
  ByteSpan** names;
  void** values;
};

inline constexpr std::int32_t kExecuteStage = 3;
struct CallFrame {
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  ExecutionContext* context;
  std::int32_t stage;
  Buffers operands;
  Buffers results;
  Attributes attributes;
};

using Handler = Error*(CallFrame*);

// The runtime compares struct_size with the end of the last field, without padding.
template <class Struct, class Field>
std::size_t struct_size(const Struct& whole, const Field& last) {
  return static_cast<std::size_t>(reinterpret_cast<const char*>(&last + 1) -
                                  reinterpret_cast<const char*>(&whole));
}

static_assert(sizeof(void*) == 8, "the offsets below are those of a 64-bit ABI");
static_assert(offsetof(Api, error_create) == 48 && offsetof(Api, stream_get) == 80);
static_assert(offsetof(Metadata, traits) == 32 && offsetof(MetadataExtension, metadata) == 24);
static_assert(offsetof(Buffer, data) == 24 && offsetof(Buffer, dims) == 40);
static_assert(offsetof(CallFrame, stage) == 32 && offsetof(CallFrame, operands) == 40 &&
              offsetof(CallFrame, results) == 80 && offsetof(CallFrame, attributes) == 120);

}  // namespace membound::xla
