// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Arrays to and from other libraries without copies: DLPack, the buffer protocol, CUDA's array
// interface.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "array/array.hpp"
#include "core/route.hpp"
#include "dlpack.hpp"
#include "load.hpp"
#include "ops/array/problems.hpp"

namespace membound::python {

namespace {

// --- DLPack, out ---

dlpack::DataType dlpack_dtype(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * dtype_size(dtype));
  if (dtype == DType::kBool) return {dlpack::kBool, bits, 1};
  if (dtype == DType::kBFloat16) return {dlpack::kBFloat, bits, 1};
  if (is_floating(dtype)) return {dlpack::kFloat, bits, 1};
  if (dtype == DType::kFloat8E4M3) return {dlpack::kFloat8E4M3Fn, bits, 1};
  if (dtype == DType::kFloat8E5M2) return {dlpack::kFloat8E5M2, bits, 1};
  return {dtype >= DType::kUInt8 ? dlpack::kUInt : dlpack::kInt, bits, 1};
}

dlpack::DeviceId dlpack_device(Device device) {
  if (device.is_cuda()) return {dlpack::kCuda, device.index};
  return {dlpack::kCpu, 0};
}

dlpack::Tensor tensor_of(const NDArray& array, std::int64_t* shape, std::int64_t* strides) {
  return {array.data(),
          dlpack_device(array.device()),
          array.rank(),
          dlpack_dtype(array.dtype()),
          shape,
          strides,
          0};
}

// The legacy default stream under both of its names. It is never destroyed, so that it can still be
// waited for when an exchanged array is dropped; other streams of others cannot.
constexpr bool is_legacy_default(StreamView stream) {
  return stream.handle() == nullptr || stream.handle() == StreamView::legacy_default().handle();
}

// Work on `then` waits for what is queued on `first`. Runs in deleters: errors are dropped, as the
// driver may be unloading.
void order_streams([[maybe_unused]] StreamView first, [[maybe_unused]] StreamView then,
                   [[maybe_unused]] Device device) noexcept {
#if MEMBOUND_WITH_CUDA
  try {
    cuda::order_streams(first, then, device);
  } catch (const std::exception&) {
  }
#endif
}

// What a capsule owns, with the struct of its version.
template <class Managed>
struct Export {
  explicit Export(NDArray array_)
      : array(std::move(array_)), shape(array.shape()), strides(array.strides()) {
    managed.tensor = tensor_of(array, shape.data(), strides.data());
    managed.context = this;
    managed.deleter = [](Managed* self) { delete static_cast<Export*>(self->context); };
  }
  // The memory is used again on our stream: after what the consumer has queued.
  ~Export() {
    if (on_legacy_default)
      order_streams(StreamView::legacy_default(), array_stream(array.device()), array.device());
  }
  NDArray array;
  NDArray::Dims shape, strides;
  bool on_legacy_default = false;
  Managed managed{};
};

template <class Managed>
nb::object capsule_of(Managed* managed, const char* name) {
  PyObject* capsule = PyCapsule_New(managed, name, [](PyObject* self) {
    // Consumers rename the capsule when they take the tensor over.
    for (const char* fresh : {"dltensor_versioned", "dltensor"}) {
      if (!PyCapsule_IsValid(self, fresh)) continue;
      auto* left = static_cast<Managed*>(PyCapsule_GetPointer(self, fresh));
      left->deleter(left);
      return;
    }
  });
  if (capsule == nullptr) {
    managed->deleter(managed);
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

[[noreturn]] void fail_export(const char* reason) {
  PyErr_SetString(PyExc_BufferError, reason);
  throw nb::python_error();
}

dlpack::ManagedTensorVersioned* versioned(NDArray array, bool copied,
                                          bool on_legacy_default = false) {
  const bool writable = array.writable();
  auto* made = new Export<dlpack::ManagedTensorVersioned>(std::move(array));
  made->on_legacy_default = on_legacy_default;
  made->managed.version = {dlpack::kMajorVersion, 1};
  made->managed.flags = (writable ? 0 : dlpack::kReadOnlyFlag) | (copied ? dlpack::kCopiedFlag : 0);
  return &made->managed;
}

// The consumer's stream waits for the work that is queued on ours. True if it is the legacy default
// stream of a GPU.
bool order_consumer(Device device, nb::handle stream) {
  if (!device.is_cuda()) {
    if (!stream.is_none()) fail_export("__dlpack__: argument 'stream' must be None on the CPU");
    return false;
  }
#if MEMBOUND_WITH_CUDA
  std::int64_t number = 1;  // None: the legacy default stream
  if (!stream.is_none()) number = integer_from_python(stream.ptr(), {"__dlpack__", "stream"});
  if (number == -1) return false;
  if (number == 0) fail_export("__dlpack__: argument 'stream' must not be 0, which is ambiguous");
  cuda::order_streams(array_stream(device),
                      StreamView::from_handle(reinterpret_cast<void*>(number)), device);
  return number == 1;
#else
  return false;
#endif
}

nb::object export_dlpack(const NDArray& self, nb::handle stream, nb::handle max_version,
                         nb::handle dl_device, nb::handle copy) {
  const bool must_copy = copy.ptr() == Py_True, must_not = copy.ptr() == Py_False;
  NDArray array = self;
  bool copied = false;
  if (!dl_device.is_none()) {
    const int type = nb::cast<int>(dl_device[0]);
    const Device device = type == dlpack::kCpu    ? Device::cpu()
                          : type == dlpack::kCuda ? Device::cuda(nb::cast<int>(dl_device[1]))
                                                  : Device::cuda(-1);
    if (device.index < 0) fail_export("__dlpack__: argument 'dl_device' must be the CPU or a GPU");
    if (device != self.device()) {
      if (must_not) fail_export("__dlpack__: another device needs a copy, and copy is False");
      array = self.to(device);
      copied = true;
    }
  }
  if (must_copy && !copied) {
    array = self.copy();
    copied = true;
  }
  const bool on_legacy_default = order_consumer(array.device(), stream);
  if (!max_version.is_none() && nb::cast<int>(max_version[0]) >= 1)
    return capsule_of(versioned(std::move(array), copied, on_legacy_default), "dltensor_versioned");
  if (!array.writable())
    fail_export("__dlpack__: a read-only array needs a consumer of DLPack 1.0 (max_version)");
  auto* made = new Export<dlpack::ManagedTensor>(std::move(array));
  made->on_legacy_default = on_legacy_default;
  return capsule_of(&made->managed, "dltensor");
}

// --- DLPack's C exchange table ---

template <class Work>
int guarded(Work work) noexcept {
  try {
    work();
    return 0;
  } catch (...) {
    set_python_error();
    return -1;
  }
}

int table_to_managed(void* object, dlpack::ManagedTensorVersioned** result) {
  return guarded([&] {
    *result =
        versioned(array_argument(static_cast<PyObject*>(object), {"DLPack", "object"}), false);
  });
}

// The array takes the tensor over.
int table_from_managed(dlpack::ManagedTensorVersioned* managed, void** object) {
  return guarded([&] {
    LoadedArray loaded;
    load_tensor(managed->tensor, {"DLPack", "tensor"}, loaded);
    const bool writable = (managed->flags & dlpack::kReadOnlyFlag) == 0;
    std::shared_ptr<void> owner(managed, [](void* pointer) {
      auto* taken = static_cast<dlpack::ManagedTensorVersioned*>(pointer);
      if (taken->deleter != nullptr) taken->deleter(taken);
    });
    NDArray array = NDArray::wrap(loaded.view, std::move(owner), writable);
    *object = nb::cast(std::move(array)).release().ptr();
  });
}

// Shape and strides live as long as the object.
int table_borrow(void* object, dlpack::Tensor* tensor) {
  return guarded([&] {
    const NDArray& array = array_argument(static_cast<PyObject*>(object), {"DLPack", "object"});
    *tensor = tensor_of(array, const_cast<std::int64_t*>(array.shape().data()),
                        const_cast<std::int64_t*>(array.strides().data()));
  });
}

int table_current_stream(std::int32_t type, std::int32_t index, void** stream) {
  return guarded([&] {
    *stream = type == dlpack::kCuda ? array_stream(Device::cuda(index)).handle() : nullptr;
  });
}

int table_allocate(dlpack::Tensor* prototype, dlpack::ManagedTensorVersioned** result,
                   void* context,
                   void (*set_error)(void* context, const char* kind, const char* message)) {
  try {
    LoadedArray wanted;
    dlpack::Tensor prepared = *prototype;
    prepared.data = &prepared;  // there is no memory yet
    prepared.strides = nullptr;
    load_tensor(prepared, {"DLPack", "prototype"}, wanted);
    const NDArray::Dims shape(wanted.view.shape, wanted.view.shape + wanted.view.rank);
    *result = versioned(NDArray::empty(shape, wanted.view.dtype, wanted.view.device), false);
    return 0;
  } catch (const std::exception& error) {
    set_error(context, "MemoryError", error.what());
    return -1;
  }
}

nb::object exchange_table() {
  static dlpack::ExchangeApi table{
      {{dlpack::kMajorVersion, 3}, nullptr},
      reinterpret_cast<void (*)()>(&table_allocate),
      reinterpret_cast<void (*)()>(&table_to_managed),
      reinterpret_cast<void (*)()>(&table_from_managed),
      &table_borrow,
      &table_current_stream,
  };
  PyObject* capsule = PyCapsule_New(&table, "dlpack_exchange_api", nullptr);
  if (capsule == nullptr) throw nb::python_error();
  return nb::steal(capsule);
}

// --- the buffer protocol ---

const char* buffer_format(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "?";
    case DType::kInt8: return "b";
    case DType::kInt16: return "h";
    case DType::kInt32: return "i";
    case DType::kInt64: return "q";
    case DType::kUInt8: return "B";
    case DType::kUInt16: return "H";
    case DType::kUInt32: return "I";
    case DType::kUInt64: return "Q";
    case DType::kFloat16: return "e";
    case DType::kFloat32: return "f";
    case DType::kFloat64: return "d";
    default: return nullptr;
  }
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  const NDArray& array = *nb::inst_ptr<NDArray>(self);
  const auto asked = [flags](int flag) { return (flags & flag) == flag; };
  const auto refuse = [](const char* reason) {
    PyErr_SetString(PyExc_BufferError, reason);
    return -1;
  };
  *view = {};
  const char* format = buffer_format(array.dtype());
  if (array.device().is_cuda()) return refuse("NDArray: memory of a GPU has no buffer");
  if (format == nullptr) return refuse("NDArray: the buffer protocol has no bfloat16");
  if (!array.writable() && asked(PyBUF_WRITABLE)) return refuse("NDArray: the array is read-only");
  if (!asked(PyBUF_STRIDES) && !array.is_contiguous())
    return refuse("NDArray: the array is not contiguous, and strides were not asked for");
  auto* sizes = new (std::nothrow) Py_ssize_t[2 * static_cast<std::size_t>(array.rank()) + 1];
  if (sizes == nullptr) return refuse("NDArray: no memory");
  const auto item = static_cast<Py_ssize_t>(dtype_size(array.dtype()));
  for (int axis = 0; axis < array.rank(); ++axis) {
    sizes[axis] = array.shape()[static_cast<std::size_t>(axis)];
    sizes[array.rank() + axis] = array.strides()[static_cast<std::size_t>(axis)] * item;
  }
  view->obj = Py_NewRef(self);
  view->buf = array.data() != nullptr ? array.data() : static_cast<void*>(sizes);
  view->len = array.bytes();
  view->itemsize = item;
  view->readonly = !array.writable();
  view->ndim = array.rank();
  view->format = asked(PyBUF_FORMAT) ? const_cast<char*>(format) : nullptr;
  view->shape = asked(PyBUF_ND) ? sizes : nullptr;
  view->strides = asked(PyBUF_STRIDES) ? sizes + array.rank() : nullptr;
  view->internal = sizes;
  return 0;
}

void release_buffer(PyObject*, Py_buffer* view) noexcept {
  delete[] static_cast<Py_ssize_t*>(view->internal);
}

// --- NumPy and CUDA's array interface ---

nb::object to_numpy(nb::handle self, nb::handle dtype, nb::handle copy) {
  const NDArray& array = *nb::inst_ptr<NDArray>(self);
  MEMBOUND_CHECK(!array.device().is_cuda(), TypeMismatch, "__array__",
                 "NumPy cannot read an array on ", device_name(array.device()),
                 "; move it with to_device('cpu')");
  const nb::object numpy = nb::module_::import_("numpy");
  nb::object result;
  if (array.dtype() == DType::kBFloat16) {
    TensorView bits = array.view();
    bits.dtype = DType::kUInt16;
    auto owner = std::make_shared<NDArray>(array);
    result = numpy.attr("asarray")(nb::cast(NDArray::wrap(bits, owner, array.writable())));
    const nb::object bfloat16 = arrays_module().attr("numpy_dtype")("bfloat16");
    MEMBOUND_CHECK(!bfloat16.is_none(), TypeMismatch, "__array__",
                   "NumPy has bfloat16 from ml_dtypes, which is not installed");
    result = result.attr("view")(bfloat16);
  } else {
    result = numpy.attr("asarray")(nb::steal(PyMemoryView_FromObject(self.ptr())));
  }
  if (dtype.is_none()) return copy.ptr() == Py_True ? result.attr("copy")() : result;
  return result.attr("astype")(dtype, nb::arg("copy") = (copy.ptr() == Py_True));
}

nb::object cuda_interface(const NDArray& self) {
  if (!self.device().is_cuda() || self.dtype() == DType::kBFloat16) {
    PyErr_SetString(PyExc_AttributeError,
                    "__cuda_array_interface__: only arrays on a GPU have one, and not in bfloat16");
    throw nb::python_error();
  }
  nb::dict interface;
  const char kind = self.dtype() == DType::kBool    ? 'b'
                    : is_floating(self.dtype())     ? 'f'
                    : self.dtype() >= DType::kUInt8 ? 'u'
                                                    : 'i';
  const std::string type =
      std::string(kind == 'b' ? "|" : "<") + kind + std::to_string(dtype_size(self.dtype()));
  NDArray::Dims strides = self.strides();
  for (std::int64_t& stride : strides)
    stride *= static_cast<std::int64_t>(dtype_size(self.dtype()));
  interface["shape"] = tuple_of(self.shape());
  interface["strides"] = tuple_of(strides);
  interface["typestr"] = type.c_str();
  interface["data"] =
      nb::make_tuple(reinterpret_cast<std::uintptr_t>(self.data()), !self.writable());
  interface["version"] = 3;
  interface["stream"] = reinterpret_cast<std::uintptr_t>(array_stream(self.device()).handle());
  return interface;
}

// Keeps Python objects; they are dropped with the GIL held. lender: a GPU whose legacy default
// stream may use the memory again then, after what is queued on ours.
std::shared_ptr<void> keeper(std::vector<nb::object> objects, std::optional<Device> lender) {
  auto* kept = new std::vector<nb::object>(std::move(objects));
  return std::shared_ptr<void>(kept, [lender](void* pointer) {
    if (!Py_IsInitialized()) return;
    if (lender) order_streams(array_stream(*lender), StreamView::legacy_default(), *lender);
    const nb::gil_scoped_acquire gil;
    delete static_cast<std::vector<nb::object>*>(pointer);
  });
}

}  // namespace

void* exchange_slots() {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)},
                                {Py_bf_releasebuffer, reinterpret_cast<void*>(&release_buffer)},
                                {0, nullptr}};
  return slots;
}

