// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "membound/dtype.hpp"

// The part of torch's stable C interface that our operators use, declared here so that neither
// building nor linking needs torch: the functions are looked up in the libraries that `import
// torch` has loaded. It is the interface of torch 2.10. Older versions lack strings and lists; with
// them operators stay Python functions. Checked against torch 2.13.
namespace membound::python::shim {

// An argument or result of an operator in the interface's form. A number is stored as its bits; a
// tensor, string or list as a pointer to an object that the receiver owns; an optional as 0 or a
// pointer to a Value on the heap, which the receiver owns too.
using Value = std::uint64_t;
static_assert(sizeof(void*) == sizeof(Value));

using Boxed = void (*)(Value* stack, std::uint64_t arguments, std::uint64_t results);

struct TensorObject;
struct LibraryObject;
struct StringObject;
struct ListObject;
using TensorHandle = TensorObject*;
using LibraryHandle = LibraryObject*;
using StringHandle = StringObject*;
using ListHandle = ListObject*;

using Status = std::int32_t;  // 0: success; otherwise torch has printed the reason

// Every required function: its member here, its symbol, its parameters.
#define MEMBOUND_TORCH_FUNCTIONS(_)                                                        \
  _(new_library, aoti_torch_library_init_impl,                                             \
    (const char* space, const char* key, const char* file, std::uint32_t line,             \
     LibraryHandle* library))                                                              \
  _(implement, torch_library_impl,                                                         \
    (LibraryHandle library, const char* name, Boxed kernel, std::uint64_t made_for))       \
  _(delete_tensor, aoti_torch_delete_tensor_object, (TensorHandle tensor))                 \
  _(data, aoti_torch_get_data_ptr, (TensorHandle tensor, void** data))                     \
  _(rank, aoti_torch_get_dim, (TensorHandle tensor, std::int64_t* rank))                   \
  _(shape, aoti_torch_get_sizes, (TensorHandle tensor, std::int64_t** borrowed))           \
  _(strides, aoti_torch_get_strides, (TensorHandle tensor, std::int64_t** borrowed))       \
  _(dtype, aoti_torch_get_dtype, (TensorHandle tensor, std::int32_t* dtype))               \
  _(device_type, aoti_torch_get_device_type, (TensorHandle tensor, std::int32_t* type))    \
  _(device_index, aoti_torch_get_device_index, (TensorHandle tensor, std::int32_t* index)) \
  _(empty_strided, aoti_torch_empty_strided,                                               \
    (std::int64_t rank, const std::int64_t* shape, const std::int64_t* strides,            \
     std::int32_t dtype, std::int32_t device_type, std::int32_t device_index,              \
     TensorHandle* tensor))                                                                \
  _(string_length, torch_string_length, (StringHandle string, std::size_t* length))        \
  _(string_text, torch_string_c_str, (StringHandle string, const char** borrowed))         \
  _(delete_string, torch_delete_string, (StringHandle string))                             \
  _(list_size, torch_list_size, (ListHandle list, std::size_t* size))                      \
  _(list_item, torch_list_get_item, (ListHandle list, std::size_t index, Value* item))     \
  _(delete_list, torch_delete_list, (ListHandle list))

struct Functions {
#define MEMBOUND_MEMBER(member, symbol, parameters) Status(*member) parameters = nullptr;
  MEMBOUND_TORCH_FUNCTIONS(MEMBOUND_MEMBER)
#undef MEMBOUND_MEMBER
  // Newer than 2.10: if null, `delete` is used instead.
  Status (*delete_value)(Value* value) = nullptr;
  // From the CUDA library: null without one.
  Status (*cuda_stream)(std::int32_t device_index, void** stream) = nullptr;

  // torch's enumerators, which the interface does not fix but returns from getters.
  std::int32_t cpu = -1;
  std::int32_t cuda = -1;
  std::int32_t dtypes[static_cast<int>(DType::kComplex128) + 1];
};

// The version of the interface that is declared above: major and minor, in torch's encoding.
inline constexpr std::uint64_t kMadeFor = 2ULL << 56 | 10ULL << 48;

// The functions of the loaded torch; null without torch or if it lacks one. Lookup is repeated
// until it succeeds. Needs the GIL.
const Functions* find_functions();

// The same without a lookup, for kernels, which are registered only after it succeeded.
extern const Functions* functions;

}  // namespace membound::python::shim
