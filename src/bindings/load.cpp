// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "load.hpp"

#include <atomic>
#include <bit>
#include <cstring>

#include "core/check.hpp"
#include "errors.hpp"
#include "membound/ndarray.hpp"

namespace membound::python {

namespace {

nb::object get(PyObject* object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object, name);
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value);
}

[[noreturn, gnu::cold]] void fail_dtype(PyObject* array, Site site) {
  const nb::object dtype = nb::getattr(array, "dtype", nb::none());  // not every producer has one
  fail<TypeMismatch>(site.op, "argument '", site.argument, "' has dtype ",
                     dtype.is_none() ? "of another kind or size" : str_of(dtype),
                     ", which no op takes");
}

void check_rank(std::int64_t rank, Site site) {
  MEMBOUND_CHECK(rank >= 0 && rank <= kMaxRank, InvalidArgument, site.op, "argument '",
                 site.argument, "' must have at most ", kMaxRank, " axes, got ", rank);
}

// ---- DLPack tensors -----------------------------------------------------------------------------

bool find_dtype(dlpack::DataType type, DType& dtype) {
  if (type.lanes != 1) return false;
  switch (type.code << 8 | type.bits) {
    case dlpack::kFloat << 8 | 16: dtype = DType::kFloat16; return true;
    case dlpack::kFloat << 8 | 32: dtype = DType::kFloat32; return true;
    case dlpack::kFloat << 8 | 64: dtype = DType::kFloat64; return true;
    case dlpack::kBFloat << 8 | 16: dtype = DType::kBFloat16; return true;
    case dlpack::kFloat8E4M3Fn << 8 | 8: dtype = DType::kFloat8E4M3; return true;
    case dlpack::kFloat8E5M2 << 8 | 8: dtype = DType::kFloat8E5M2; return true;
    case dlpack::kInt << 8 | 8: dtype = DType::kInt8; return true;
    case dlpack::kInt << 8 | 16: dtype = DType::kInt16; return true;
    case dlpack::kInt << 8 | 32: dtype = DType::kInt32; return true;
    case dlpack::kInt << 8 | 64: dtype = DType::kInt64; return true;
    case dlpack::kUInt << 8 | 8: dtype = DType::kUInt8; return true;
    case dlpack::kUInt << 8 | 16: dtype = DType::kUInt16; return true;
    case dlpack::kUInt << 8 | 32: dtype = DType::kUInt32; return true;
    case dlpack::kUInt << 8 | 64: dtype = DType::kUInt64; return true;
    case dlpack::kBool << 8 | 8: dtype = DType::kBool; return true;
    case dlpack::kComplex << 8 | 64: dtype = DType::kComplex64; return true;
    case dlpack::kComplex << 8 | 128: dtype = DType::kComplex128; return true;
    default: return false;
  }
}

Device device_from_dlpack(dlpack::DeviceId device, Site site) {
  switch (device.type) {
    case dlpack::kCpu: return Device::cpu();
    case dlpack::kCudaHost: return Device::cuda_host();
    case dlpack::kCuda:
    case dlpack::kCudaManaged: return Device::cuda(device.index);
    default:
      fail<InvalidArgument>(site.op, "argument '", site.argument,
                            "' must be on the CPU or a CUDA device, got DLPack device type ",
                            device.type);
  }
}

void view_from_dlpack(const dlpack::Tensor& tensor, PyObject* array, Site site, TensorView& view) {
  check_rank(tensor.rank, site);
  MEMBOUND_CHECK(tensor.shape != nullptr || tensor.rank == 0, InvalidArgument, site.op,
                 "argument '", site.argument, "' gives no shape for its ", tensor.rank, " axes");
  if (!find_dtype(tensor.dtype, view.dtype)) fail_dtype(array, site);
  view.device = device_from_dlpack(tensor.device, site);
  view.rank = tensor.rank;
  std::int64_t contiguous = 1;
  bool fits = true;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    view.shape[axis] = tensor.shape[axis];
    view.strides[axis] = tensor.strides != nullptr ? tensor.strides[axis] : contiguous;
    fits &= tensor.shape[axis] >= 0 &&
            !__builtin_mul_overflow(contiguous, tensor.shape[axis], &contiguous);
  }
  MEMBOUND_CHECK(fits, InvalidArgument, site.op, "argument '", site.argument,
                 "' must not have a negative extent or more elements than 64 bits count");
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  MEMBOUND_CHECK(tensor.data != nullptr || contiguous == 0, InvalidArgument, site.op, "argument '",
                 site.argument, "' has no memory (its storage was freed, or it is a placeholder)");
}

