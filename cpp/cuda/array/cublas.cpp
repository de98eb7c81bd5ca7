// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/array/cublas.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <type_traits>

#include "cuda/launch/launch.hpp"
#include "membound/device_buffer.hpp"
#include "membound/error.hpp"

namespace membound::cuda {

namespace {

// What is used of cublas_api.h and library_types.h, whose numbers are part of its ABI.
using Handle = void*;
enum Status : int { kSuccess = 0 };
enum Operation : int { kNone = 0, kTransposed = 1 };
enum DataType : int { kR32F = 0, kR64F = 1, kR16F = 2, kR16BF = 14 };
enum ComputeType : int { kCompute32F = 68, kCompute64F = 70 };
inline constexpr int kDefaultAlgorithm = -1;
inline constexpr int kNo16BitSums = 16;                   // partial sums stay in float32
inline constexpr std::size_t kWorkspaceBytes = 32 << 20;  // what NVIDIA recommends for 9.0

struct Library {
  Status (*create)(Handle*) = nullptr;
  Status (*set_stream)(Handle, void*) = nullptr;
  Status (*set_workspace)(Handle, void*, std::size_t) = nullptr;
  Status (*set_math_mode)(Handle, int) = nullptr;
  Status (*gemm)(Handle, Operation, Operation, int m, int n, int k, const void* alpha,
                 const void* a, DataType, int lda, long long stride_a, const void* b, DataType,
                 int ldb, long long stride_b, const void* beta, void* c, DataType, int ldc,
                 long long stride_c, int batch, ComputeType, int algorithm) = nullptr;
  bool is_there = false;
};

void* open_library() {
  const char* asked = std::getenv("MEMBOUND_CUBLAS");
  if (asked != nullptr && *asked != '\0')
    return std::strcmp(asked, "off") == 0 ? nullptr : dlopen(asked, RTLD_NOW | RTLD_LOCAL);
  constexpr const char* kNames[] = {"libcublas.so.13", "libcublas.so.12"};
  for (const int flags : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* name : kNames) {
      if (void* found = dlopen(name, flags)) return found;
    }
  }
  return nullptr;
}

Library load() {
  Library library;
  void* file = open_library();
  if (file == nullptr) return library;
  library.is_there = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, name));
    library.is_there = library.is_there && function != nullptr;
  };
  find(library.create, "cublasCreate_v2");
  find(library.set_stream, "cublasSetStream_v2");
  find(library.set_workspace, "cublasSetWorkspace_v2");
  find(library.set_math_mode, "cublasSetMathMode");
  find(library.gemm, "cublasGemmStridedBatchedEx");
  return library;
}

const Library& the_library() {
  static const Library library = load();
  return library;
}

void check(Status status, const char* call) {
  if (status == kSuccess) return;
  throw CudaError(status, "cuBLAS status " + std::to_string(status),
                  std::string("matmul: ") + call + " failed with status " + std::to_string(status));
}

// One matrix as cuBLAS sees it: columns are adjacent, or rows.
struct Matrix {
  const char* data;
  Operation operation;
  std::int64_t leading;
};

// rows x cols of a matrix in row-major order is the transpose of a column-major one.
bool describe(const ArrayOperand& operand, const std::int64_t (&strides)[2], std::int64_t rows,
              std::int64_t cols, Matrix& matrix) {
  const std::int64_t row = rows == 1 ? cols : strides[0], col = cols == 1 ? 1 : strides[1];
  matrix.data = static_cast<const char*>(operand.data);
  if (col == 1 && row >= cols && row <= INT_MAX) {
    matrix.operation = kNone;
    matrix.leading = row;
    return true;
  }
  const std::int64_t across = cols == 1 ? rows : strides[1];
  matrix.operation = kTransposed;
  matrix.leading = across;
  return (rows == 1 || strides[0] == 1) && across >= rows && across <= INT_MAX;
}

DataType data_type(DType dtype) {
  if (dtype == DType::kFloat16) return kR16F;
  if (dtype == DType::kBFloat16) return kR16BF;
  return dtype == DType::kFloat32 ? kR32F : kR64F;
}

// The handles, one per device, and the lock under which they are used.
std::mutex& handle_lock() {
  static std::mutex lock;
  return lock;
}
Handle handle_of(const Library& library, int device) {
  static Handle handles[kMaxDevices];
  if (handles[device] == nullptr) {
    check(library.create(&handles[device]), "cublasCreate");
    check(library.set_math_mode(handles[device], kNo16BitSums), "cublasSetMathMode");
  }
  return handles[device];
}

}  // namespace

bool has_cublas() { return the_library().is_there; }

bool cublas_matmul(const ArrayMatmul& problem, StreamView stream) {
  const Library& library = the_library();
  if (!library.is_there || !is_floating(problem.dtype)) return false;
  Matrix a, b, result;
  if (!describe(problem.a, problem.a_strides, problem.rows, problem.inner, a) ||
      !describe(problem.b, problem.b_strides, problem.inner, problem.columns, b) ||
      !describe(problem.result, problem.result_strides, problem.rows, problem.columns, result) ||
      result.operation != kNone)
    return false;
  const int last = problem.batch.rank - 1;
  const std::int64_t batch = last < 0 ? 1 : problem.batch.shape[last];
  if (std::max({problem.rows, problem.columns, problem.inner, batch}) > INT_MAX) return false;
  const DataType type = data_type(problem.dtype);
  const ComputeType compute = type == kR64F ? kCompute64F : kCompute32F;
  const float one = 1, zero = 0;
  const double one64 = 1, zero64 = 0;
  const void* const alpha = type == kR64F ? static_cast<const void*>(&one64) : &one;
  const void* const beta = type == kR64F ? static_cast<const void*>(&zero64) : &zero;
  const auto stride = [&](const ArrayOperand& operand) {
    return last < 0 ? 0LL : static_cast<long long>(operand.strides[last]);
  };
  const auto size = static_cast<std::int64_t>(dtype_size(problem.dtype));
  const int device = current_device();
  const DeviceBuffer workspace(kWorkspaceBytes, Device::cuda(device), stream);
  const std::lock_guard<std::mutex> guard(handle_lock());
  const Handle handle = handle_of(library, device);
  check(library.set_stream(handle, stream.handle()), "cublasSetStream");
  check(library.set_workspace(handle, workspace.data(), kWorkspaceBytes), "cublasSetWorkspace");
  const std::int64_t calls = problem.batch.size() / batch;
  for (std::int64_t call = 0; call < calls; ++call) {
    std::int64_t rest = call, at[3] = {};
    for (int axis = last - 1; axis >= 0; --axis) {
      const std::int64_t coordinate = rest % problem.batch.shape[axis];
      rest /= problem.batch.shape[axis];
      at[0] += coordinate * problem.a.strides[axis];
      at[1] += coordinate * problem.b.strides[axis];
      at[2] += coordinate * problem.result.strides[axis];
    }
    // Row-major result = a b is column-major result^T = b^T a^T.
    check(library.gemm(handle, b.operation, a.operation, static_cast<int>(problem.columns),
                       static_cast<int>(problem.rows), static_cast<int>(problem.inner), alpha,
                       b.data + at[1] * size, type, static_cast<int>(b.leading), stride(problem.b),
                       a.data + at[0] * size, type, static_cast<int>(a.leading), stride(problem.a),
                       beta, static_cast<char*>(problem.result.data) + at[2] * size, type,
                       static_cast<int>(result.leading), stride(problem.result),
                       static_cast<int>(batch), compute, kDefaultAlgorithm),
          "cublasGemmStridedBatchedEx");
  }
  return true;
}

}  // namespace membound::cuda
