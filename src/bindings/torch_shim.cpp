// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "torch_shim.hpp"

#include <dlfcn.h>

namespace membound::python::shim {

namespace {

template <class Function>
bool find(void* library, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, symbol));
  return function != nullptr;
}

// The getters of torch's enumerators.
struct Number {
  const char* symbol;
  DType dtype;
};
constexpr Number kNumbers[] = {
    {"aoti_torch_dtype_float16", DType::kFloat16},
    {"aoti_torch_dtype_bfloat16", DType::kBFloat16},
    {"aoti_torch_dtype_float32", DType::kFloat32},
    {"aoti_torch_dtype_float64", DType::kFloat64},
    {"aoti_torch_dtype_float8_e4m3fn", DType::kFloat8E4M3},
    {"aoti_torch_dtype_float8_e5m2", DType::kFloat8E5M2},
    {"aoti_torch_dtype_int8", DType::kInt8},
    {"aoti_torch_dtype_int16", DType::kInt16},
    {"aoti_torch_dtype_int32", DType::kInt32},
    {"aoti_torch_dtype_int64", DType::kInt64},
    {"aoti_torch_dtype_uint8", DType::kUInt8},
    {"aoti_torch_dtype_uint16", DType::kUInt16},
    {"aoti_torch_dtype_uint32", DType::kUInt32},
    {"aoti_torch_dtype_uint64", DType::kUInt64},
    {"aoti_torch_dtype_bool", DType::kBool},
    {"aoti_torch_dtype_complex64", DType::kComplex64},
    {"aoti_torch_dtype_complex128", DType::kComplex128},
};

bool ask(void* library, const char* symbol, std::int32_t& number) {
  std::int32_t (*getter)();
  if (!find(library, symbol, getter)) return false;
  number = getter();
  return true;
}

bool fill(void* library, Functions& all) {
#define MEMBOUND_FIND(member, symbol, parameters) \
  if (!find(library, #symbol, all.member)) return false;
  MEMBOUND_TORCH_FUNCTIONS(MEMBOUND_FIND)
#undef MEMBOUND_FIND
  find(library, "torch_delete_stable_ivalue", all.delete_value);
  for (std::int32_t& number : all.dtypes) number = -1;
  for (const Number& number : kNumbers) {
    if (!ask(library, number.symbol, all.dtypes[static_cast<int>(number.dtype)])) return false;
  }
  return ask(library, "aoti_torch_device_type_cpu", all.cpu) &&
         ask(library, "aoti_torch_device_type_cuda", all.cuda);
}

}  // namespace

const Functions* functions = nullptr;

const Functions* find_functions() {
  static Functions found;
  if (functions != nullptr) return functions;
  void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr || !fill(library, found)) return nullptr;
  if (void* cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) {
    find(cuda, "aoti_torch_get_current_cuda_stream", found.cuda_stream);
  }
  return functions = &found;
}

}  // namespace membound::python::shim