// The tensor in a capsule. The capsule is never renamed, so dropping it releases the tensor.
const dlpack::Tensor& tensor_from_capsule(PyObject* capsule, bool& writable, Site site) {
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    auto* managed = static_cast<dlpack::ManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    MEMBOUND_CHECK(managed->version.major == dlpack::kMajorVersion, TypeMismatch, site.op,
                   "argument '", site.argument, "' must speak DLPack 1.x, got version ",
                   managed->version.major, ".", managed->version.minor);
    writable = (managed->flags & (dlpack::kReadOnlyFlag | dlpack::kCopiedFlag)) == 0;
    return managed->tensor;
  }
  MEMBOUND_CHECK(PyCapsule_IsValid(capsule, "dltensor"), TypeMismatch, site.op, "argument '",
                 site.argument, "' must give a DLPack capsule from __dlpack__, got ",
                 repr_of(capsule));
  return static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"))->tensor;
}

// ---- torch --------------------------------------------------------------------------------------

// A lazily negated view (the imaginary part of a conjugate) stores the wrong sign, in any layout.
void check_not_negated(PyObject* array, const Framework& framework, Site site) {
  const nb::object negated = nb::steal(call_one(framework.is_neg, array));
  if (!negated.is_valid()) throw nb::python_error();
  MEMBOUND_CHECK(negated.ptr() != Py_True, TypeMismatch, site.op, "argument '", site.argument,
                 "' is a lazily negated torch view; call .resolve_neg() first");
}

[[noreturn, gnu::cold]] void fail_unreadable(Site site) {
  const std::string reason = take_python_error();
  fail<TorchCanTake<TypeMismatch>>(
      site.op, "argument '", site.argument,
      "' is a torch tensor without plain strided memory (meta, sparse, quantized, "
      "or inside a torch.func transform): ",
      reason);
}

void load_torch(PyObject* array, const Framework& framework, Site site, LoadedArray& loaded) {
  if (framework.exchange != nullptr) [[likely]] {
    dlpack::Tensor tensor;
    if (framework.exchange->borrow(array, &tensor) != 0) fail_unreadable(site);
    view_from_dlpack(tensor, array, site, loaded.view);
  } else {
    PyObject* capsule = call_one(framework.to_dlpack, array);
    if (capsule == nullptr) fail_unreadable(site);
    // The capsule can be dropped at once: the caller's argument keeps the storage alive.
    const nb::object owner = nb::steal(capsule);
    view_from_dlpack(tensor_from_capsule(capsule, loaded.writable, site), array, site, loaded.view);
  }
  check_not_negated(array, framework, site);
}

// ---- NumPy and CuPy -----------------------------------------------------------------------------

// The struct in NumPy's __array_struct__ capsule: the array interface, version 2.
struct NumpyInterface {
  int version;
  int rank;
  char kind;
  int item_size;
  int flags;
  Py_intptr_t* shape;
  Py_intptr_t* strides;  // in bytes
  void* data;
  PyObject* description;
};
constexpr int kNumpyNativeOrder = 0x200;
constexpr int kNumpyWritable = 0x400;

// Converts a stride from bytes to elements, by a shift, as a division costs 5 ns and dtype sizes
// are powers of two. The stride of an axis with one element is ignored.
std::int64_t element_stride(std::int64_t bytes, std::int64_t extent, std::int64_t item_size,
                            Site site) {
  MEMBOUND_CHECK((bytes & (item_size - 1)) == 0 || extent <= 1, InvalidArgument, site.op,
                 "argument '", site.argument, "' must have strides that are multiples of its ",
                 item_size, "-byte element size, got a stride of ", bytes, " bytes");
  return bytes >> std::countr_zero(static_cast<std::uint64_t>(item_size));
}

void load_numpy(PyObject* array, Site site, LoadedArray& loaded) {
  const nb::object capsule = get(array, names().array_struct);
  auto* numpy = static_cast<NumpyInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (numpy == nullptr) throw nb::python_error();
  TensorView& view = loaded.view;
  check_rank(numpy->rank, site);
  if (numpy->kind == 'f' && numpy->item_size == 4) [[likely]] {
    view.dtype = DType::kFloat32;
  } else {
    view.dtype =
        dtype_from_numpy(numpy->kind, numpy->item_size, nb::handle(array).attr("dtype"), site);
  }
  MEMBOUND_CHECK((numpy->flags & kNumpyNativeOrder) != 0, TypeMismatch, site.op, "argument '",
                 site.argument, "' must have native byte order, got ",
                 str_of(nb::handle(array).attr("dtype").attr("str")));
  loaded.writable = (numpy->flags & kNumpyWritable) != 0;
  view.device = Device::cpu();
  view.data = numpy->data;
  view.rank = numpy->rank;
  for (int axis = 0; axis < numpy->rank; ++axis) {
    view.shape[axis] = numpy->shape[axis];
    view.strides[axis] =
        element_stride(numpy->strides[axis], numpy->shape[axis], numpy->item_size, site);
  }
}

