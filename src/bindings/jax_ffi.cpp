// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The handlers through which XLA calls our ops without Python: one per op and platform.
#include "jax_ffi.hpp"

#include <cfenv>
#include <exception>

#include "jax/traced_call.hpp"
#include "jax_handlers.hpp"
#include "membound/device.hpp"
#include "membound/error.hpp"
#include "membound/norm_call.hpp"
#include "membound/ops/embedding_backward.hpp"
#include "norm_ops.hpp"

namespace nb = nanobind;

namespace membound::python {

namespace {

using jax::Call;

xla::Error* make_error(const xla::CallFrame& frame, xla::ErrorCode code, const char* text) {
  xla::ErrorCreateArgs args{0, nullptr, text, code};
  args.struct_size = xla::struct_size(args, args.code);
  return frame.api->error_create(&args);
}

// True if this call only queries the ABI that the handler was built for.
bool answer_metadata(const xla::CallFrame& frame) {
  for (xla::Extension* it = frame.extensions; it != nullptr; it = it->next) {
    if (it->type != xla::kMetadataExtension) continue;
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(it)->metadata;
    metadata.api_version.major = xla::kApiMajor;
    metadata.api_version.minor = xla::kApiMinor;
    metadata.traits = xla::kCommandBufferCompatible;  // handlers neither allocate nor synchronise
    return true;
  }
  return false;
}

template <auto kRead>
xla::Error* handle(const xla::CallFrame& frame, Device device, StreamView stream) noexcept {
  using Code = xla::ErrorCode;
  try {
    const Call call{frame, device, stream};
    auto given = kRead(call);
    run_batch(call, given);
    return nullptr;
  } catch (const InvalidArgument& error) {
    return make_error(frame, Code::kInvalidArgument, error.what());
  } catch (const TypeMismatch& error) {
    return make_error(frame, Code::kInvalidArgument, error.what());
  } catch (const OutOfMemory& error) {
    return make_error(frame, Code::kResourceExhausted, error.what());
  } catch (const std::exception& error) {
    return make_error(frame, Code::kInternal, error.what());
  }
}

// XLA's CPU threads flush subnormal numbers to zero; ours must not, so that results are equal in
// every framework. Threads that our pool starts here would inherit that mode.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&callers_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t callers_;
};

template <auto kRead>
xla::Error* cpu_handler(xla::CallFrame* frame) {
  if (answer_metadata(*frame) || frame->stage != xla::kExecuteStage) return nullptr;
  const DefaultFloatingPoint floating_point;
  return handle<kRead>(*frame, Device::cpu(), StreamView::legacy_default());
}

template <auto kRead>
xla::Error* cuda_handler(xla::CallFrame* frame) {
  if (answer_metadata(*frame) || frame->stage != xla::kExecuteStage) return nullptr;
  xla::StreamGetArgs args{0, nullptr, frame->context, nullptr};
  args.struct_size = xla::struct_size(args, args.stream);
  if (xla::Error* error = frame->api->stream_get(&args)) return error;
  // XLA has made its stream's GPU current; API 0.1 has no other way to query the device.
  try {
    return handle<kRead>(*frame, current_cuda_device(), StreamView::from_handle(args.stream));
  } catch (const std::exception& error) {
    return make_error(*frame, xla::ErrorCode::kInternal, error.what());
  }
}

nb::capsule capsule_of(xla::Handler* handler) {
  return nb::capsule(reinterpret_cast<const void*>(handler));
}

template <auto kRead>
nb::dict platforms() {
  nb::dict handlers;
  handlers["cpu"] = capsule_of(cpu_handler<kRead>);
  handlers["CUDA"] = capsule_of(cuda_handler<kRead>);
  return handlers;
}

nb::dict jax_ffi_targets() {
  nb::dict targets;
  jax::each_handler([&]<auto kRead>(const char* target) { targets[target] = platforms<kRead>(); });
  return targets;
}

// XLA allocates the workspace with the results, so its size must be known while JAX traces, when
// the platform may be unknown. Rounded up so that each element of a batch is aligned.
DType dtype_of_size(int item_bytes) {
  return item_bytes == 8 ? DType::kFloat64 : item_bytes == 4 ? DType::kFloat32 : DType::kFloat16;
}
template <bool kCentred, bool kGated = false>
std::int64_t cuda_workspace_bytes(std::int64_t rows, std::int64_t cols, int item_bytes,
                                  std::int64_t heads, bool mixed) {
  const ConstTensorView x(nullptr, dtype_of_size(item_bytes), Device::cuda(), {rows, cols});
  return (membound::norm_backward_workspace(x, heads, kCentred, kGated, mixed) + 15) / 16 * 16;
}
std::int64_t embedding_workspace_bytes(std::int64_t tokens, std::int64_t dim, std::int64_t vocab,
                                       int item_bytes) {
  const ConstTensorView dy(nullptr, dtype_of_size(item_bytes), Device::cuda(), {tokens, dim});
  return (embedding_backward_workspace(dy, vocab) + 15) / 16 * 16;
}

}  // namespace

void bind_jax_ffi(nb::module_& module) {
  module.def("jax_ffi_targets", &jax_ffi_targets,
             "XLA FFI handlers: {target name: {platform: capsule}}.");
  module.def("rms_norm_backward_workspace", &cuda_workspace_bytes<false>, nb::arg("rows"),
             nb::arg("cols"), nb::arg("item_bytes"), nb::arg("heads") = 1, nb::arg("mixed") = false,
             "Bytes that rms_norm_backward sums dweight in on a GPU; heads of a weight of (heads, "
             "cols).");
  module.def("rms_norm_gated_backward_workspace", &cuda_workspace_bytes<false, true>,
             nb::arg("rows"), nb::arg("cols"), nb::arg("item_bytes"), nb::arg("heads") = 1,
             nb::arg("mixed") = false, "The same of rms_norm_gated_backward.");
  module.def("layer_norm_backward_workspace", &cuda_workspace_bytes<true>, nb::arg("rows"),
             nb::arg("cols"), nb::arg("item_bytes"), nb::arg("heads") = 1, nb::arg("mixed") = false,
             "Bytes that layer_norm_backward sums dweight and dbias in on a GPU; likewise.");
  module.def("embedding_backward_workspace", &embedding_workspace_bytes, nb::arg("tokens"),
             nb::arg("dim"), nb::arg("vocab"), nb::arg("item_bytes"),
             "Bytes that embedding_backward sorts and sums in on a GPU.");
  jax::bind_traced_calls(module);
}

}  // namespace membound::python
