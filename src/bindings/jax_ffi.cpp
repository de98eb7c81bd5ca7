// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// XLA calls our ops here, without Python: one handler per op and platform, for every dtype.
#include "jax_ffi.hpp"

#include <cfenv>
#include <cstring>
#include <exception>
#include <string>

#include "membound/membound.hpp"
#include "xla_ffi.hpp"

namespace nb = nanobind;

namespace membound::python {

namespace {

DType dtype_of(xla::DataType dtype) {
  switch (dtype) {
    case xla::DataType::kPred: return DType::kBool;
    case xla::DataType::kS8: return DType::kInt8;
    case xla::DataType::kS16: return DType::kInt16;
    case xla::DataType::kS32: return DType::kInt32;
    case xla::DataType::kS64: return DType::kInt64;
    case xla::DataType::kU8: return DType::kUInt8;
    case xla::DataType::kU16: return DType::kUInt16;
    case xla::DataType::kU32: return DType::kUInt32;
    case xla::DataType::kU64: return DType::kUInt64;
    case xla::DataType::kF16: return DType::kFloat16;
    case xla::DataType::kF32: return DType::kFloat32;
    case xla::DataType::kF64: return DType::kFloat64;
    case xla::DataType::kC64: return DType::kComplex64;
    case xla::DataType::kBF16: return DType::kBFloat16;
    case xla::DataType::kC128: return DType::kComplex128;
    case xla::DataType::kF8E5M2: return DType::kFloat8E5M2;
    case xla::DataType::kF8E4M3FN: return DType::kFloat8E4M3;
  }
  throw TypeMismatch("JAX array of XLA data type " + std::to_string(static_cast<int>(dtype)) +
                     ", which membound does not know");
}

// One invocation, decoded on demand.
struct Call {
  const xla::CallFrame& frame;
  Device device;
  StreamView stream;

  TensorView operand(std::int64_t index) const { return view(frame.operands, index); }
  TensorView result(std::int64_t index) const { return view(frame.results, index); }

  template <class T>
  T attribute(const char* name, xla::DataType dtype) const {
    const xla::Attributes& all = frame.attributes;
    for (std::int64_t i = 0; i < all.size; ++i) {
      const xla::ByteSpan& found = *all.names[i];
      if (found.size != std::strlen(name) || std::memcmp(found.data, name, found.size) != 0)
        continue;
      const auto* scalar = static_cast<const xla::Scalar*>(all.values[i]);
      if (all.types[i] != xla::kScalarAttribute || scalar->dtype != dtype) break;
      return *static_cast<const T*>(scalar->value);
    }
    throw InvalidArgument(std::string("attribute '") + name + "' is missing or of another type");
  }

 private:
  TensorView view(const xla::Buffers& buffers, std::int64_t index) const {
    const auto& buffer = *static_cast<const xla::Buffer*>(buffers.values[index]);
    TensorView view(buffer.data, dtype_of(buffer.dtype), device, {});
    if (buffer.rank > kMaxRank) {
      view.rank = kMaxRank + 1;  // every op refuses it by name
      return view;
    }
    view.rank = static_cast<std::int32_t>(buffer.rank);
    std::int64_t stride = 1;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      view.shape[axis] = buffer.dims[axis];
      view.strides[axis] = stride;
      stride *= buffer.dims[axis];
    }
    return view;
  }
};

// Element `index` of the leading `axes` axes, whose extents are `extents`. An axis of extent 1 that
// should be longer is one that vmap did not map: it repeats.
TensorView batch_element(const TensorView& batched, int axes, const std::int64_t* extents,
                         std::int64_t index) {
  TensorView view = batched;
  std::int64_t offset = 0;
  for (int axis = axes - 1; axis >= 0; --axis) {
    if (batched.shape[axis] > 1) offset += index % extents[axis] * batched.strides[axis];
    index /= extents[axis];
  }
  view.data = static_cast<char*>(batched.data) +
              offset * static_cast<std::int64_t>(dtype_size(batched.dtype));
  view.rank -= axes;
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = batched.shape[axis + axes];
    view.strides[axis] = batched.strides[axis + axes];
  }
  return view;
}

