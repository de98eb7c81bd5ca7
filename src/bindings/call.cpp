// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "call.hpp"

#include <algorithm>

#include "core/check.hpp"
#include "core/memory.hpp"
#include "errors.hpp"
#include "membound/ndarray.hpp"
#include "torch/result.hpp"

namespace membound::python {

namespace {

// Whether arrays have neither streams nor an allocator, so that a call may mix them on the CPU.
bool is_plain(Kind kind) {
  return kind == Kind::kNumPy || kind == Kind::kBuffer || kind == Kind::kDlpack;
}

nb::tuple shape_of(const TensorView& view, int first, int last) {
  nb::list shape;
  for (int axis = first; axis < last; ++axis) shape.append(view.shape[axis]);
  return nb::tuple(shape);
}

bool is_grad_enabled(const Framework& torch) {
  if (torch.grad_mode != nullptr) [[likely]]
    return torch.grad_mode();
  return nb::cast<bool>(nb::handle(torch.is_grad_enabled)());
}

// The level is kept in Python; looking it up takes 8 ns.
bool is_in_forward_mode(const Framework& torch) {
  PyObject* level = PyDict_GetItemWithError(torch.forward_ad, names().current_level);
  return level != nullptr && PyLong_AsLong(level) >= 0;
}

// Whether torch traces a graph, which would miss memory that is written here. False for a mode that
// only observes calls, or one whose implementation makes this call.
bool makes_graph(const Framework& torch) {
  if (!is_watched(torch)) [[likely]]
    return false;
  return nb::cast<bool>(nb::handle(torch.makes_graph)());
}

// Modes and transforms intercept torch's functions, and may return other arrays.
bool makes_torch_arrays(const Framework& framework) {
  return framework.makes_arrays && knows_keys(framework) && !is_watched(framework) &&
         !is_transformed(framework);
}

}  // namespace

ArrayCall::ArrayCall(const char* op, PyObject* first, const char* argument, PyObject* stream)
    : op_(op), first_(argument), framework_(&framework_of(first, {op, argument})) {
  if (given(stream)) {
    stream_ = stream_from_python(stream, op);
    stream_given_ = true;
  }
  if (framework_->kind != Kind::kTorch) return;
  grad_enabled_ = is_grad_enabled(*framework_);
  forward_mode_ = is_in_forward_mode(*framework_);
  MEMBOUND_CHECK(!makes_graph(*framework_), TorchCanTake<Error>, op,
                 "torch makes a graph of calls (torch.jit.trace, make_fx), and this one it cannot "
                 "hold: backward functions never, the others not with 'stream' or results beside "
                 "those that membound.torch has");
}

void ArrayCall::read(PyObject* array, Site site, LoadedArray& loaded) const {
  const Framework& framework = framework_of(array, site);
  MEMBOUND_CHECK(
      &framework == framework_ || (is_plain(framework.kind) && is_plain(framework_->kind)),
      TypeMismatch, op_, "argument '", site.argument, "' must be a ", framework_->name,
      " array like '", first_, "', got ", type_name(array));
  if (forward_mode_) [[unlikely]] {
    const nb::object dual = nb::handle(framework.unpack_dual)(nb::handle(array));
    MEMBOUND_CHECK(nb::object(dual[1]).is_none(), Error, op_, "argument '", site.argument,
                   "' has a tangent, and there is no forward mode here: use reverse mode "
                   "(backward(), torch.func.vjp), or pass ",
                   site.argument, ".detach()");
  }
  if (grad_enabled_) {
    MEMBOUND_CHECK(!wants_gradient(framework, array), TorchCanTake<Error>, op_, "argument '",
                   site.argument,
                   "' requires grad, which this call cannot record (backward functions and those "
                   "without one never do, the others not with out= and its like): call it under "
                   "torch.no_grad(), or pass ",
                   site.argument, ".detach()");
  }
  load_array(array, framework, site, stream_, loaded);
  MEMBOUND_CHECK(!stream_given_ || loaded.view.device.is_cuda(), InvalidArgument, op_,
                 "argument 'stream' must be None for arrays on the CPU ('", site.argument, "' is)");
}

void ArrayCall::read_input(PyObject* array, const char* argument, LoadedArray& loaded) const {
  read(array, {op_, argument}, loaded);
}

void ArrayCall::read_output(PyObject* array, const char* argument, LoadedArray& loaded) const {
  read(array, {op_, argument}, loaded);
  MEMBOUND_CHECK(loaded.writable, InvalidArgument, op_, "argument '", argument,
                 "' must be writable, got a read-only array");
}

// A new array with the axes [first, last), made without the framework's Python functions: by
// torch's C interface, which saves 0.5 us per result, as an NDArray, or as a NumPy array for
// frameworks without functions of their own. Invalid for other frameworks.
nb::object ArrayCall::made_here(PyObject* like, const TensorView& view, int first, int last,
                                DType dtype, const char* argument, LoadedArray& loaded) const {
  first = std::max(first, 0);
  if (makes_torch_arrays(*framework_)) {
    TensorView& wanted = loaded.view;
    wanted.dtype = dtype;
    wanted.device = view.device.is_cuda() ? view.device : Device::cpu();
    wanted.rank = std::max(last - first, 0);
    std::copy_n(view.shape + first, wanted.rank, wanted.shape);
    return torch::new_array(wanted);
  }
  if (framework_->kind == Kind::kArray) {
    NDArray made = NDArray::empty({view.shape + first, view.shape + std::max(last, first)}, dtype,
                                  view.device);
    loaded.view = made.view();
    return nb::cast(std::move(made));
  }
  // Arrays without streams and allocators may be mixed.
  if (framework_of(like, {op_, argument}).kind != Kind::kDlpack) return {};
  return new_numpy(view, first, last, dtype, argument, loaded);
}

nb::object ArrayCall::new_like(PyObject* like, const TensorView& view, const char* argument,
                               LoadedArray& loaded) const {
  nb::object here = made_here(like, view, 0, view.rank, view.dtype, argument, loaded);
  if (here.is_valid()) return here;
  const Framework& framework = framework_of(like, {op_, argument});
  PyObject* allocator =
      is_contiguous(view) ? framework.empty_like : framework.empty_like_contiguous;
  return adopt(call_one(allocator, like), argument, loaded);
}

nb::object ArrayCall::output(PyObject* array, PyObject* like, const TensorView& view,
                             const char* argument, LoadedArray& loaded) const {
  if (!given(array)) return new_like(like, view, argument, loaded);
  read_output(array, argument, loaded);
  return nb::borrow(array);
}

nb::object ArrayCall::new_workspace(PyObject* like, Device device, std::int64_t bytes,
                                    LoadedArray& loaded) const {
  const nb::handle allocator(framework_->empty_bytes);
  if (bytes == 0 || stream_given_ || allocator.is_none()) return {};
  const TensorView wanted(nullptr, DType::kUInt8, device, {bytes});
  nb::object here = made_here(like, wanted, 0, 1, DType::kUInt8, "workspace", loaded);
  if (here.is_valid()) return here;
  return adopt(allocator(nb::handle(like), bytes).release().ptr(), "workspace", loaded);
}

nb::object ArrayCall::new_rows(PyObject* like, const TensorView& view, const char* argument,
                               LoadedArray& loaded) const {
  const DType dtype = accumulate_dtype(view.dtype);
  nb::object here = made_here(like, view, 0, view.rank - 1, dtype, argument, loaded);
  if (here.is_valid()) return here;
  const Framework& framework = framework_of(like, {op_, argument});
  return adopt(call_one(framework.empty_rows, like), argument, loaded);
}

nb::object ArrayCall::new_columns(PyObject* like, const TensorView& view, const char* argument,
                                  LoadedArray& loaded) const {
  const int last = view.rank - 1;
  nb::object here = made_here(like, view, last, view.rank, view.dtype, argument, loaded);
  if (here.is_valid()) return here;
  const Framework& framework = framework_of(like, {op_, argument});
  return adopt(call_one(framework.empty_columns, like), argument, loaded);
}

nb::object ArrayCall::new_as(PyObject* like, const TensorView& wanted, const char* argument,
                             LoadedArray& loaded) const {
  nb::object here = made_here(like, wanted, 0, wanted.rank, wanted.dtype, argument, loaded);
  if (here.is_valid()) return here;
  const nb::handle make(framework_of(like, {op_, argument}).empty_as);
  nb::object answer;
  try {
    answer = make(nb::handle(like), shape_of(wanted, 0, wanted.rank), dtype_name(wanted.dtype));
  } catch (const nb::python_error& error) {
    fail_to_make(error, argument);
  }
  return made(std::move(answer), argument, loaded);
}

// torch raises RuntimeError if a CPU is out of memory. Its own out-of-memory class, which training
// loops catch, is kept, with a note added.
void ArrayCall::fail_to_make(const nb::python_error& error, const char* argument) const {
  if (framework_->kind != Kind::kTorch || !error.matches(PyExc_RuntimeError)) throw error;
  const std::string text = str_of(error.value());
  if (text.find("out of memory") != std::string::npos) {
    const std::string note = std::string(op_) + ": no memory for argument '" + argument + "'";
    error.value().attr("add_note")(note.c_str());
    throw error;
  }
  if (text.find("allocate memory") == std::string::npos) throw error;
  fail<OutOfMemory>(op_, "no memory for argument '", argument,
                    "': ", text.substr(0, text.find('\n')));
}

// The array that membound.arrays made; throws with its reason if it made none.
nb::object ArrayCall::made(nb::object answer, const char* argument, LoadedArray& loaded) const {
  MEMBOUND_CHECK(!nb::isinstance<nb::str>(answer), TypeMismatch, op_, "argument '", argument,
                 "' must be given: ", str_of(answer));
  return adopt(answer.release().ptr(), argument, loaded);
}

// A new array with the axes [first, last). There is no allocator for a GPU array of an unknown
// framework.
nb::object ArrayCall::new_numpy(const TensorView& view, int first, int last, DType dtype,
                                const char* argument, LoadedArray& loaded) const {
  MEMBOUND_CHECK(!view.device.is_cuda(), InvalidArgument, op_, "argument '", argument,
                 "' must be given for a GPU array that is not torch's, JAX's or CuPy's");
  const nb::object make = arrays_module().attr("empty_numpy");
  return made(make(shape_of(view, first, last), dtype_name(dtype)), argument, loaded);
}

nb::object ArrayCall::adopt(PyObject* created, const char* argument, LoadedArray& loaded) const {
  if (created == nullptr) fail_to_make(nb::python_error(), argument);
  nb::object array = nb::steal(created);
  const Site site{op_, argument};
  load_array(created, framework_of(created, site), site, stream_, loaded);
  const TensorView& view = loaded.view;
  if (!view.device.is_cuda()) {
    cpu::advise_huge_pages(view.data,
                           static_cast<std::size_t>(view.size()) * dtype_size(view.dtype));
  }
  return array;
}

StreamView ArrayCall::stream(Device device) const {
  if (stream_given_ || !device.is_cuda()) return stream_;
  if (framework_->exchange != nullptr) {
    void* handle = nullptr;
    if (framework_->exchange->current_stream(dlpack::kCuda, device.index, &handle) != 0) {
      throw nb::python_error();
    }
    return StreamView::from_handle(handle);
  }
  if (framework_->kind == Kind::kArray) return array_stream(device);
  const nb::handle query(framework_->current_stream);
  if (query.is_none()) return stream_;  // __dlpack__ was given the same stream
  const auto handle = nb::cast<std::uintptr_t>(query(device.index));
  return StreamView::from_handle(reinterpret_cast<void*>(handle));
}

std::optional<Device> ArrayCall::staging_device(PyObject* device, Device where) const {
  if (!given(device)) [[likely]]
    return std::nullopt;
  const Device wanted = device_from_python(device, op_);
  if (wanted == where || (wanted.is_cuda() && wanted.index < 0 && where.is_cuda())) {
    return std::nullopt;
  }
  MEMBOUND_CHECK(wanted.is_cuda() && framework_->kind == Kind::kNumPy, InvalidArgument, op_,
                 "argument 'device' must be ", device_name(where), ", where '", first_,
                 "' is, got '", str_of(device),
                 "' (only NumPy arrays are carried to a GPU and back)");
  return Device::cuda(wanted.index < 0 ? 0 : wanted.index);
}

// An array may have been saved for a backward before gradients were switched off. Counting costs 95
// ns. Inference tensors have no counter and cannot have been saved, so inference mode skips them.
void ArrayCall::mark_written(std::initializer_list<PyObject*> arrays) const {
  if (framework_->kind != Kind::kTorch) return;
  if (framework_->inference_mode != nullptr && framework_->inference_mode()) return;
  Py_ssize_t count = 0;
  for (PyObject* array : arrays) count += given(array);
  if (count == 0) return;
  const nb::object written = nb::steal(PyTuple_New(count));
  if (!written.is_valid()) throw nb::python_error();
  Py_ssize_t at = 0;
  for (PyObject* array : arrays) {
    if (given(array)) PyTuple_SetItem(written.ptr(), at++, nb::borrow(array).release().ptr());
  }
  const nb::object done = nb::steal(call_one(framework_->increment_version, written.ptr()));
  if (done.is_valid()) return;
  PyErr_Clear();
  if (count == 1) return;
  // An array without a counter must not prevent counting the others.
  for (PyObject* array : arrays) mark_written({array});
}

nb::handle ArrayCall::check_jax_input(PyObject* array, const char* argument) const {
  if (!given(array)) return nb::handle(Py_None);
  const Site site{op_, argument};
  MEMBOUND_CHECK(framework_of(array, site).kind == Kind::kJax, TypeMismatch, op_, "argument '",
                 argument, "' must be a jax array like '", first_, "', got ", type_name(array));
  return nb::handle(array);
}

void ArrayCall::check_jax_absent(PyObject* value, const char* argument, const char* reason) const {
  MEMBOUND_CHECK(!given(value), TypeMismatch, op_, "argument '", argument,
                 "' must be None for JAX arrays, ", reason, "; got ", type_name(value));
}

}  // namespace membound::python
