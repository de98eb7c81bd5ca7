// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>

#include <optional>
#include <type_traits>
#include <utility>

#include "core/check.hpp"
#include "errors.hpp"
#include "load.hpp"

namespace membound::python {

// An optional argument that the caller gave; None counts as not given.
inline bool given(PyObject* value) { return value != nullptr && value != Py_None; }

// The context of one call: the framework of its first array, and the stream.
class ArrayCall {
 public:
  // stream: the caller's stream= argument, null or None for the producer's current stream.
  ArrayCall(const char* op, PyObject* first, const char* argument, PyObject* stream);

  bool is_jax() const { return framework_->kind == Kind::kJax; }
  bool is_numpy() const { return framework_->kind == Kind::kNumPy; }

  // Reads the view of an input or, for outputs, of an array that the op writes.
  void read_input(PyObject* array, const char* argument, LoadedArray& loaded) const;
  void read_output(PyObject* array, const char* argument, LoadedArray& loaded) const;

  // A new array in the framework of `like`, whose view is `view`: of its shape and dtype, of its
  // shape without the last axis in the dtype of statistics, or of its last axis and dtype.
  nb::object new_like(PyObject* like, const TensorView& view, const char* argument,
                      LoadedArray& loaded) const;
  nb::object new_rows(PyObject* like, const TensorView& view, const char* argument,
                      LoadedArray& loaded) const;
  nb::object new_columns(PyObject* like, const TensorView& view, const char* argument,
                         LoadedArray& loaded) const;

  // A new array of the shape and dtype of `wanted`.
  nb::object new_as(PyObject* like, const TensorView& wanted, const char* argument,
                    LoadedArray& loaded) const;

  // The output array that the caller gave, or a new one like `like`.
  nb::object output(PyObject* array, PyObject* like, const TensorView& view, const char* argument,
                    LoadedArray& loaded) const;

  // Workspace on `device`, the GPU of `like`, from its framework's allocator. Empty if the op must
  // allocate on the stream itself: without an allocator, or if it does not know the stream.
  nb::object new_workspace(PyObject* like, Device device, std::int64_t bytes,
                           LoadedArray& loaded) const;

  // The stream= argument, or the current stream of the framework on that device.
  StreamView stream(Device device) const;

  // The GPU that NumPy arrays are staged through, from device=; nothing: run where the arrays are.
  // Throws if arrays of another framework are on another device.
  std::optional<Device> staging_device(PyObject* device, Device where) const;

  // Must be called after the op has written arrays of the caller's (null or None: none), so that
  // autograd notices.
  void mark_written(std::initializer_list<PyObject*> arrays) const;

  // A call with a JAX array is forwarded to membound.jax as a whole; throws if an argument cannot
  // be. check_jax_input returns the array, or None for null.
  nb::handle check_jax_input(PyObject* array, const char* argument) const;
  void check_jax_absent(PyObject* value, const char* argument, const char* reason) const;

 private:
  void read(PyObject* array, Site site, LoadedArray& loaded) const;
  nb::object made_here(PyObject* like, const TensorView& view, int first, int last, DType dtype,
                       const char* argument, LoadedArray& loaded) const;
  nb::object made(nb::object answer, const char* argument, LoadedArray& loaded) const;
  [[noreturn]] void fail_to_make(const nb::python_error& error, const char* argument) const;
  nb::object adopt(PyObject* created, const char* argument, LoadedArray& loaded) const;
  nb::object new_numpy(const TensorView& view, int first, int last, DType dtype,
                       const char* argument, LoadedArray& loaded) const;

  const char* op_;
  const char* first_;  // the argument whose framework the others must have
  const Framework* framework_;
  StreamView stream_ = StreamView::legacy_default();
  bool stream_given_ = false;
  bool grad_enabled_ = false;
  bool forward_mode_ = false;  // a level is active, so arrays may have tangents
};

// An optional input, and its view.
class OptionalInput {
 public:
  OptionalInput(const ArrayCall& call, PyObject* array, const char* argument) {
    if (!given(array)) return;
    call.read_input(array, argument, loaded_);
    view_ = loaded_.view;
    given_ = true;
  }
  operator const ConstTensorView*() const { return given_ ? &view_ : nullptr; }
  const TensorView& view() const { return loaded_.view; }

 private:
  LoadedArray loaded_;
  ConstTensorView view_;
  bool given_ = false;
};

// Releases the GIL while C++ works, if the condition holds.
class GilRelease {
 public:
  explicit GilRelease(bool wanted) noexcept : state_(wanted ? PyEval_SaveThread() : nullptr) {}
  ~GilRelease() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

// Whether an op on this array is worth a GilRelease. Releasing and reacquiring costs 50 ns without
// waiters and up to the switch interval with them; this many elements take at least 2 us. A launch
// takes less, so it keeps the GIL.
inline bool is_long_on_cpu(const TensorView& array) noexcept {
  constexpr std::int64_t kLongElements = 16384;
  return !array.device.is_cuda() && array.size() >= kLongElements;
}

// An int handle, a torch or CuPy stream, or an object with __cuda_stream__.
StreamView stream_from_python(PyObject* stream, const char* op);

// "cpu", "cuda", "cuda:1" or an object that prints so. index is -1 for "cuda".
Device device_from_python(PyObject* device, const char* op);

// Conversions of numbers and choices; the error names an argument that does not convert.
double number_from_python(PyObject* value, Site site);
bool flag_from_python(PyObject* value, Site site);
std::int64_t integer_from_python(PyObject* value, Site site);
template <class Integer>  // int or unsigned
Integer integer_as(PyObject* value, Site site) {
  const std::int64_t number = integer_from_python(value, site);
  constexpr const char* kExpected =
      std::is_signed_v<Integer> ? "' must fit 32 bits, got " : "' must not be negative, got ";
  MEMBOUND_CHECK(std::in_range<Integer>(number), InvalidArgument, site.op, "argument '",
                 site.argument, kExpected, number);
  return static_cast<Integer>(number);
}
// Whether an argument that may be an array is a number: a scalar of Python or NumPy, which has the
// same conversions as an array.
bool is_number(PyObject* value);
// One of the dtypes that ops compute on, by name or as a framework's object.
DType floating_from_python(PyObject* value, Site site);
// The same; null, an argument that was not given, selects the default.
inline double number_or(PyObject* value, double otherwise, Site site) {
  return value != nullptr ? number_from_python(value, site) : otherwise;
}
inline bool flag_or(PyObject* value, bool otherwise, Site site) {
  return value != nullptr ? flag_from_python(value, site) : otherwise;
}

}  // namespace membound::python