// Operands: x, then the weight if there is one. Results: out, then rstd if wanted. Under vmap with
// "expand_dims" every array has the same number of batch axes in front, so a weight's rank tells.
void rms_norm_call(const Call& call) {
  RmsNormOptions options;
  options.eps = call.attribute<double>("eps", xla::DataType::kF64);
  options.weight_offset = call.attribute<double>("weight_offset", xla::DataType::kF64);
  options.rounding =
      static_cast<Rounding>(call.attribute<std::int32_t>("rounding", xla::DataType::kS32));

  const bool has_weight = call.frame.operands.size > 1;
  const bool has_rstd = call.frame.results.size > 1;
  const TensorView x = call.operand(0);
  const TensorView out = call.result(0);
  const TensorView rstd = has_rstd ? call.result(1) : TensorView();
  const TensorView* rstd_or_none = has_rstd ? &rstd : nullptr;
  if (!has_weight) return rms_norm(x, nullptr, options, out, rstd_or_none, call.stream);

  TensorView weight = call.operand(1);
  const std::int64_t cols = weight.rank > 0 ? weight.shape[weight.rank - 1] : 0;
  if (weight.size() == cols) {  // the same weight everywhere: batch axes are rows like the others
    weight = batch_element(weight, weight.rank - 1, weight.shape, 0);
    const ConstTensorView shared = weight;
    return rms_norm(x, &shared, options, out, rstd_or_none, call.stream);
  }
  const int axes = weight.rank - 1;
  std::int64_t batch = 1;
  for (int axis = 0; axis < axes; ++axis) batch *= out.shape[axis];
  for (std::int64_t i = 0; i < batch; ++i) {
    const ConstTensorView one_weight = batch_element(weight, axes, out.shape, i);
    const TensorView one_rstd = has_rstd ? batch_element(rstd, axes, out.shape, i) : TensorView();
    rms_norm(batch_element(x, axes, out.shape, i), &one_weight, options,
             batch_element(out, axes, out.shape, i), has_rstd ? &one_rstd : nullptr, call.stream);
  }
}

xla::Error* make_error(const xla::CallFrame& frame, xla::ErrorCode code, const char* text) {
  xla::ErrorCreateArgs args{0, nullptr, text, code};
  args.struct_size = xla::struct_size(args, args.code);
  return frame.api->error_create(&args);
}

// True when this call only asks which ABI the handler was made for.
bool answer_metadata(const xla::CallFrame& frame) {
  for (xla::Extension* it = frame.extensions; it != nullptr; it = it->next) {
    if (it->type != xla::kMetadataExtension) continue;
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(it)->metadata;
    metadata.api_version.major = xla::kApiMajor;
    metadata.api_version.minor = xla::kApiMinor;
    metadata.traits = xla::kCommandBufferCompatible;  // nothing allocated, nothing synchronised
    return true;
  }
  return false;
}

template <auto kOp>
xla::Error* handle(const xla::CallFrame& frame, Device device, StreamView stream) noexcept {
  using Code = xla::ErrorCode;
  try {
    kOp(Call{frame, device, stream});
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

// XLA's CPU threads flush subnormal numbers to zero; our results are the same in every framework.
// The threads that our pool may start here would inherit that mode for good, too.
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

template <auto kOp>
xla::Error* cpu_handler(xla::CallFrame* frame) {
  if (answer_metadata(*frame) || frame->stage != xla::kExecuteStage) return nullptr;
  const DefaultFloatingPoint floating_point;
  return handle<kOp>(*frame, Device::cpu(), StreamView::legacy_default());
}

template <auto kOp>
xla::Error* cuda_handler(xla::CallFrame* frame) {
  if (answer_metadata(*frame) || frame->stage != xla::kExecuteStage) return nullptr;
  xla::StreamGetArgs args{0, nullptr, frame->context, nullptr};
  args.struct_size = xla::struct_size(args, args.stream);
  if (xla::Error* error = frame->api->stream_get(&args)) return error;
  // XLA has made the GPU of its stream current; API 0.1 has no other way to ask for it.
  try {
    return handle<kOp>(*frame, current_cuda_device(), StreamView::from_handle(args.stream));
  } catch (const std::exception& error) {
    return make_error(*frame, xla::ErrorCode::kInternal, error.what());
  }
}

nb::capsule capsule_of(xla::Handler* handler) {
  return nb::capsule(reinterpret_cast<const void*>(handler));
}

template <auto kOp>
nb::dict platforms() {
  nb::dict handlers;
  handlers["cpu"] = capsule_of(cpu_handler<kOp>);
  handlers["CUDA"] = capsule_of(cuda_handler<kOp>);
  return handlers;
}

nb::dict jax_ffi_targets() {
  nb::dict targets;
  targets["membound_rms_norm"] = platforms<rms_norm_call>();
  return targets;
}

}  // namespace

void bind_jax_ffi(nb::module_& module) {
  module.def("jax_ffi_targets", &jax_ffi_targets,
             "XLA FFI handlers: {target name: {platform: capsule}}.");
}

}  // namespace membound::python