// Attributes are cheaper than __dlpack__, which queries the driver about the pointer, and they make
// no stream wait.
void load_cupy(PyObject* array, Site site, LoadedArray& loaded) {
  const nb::handle source(array);
  const nb::object dtype = source.attr("dtype");
  const auto item_size = nb::cast<std::int64_t>(dtype.attr("itemsize"));
  TensorView& view = loaded.view;
  view.dtype = dtype_from_numpy(*nb::cast<const char*>(dtype.attr("kind")), item_size, dtype, site);
  const nb::tuple shape = source.attr("shape");
  const nb::tuple strides = source.attr("strides");
  check_rank(static_cast<std::int64_t>(shape.size()), site);
  view.rank = static_cast<std::int32_t>(shape.size());
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = nb::cast<std::int64_t>(shape[axis]);
    view.strides[axis] =
        element_stride(nb::cast<std::int64_t>(strides[axis]), view.shape[axis], item_size, site);
  }
  view.device = Device::cuda(nb::cast<int>(source.attr("device").attr("id")));
  view.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(source.attr("data").attr("ptr")));
  MEMBOUND_CHECK(view.data != nullptr || view.size() == 0, InvalidArgument, site.op, "argument '",
                 site.argument, "' has no memory");
}

// ---- the buffer protocol ------------------------------------------------------------------------

void load_buffer(PyObject* array, Site site, LoadedArray& loaded) {
  // A memoryview keeps the export alive, so that the memory cannot be resized during the op.
  loaded.keep_alive = nb::steal(PyMemoryView_FromObject(array));
  Py_buffer buffer;
  if (!loaded.keep_alive.is_valid() ||
      PyObject_GetBuffer(loaded.keep_alive.ptr(), &buffer, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    fail<InvalidArgument>(site.op, "argument '", site.argument,
                          "' offers no plain strided buffer: ", take_python_error());
  }
  const std::string format = buffer.format != nullptr ? buffer.format : "B";
  const std::int64_t item_size = buffer.itemsize;
  TensorView& view = loaded.view;
  view.data = buffer.buf;
  view.device = Device::cpu();
  view.rank = buffer.ndim;  // Python's own limit is 64
  loaded.writable = buffer.readonly == 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = buffer.shape[axis];
    view.strides[axis] = buffer.strides[axis];  // still in bytes
  }
  PyBuffer_Release(&buffer);
  MEMBOUND_CHECK(format.size() == 1 && std::strchr("efdbilq", format[0]) != nullptr, TypeMismatch,
                 site.op, "argument '", site.argument,
                 "' must have the buffer format 'e', 'f', 'd', 'b', 'i', 'l' or 'q', got '", format,
                 "'");
  switch (format[0]) {
    case 'e': view.dtype = DType::kFloat16; break;
    case 'f': view.dtype = DType::kFloat32; break;
    case 'd': view.dtype = DType::kFloat64; break;
    case 'b': view.dtype = DType::kInt8; break;
    case 'i': view.dtype = DType::kInt32; break;
    default: view.dtype = DType::kInt64;
  }
  MEMBOUND_CHECK(item_size == static_cast<std::int64_t>(dtype_size(view.dtype)), TypeMismatch,
                 site.op, "argument '", site.argument, "' must have elements of ",
                 dtype_size(view.dtype), " bytes for its format '", format, "', got ", item_size);
  for (int axis = 0; axis < view.rank; ++axis) {
    view.strides[axis] = element_stride(view.strides[axis], view.shape[axis], item_size, site);
  }
}

// ---- membound's own arrays ----------------------------------------------------------------------

void load_ndarray(PyObject* object, LoadedArray& loaded) {
  const NDArray& array = *nb::inst_ptr<NDArray>(object);
  loaded.view = array.view();
  loaded.writable = array.writable();
}

// ---- anything with __dlpack__ -------------------------------------------------------------------

// CUDA's numbering in the standard: 1 is the legacy default stream, 0 is not allowed.
nb::object dlpack_stream(Device device, StreamView stream) {
  if (!device.is_cuda()) return nb::none();
  const auto handle = reinterpret_cast<std::uintptr_t>(stream.handle());
  return nb::int_(handle == 0 ? std::uintptr_t{1} : handle);
}