NDArray array_from_python(nb::handle object, Site site) {
  if (const NDArray* array = array_of(object)) return *array;
  const Framework& framework = framework_of(object.ptr(), site);
  LoadedArray loaded;
  StreamView stream = StreamView::legacy_default();
  if (framework.kind == Kind::kJax) {
    load_dlpack(object.ptr(), site, stream, loaded);
  } else {
    const ArrayCall call(site.op, object.ptr(), site.argument, nullptr);
    call.read_input(object.ptr(), site.argument, loaded);
    if (loaded.view.device.is_cuda()) stream = call.stream(loaded.view.device);
  }
  std::optional<Device> lender;
  if (const Device device = loaded.view.device; device.is_cuda()) {
#if MEMBOUND_WITH_CUDA
    cuda::order_streams(stream, array_stream(device), device);
    if (is_legacy_default(stream)) lender = device;
#else
    fail<InvalidArgument>(site.op, "argument '", site.argument,
                          "' must be on the CPU, with whose arrays alone this build computes");
#endif
  }
  dtype_to_python(loaded.view.dtype);  // throws for complex numbers
  std::vector<nb::object> objects{nb::borrow(object)};
  if (loaded.keep_alive.is_valid()) objects.push_back(loaded.keep_alive);
  return NDArray::wrap(loaded.view, keeper(std::move(objects), lender), loaded.writable);
}

void bind_array_exchange(nb::class_<NDArray>& cls, nb::module_& module) {
  cls.def("__dlpack__", &export_dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
          nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(),
          nb::arg("copy") = nb::none())
      .def("__dlpack_device__",
           [](const NDArray& self) {
             const dlpack::DeviceId device = dlpack_device(self.device());
             return nb::make_tuple(device.type, device.index);
           })
      .def("__array__", &to_numpy, nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def_prop_ro("__cuda_array_interface__", &cuda_interface);
  cls.attr("__dlpack_c_exchange_api__") = exchange_table();
  cls.attr("__array_ufunc__") = nb::none();  // operators of NumPy leave mixed operands to ours
}

}  // namespace membound::python
