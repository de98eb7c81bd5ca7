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

// What the arrays of one call share: the framework of the first one, and the stream.
class ArrayCall {
 public:
  // stream: the caller's stream= argument, null or None for the producer's current stream.
  ArrayCall(const char* op, PyObject* first, const char* argument, PyObject* stream);

  bool is_jax() const { return framework_->kind == Kind::kJax; }
  bool is_numpy() const { return framework_->kind == Kind::kNumPy; }

  // Reads an array that the op reads or, for outputs, writes.
  void read_input(PyObject* array, const char* argument, LoadedArray& loaded) const;
  void read_output(PyObject* array, const char* argument, LoadedArray& loaded) const;

  // A new array in the framework of `like` (which was read as `view`): of its shape and dtype, of
  // its shape less the last axis and the dtype of statistics, or of its last axis and dtype.
  nb::object new_like(PyObject* like, const TensorView& view, const char* argument,
                      LoadedArray& loaded) const;
  nb::object new_rows(PyObject* like, const TensorView& view, const char* argument,
                      LoadedArray& loaded) const;
  nb::object new_columns(PyObject* like, const TensorView& view, const char* argument,
                         LoadedArray& loaded) const;

  // Of another shape and dtype: those of `wanted`.
  nb::object new_as(PyObject* like, const TensorView& wanted, const char* argument,
                    LoadedArray& loaded) const;

  // The array that the caller gave to write to, or a new one like `like`.
  nb::object output(PyObject* array, PyObject* like, const TensorView& view, const char* argument,
                    LoadedArray& loaded) const;

  // Bytes for a kernel to work in, on `device`, the GPU of `like`, from its framework's allocator.
  // Empty where the op allocates on the stream itself: the framework has no allocator, or its
  // allocator would not know of stream=.
  nb::object new_workspace(PyObject* like, Device device, std::int64_t bytes,
                           LoadedArray& loaded) const;

  // The stream= argument, or the current stream of the framework on that device.
  StreamView stream(Device device) const;

  // What device= asks for, given where the arrays are. Nothing: run there. A GPU: NumPy arrays, to
  // be staged through it. Throws when arrays of other frameworks are somewhere else.
  std::optional<Device> staging_device(PyObject* device, Device where) const;

  // To be called when the op has written arrays of the caller's, null or None for none: autograd
  // must know.
  void mark_written(std::initializer_list<PyObject*> arrays) const;

  // A JAX call goes to membound.jax as a whole. Throws when not all of it can. check_jax_input
  // returns the array, None for null.
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
  const char* first_;  // the argument that the others must be like
  const Framework* framework_;
  StreamView stream_ = StreamView::legacy_default();
  bool stream_given_ = false;
  bool grad_enabled_ = false;
  bool forward_mode_ = false;  // torch has a level of it, so that arrays may have tangents
};

// Lets other Python threads run while C++ works, when asked to.
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

// Whether an op on this array is worth a GilRelease. Letting go and taking back costs 50 ns without
// waiters and up to the switch interval with them; this many elements take 2 us and more. A launch
// takes less, so the GIL is kept for it.
inline bool is_long_on_cpu(const TensorView& array) noexcept {
  constexpr std::int64_t kLongElements = 16384;
  return !array.device.is_cuda() && array.size() >= kLongElements;
}

// An int handle, a torch or CuPy stream, or an object with __cuda_stream__.
StreamView stream_from_python(PyObject* stream, const char* op);

// "cpu", "cuda", "cuda:1" or an object that prints so. index is -1 for "cuda".
Device device_from_python(PyObject* device, const char* op);

// Numbers and choices, named in the error when they are not what is expected.
double number_from_python(PyObject* value, Site site);
bool flag_from_python(PyObject* value, Site site);
std::int64_t integer_from_python(PyObject* value, Site site);
template <class Integer>  // int or an unsigned one
Integer integer_as(PyObject* value, Site site) {
  const std::int64_t number = integer_from_python(value, site);
  constexpr const char* kExpected =
      std::is_signed_v<Integer> ? "' must fit 32 bits, got " : "' must not be negative, got ";
  MEMBOUND_CHECK(std::in_range<Integer>(number), InvalidArgument, site.op, "argument '",
                 site.argument, kExpected, number);
  return static_cast<Integer>(number);
}
// Whether an argument that may be an array is a number: of Python's or NumPy's scalars, which
// convert themselves as arrays do.
bool is_number(PyObject* value);
// One of the dtypes that ops compute on, named or an object of a framework.
DType floating_from_python(PyObject* value, Site site);
// The same where null, an argument not given, stands for the default.
inline double number_or(PyObject* value, double otherwise, Site site) {
  return value != nullptr ? number_from_python(value, site) : otherwise;
}
inline bool flag_or(PyObject* value, bool otherwise, Site site) {
  return value != nullptr ? flag_from_python(value, site) : otherwise;
}

}  // namespace membound::python