dlpack::DeviceId dlpack_device(nb::handle array, Site site) {
  const nb::object answer = array.attr(nb::handle(names().dlpack_device))();
  dlpack::DeviceId id{};
  const bool is_pair = nb::isinstance<nb::tuple>(answer) && nb::len(answer) == 2 &&
                       nb::try_cast(answer[0], id.type) && nb::try_cast(answer[1], id.index);
  MEMBOUND_CHECK(is_pair, TypeMismatch, site.op, "argument '", site.argument,
                 "' must give a device type and a number from __dlpack_device__, got ",
                 repr_of(answer));
  return id;
}

nb::object export_capsule(nb::handle array, nb::handle stream) {
  const nb::object method = array.attr(nb::handle(names().dlpack));
  try {
    return method(nb::arg("stream") = stream, nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // a DLPack 0.x producer has no max_version
  }
  return method(nb::arg("stream") = stream);
}

}  // namespace

void load_dlpack(PyObject* array, Site site, StreamView stream, LoadedArray& loaded) {
  const nb::handle source(array);
  const Device device = device_from_dlpack(dlpack_device(source, site), site);
  try {
    loaded.keep_alive = export_capsule(source, dlpack_stream(device, stream));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_BufferError) && !error.matches(PyExc_TypeError)) throw;
    fail<TypeMismatch>(site.op, "argument '", site.argument,
                       "' cannot be exported: ", str_of(error.value()));
  }
  view_from_dlpack(tensor_from_capsule(loaded.keep_alive.ptr(), loaded.writable, site), array, site,
                   loaded.view);
}

void load_tensor(const dlpack::Tensor& tensor, Site site, LoadedArray& loaded) {
  view_from_dlpack(tensor, Py_None, site, loaded.view);
}

void load_array(PyObject* array, const Framework& framework, Site site, StreamView device_stream,
                LoadedArray& loaded) {
  switch (framework.kind) {
    case Kind::kTorch: return load_torch(array, framework, site, loaded);
    case Kind::kNumPy: return load_numpy(array, site, loaded);
    case Kind::kCuPy: return load_cupy(array, site, loaded);
    case Kind::kBuffer: return load_buffer(array, site, loaded);
    case Kind::kDlpack: return load_dlpack(array, site, device_stream, loaded);
    case Kind::kArray: return load_ndarray(array, loaded);
    case Kind::kJax:
      fail<TypeMismatch>(site.op, "argument '", site.argument, "' is a JAX array, 'x' is not");
  }
}

DType dtype_from_numpy(char kind, std::int64_t item_size, nb::handle dtype, Site site) {
  switch (kind << 8 | static_cast<int>(item_size)) {
    case 'f' << 8 | 2: return DType::kFloat16;
    case 'f' << 8 | 4: return DType::kFloat32;
    case 'f' << 8 | 8: return DType::kFloat64;
    case 'i' << 8 | 2: return DType::kInt16;
    case 'i' << 8 | 4: return DType::kInt32;
    case 'i' << 8 | 8: return DType::kInt64;
    case 'u' << 8 | 2: return DType::kUInt16;
    case 'u' << 8 | 4: return DType::kUInt32;
    case 'u' << 8 | 8: return DType::kUInt64;
    case 'b' << 8 | 1: return DType::kBool;
    case 'c' << 8 | 8: return DType::kComplex64;
    case 'c' << 8 | 16: return DType::kComplex128;
    default: break;
  }
  // Other dtypes are identified by the object (ml_dtypes' types are raw bytes to NumPy, a byte may
  // be an int4). The first bfloat16 object is cached: one comparison replaces a Python call.
  static std::atomic<PyObject*> bfloat16{nullptr};
  if (dtype.ptr() == bfloat16.load(std::memory_order_acquire)) return DType::kBFloat16;
  const nb::object code = arrays_module().attr("dtype_code")(dtype);
  MEMBOUND_CHECK(!code.is_none(), TypeMismatch, site.op, "argument '", site.argument,
                 "' has dtype ", str_of(dtype), ", which no op takes");
  const auto found = static_cast<DType>(nb::cast<int>(code));
  if (found == DType::kBFloat16 && bfloat16.load(std::memory_order_relaxed) == nullptr) {
    bfloat16.store(dtype.inc_ref().ptr(), std::memory_order_release);
  }
  return found;
}

bool is_contiguous(const TensorView& view) {
  std::int64_t expected = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    if (view.shape[axis] == 0) return true;
    if (view.shape[axis] != 1 && view.strides[axis] != expected) return false;
    expected *= view.shape[axis];
  }
  return true;
}

}  // namespace membound::python
