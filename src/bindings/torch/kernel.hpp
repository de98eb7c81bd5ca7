// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "call.hpp"
#include "torch/tensor.hpp"

// Wraps a C++ function as a kernel that torch's dispatcher can call. The argument types are deduced
// from the function's parameters, and compared with the operator's schema at registration.
namespace membound::python::torch {

using shim::functions;
using shim::Value;

// A string argument: owned, from the C interface, or borrowed from Python.
class Text {
 public:
  explicit Text(shim::StringHandle handle) noexcept : handle_(handle) {}
  explicit Text(std::string_view borrowed) noexcept : borrowed_(borrowed) {}
  Text(Text&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), borrowed_(other.borrowed_) {}
  ~Text() {
    if (handle_ != nullptr) functions->delete_string(handle_);
  }
  std::string_view view() const {
    if (handle_ == nullptr) return borrowed_;
    std::size_t length = 0;
    const char* text = "";
    functions->string_length(handle_, &length);
    functions->string_text(handle_, &text);
    return {text, length};
  }

 private:
  shim::StringHandle handle_ = nullptr;
  std::string_view borrowed_;
};

// Python values that need no conversion; throws NotPlain for any other.
std::string_view text_of(PyObject* value);
double number_of(PyObject* value);
std::int64_t integer_of(PyObject* value);
bool flag_of(PyObject* value);
std::size_t list_size(PyObject* list);
PyObject* list_item(PyObject* list, std::size_t at);  // borrowed

template <class T>
T from_bits(Value value) {
  T number;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

// How parameters of a type are read from a call: `type` is its name in torch's schemas, `take`
// advances past its value and takes ownership. All arguments are taken before any is inspected, so
// that none leaks if one is refused. Python objects are borrowed; NotPlain is thrown for those that
// torch must convert.
template <class T>
struct Parameter;

template <>
struct Parameter<Tensor> {
  static std::string type() { return "Tensor"; }
  static Tensor take(const Value*& next) { return Tensor(from_bits<shim::TensorHandle>(*next++)); }
  static Tensor take(PyObject* const*& next) { return Tensor(*next++); }
};

template <>
struct Parameter<Text> {
  static std::string type() { return "str"; }
  static Text take(const Value*& next) { return Text(from_bits<shim::StringHandle>(*next++)); }
  static Text take(PyObject* const*& next) { return Text(text_of(*next++)); }
};

template <>
struct Parameter<double> {
  static std::string type() { return "float"; }
  static double take(const Value*& next) { return from_bits<double>(*next++); }
  static double take(PyObject* const*& next) { return number_of(*next++); }
};

template <>
struct Parameter<std::int64_t> {
  static std::string type() { return "int"; }
  static std::int64_t take(const Value*& next) { return from_bits<std::int64_t>(*next++); }
  static std::int64_t take(PyObject* const*& next) { return integer_of(*next++); }
};

template <>
struct Parameter<bool> {
  static std::string type() { return "bool"; }
  static bool take(const Value*& next) { return from_bits<bool>(*next++); }
  static bool take(PyObject* const*& next) { return flag_of(*next++); }
};

template <class T>
struct Parameter<std::optional<T>> {
  static std::string type() { return "Optional[" + Parameter<T>::type() + "]"; }
  static std::optional<T> take(const Value*& next) {
    auto* held = from_bits<Value*>(*next++);
    if (held == nullptr) return std::nullopt;
    const Value value = *held;
    if (functions->delete_value != nullptr) {
      functions->delete_value(held);
    } else {
      delete held;
    }
    const Value* at = &value;
    return Parameter<T>::take(at);
  }
  static std::optional<T> take(PyObject* const*& next) {
    if (*next != Py_None) return Parameter<T>::take(next);
    ++next;
    return std::nullopt;
  }
};

template <class T>
struct Parameter<std::vector<T>> {
  static std::string type() { return "List[" + Parameter<T>::type() + "]"; }
  static std::vector<T> take(const Value*& next) {
    auto list = from_bits<shim::ListHandle>(*next++);
    std::size_t size = 0;
    functions->list_size(list, &size);
    std::vector<T> items;
    items.reserve(size);
    for (std::size_t i = 0; i < size; ++i) {
      Value item = 0;
      functions->list_item(list, i, &item);
      const Value* at = &item;
      items.push_back(Parameter<T>::take(at));
    }
    functions->delete_list(list);
    return items;
  }
  static std::vector<T> take(PyObject* const*& next) {
    PyObject* list = *next++;
    std::vector<T> items;
    for (std::size_t i = 0, size = list_size(list); i < size; ++i) {
      PyObject* const item = list_item(list, i);
      PyObject* const* at = &item;
      items.push_back(Parameter<T>::take(at));
    }
    return items;
  }
};

// The number of values of a call that a parameter takes.
template <class T>
inline constexpr int kValues = 1;

// Parameters that several operators share: a struct whose Members lists the types of its members in
// order.
template <class... Ts>
struct MembersOf {
  static constexpr int kCount = (0 + ... + kValues<Ts>);
  template <class Group, class Next>
  static Group take(Next& next) {
    return Group{Parameter<Ts>::take(next)...};  // braces guarantee the order of evaluation
  }
  static std::string type() {
    std::string types;
    ((types += (types.empty() ? "" : ", ") + Parameter<Ts>::type()), ...);
    return types;
  }
};

template <class T>
concept Grouped = requires { typename T::Members; };

template <Grouped Group>
inline constexpr int kValues<Group> = Group::Members::kCount;

template <Grouped Group>
struct Parameter<Group> {
  static std::string type() { return Group::Members::type(); }
  template <class Next>
  static Group take(Next& next) {
    return Group::Members::template take<Group>(next);
  }
};

// Reads the tensors of an argument.
inline void load(const char* op, Tensor& tensor) { tensor.load(op); }
inline void load(const char* op, MaybeTensor& tensor) {
  if (tensor) tensor->load(op);
}
template <class T>
  requires requires(const char* op, T& group) { group.load(op); }
void load(const char* op, T& group) {
  group.load(op);
}
template <class T>
void load(const char*, T&) {}

// Whether the kernel's work on an argument is long enough to release the GIL.
inline bool is_long(const Tensor& tensor) { return is_long_on_cpu(tensor.view()); }
template <class T>
bool is_long(const T&) {
  return false;
}

// One or several results.
inline void push(Value* stack, Tensor& result) {
  *stack = reinterpret_cast<Value>(result.release());
}
template <std::size_t kCount>
void push(Value* stack, std::array<Tensor, kCount>& results) {
  for (Tensor& result : results) push(stack++, result);
}

PyObject* as_python(Tensor& result);
template <std::size_t kCount>
PyObject* as_python(std::array<Tensor, kCount>& results) {
  if constexpr (kCount == 1) return as_python(results[0]);
  nb::object tuple = nb::steal(PyTuple_New(kCount));
  if (!tuple.is_valid()) throw nb::python_error();
  for (std::size_t i = 0; i < kCount; ++i) PyTuple_SetItem(tuple.ptr(), i, as_python(results[i]));
  return tuple.release().ptr();
}

template <class T>
inline constexpr int kResultCount = 1;
template <>
inline constexpr int kResultCount<void> = 0;
template <std::size_t kCount>
inline constexpr int kResultCount<std::array<Tensor, kCount>> = kCount;

// Throws the exception in flight as one that torch turns into the Python error of our table.
[[noreturn]] void throw_to_python();

template <class Function>
struct Signature;

template <class Result, class... Ts>
struct Signature<Result (*)(const Ts&...)> {
  static std::string types() {
    return MembersOf<Ts...>::type() + " -> " + std::to_string(kResultCount<Result>);
  }

  template <class Function>
  static void call(Function function, const char* name, Value* stack) {
    const Value* next = stack;
    std::tuple<Ts...> arguments{Parameter<Ts>::take(next)...};
    std::apply([name](auto&... all) { (load(name, all), ...); }, arguments);
    if constexpr (std::is_void_v<Result>) {
      std::apply(function, arguments);
    } else {
      Result result = std::apply(function, arguments);
      push(stack, result);
    }
  }

  // The same for kCount Python objects.
  static constexpr int kCount = (0 + ... + kValues<Ts>);

  template <class Function>
  static PyObject* call(Function function, const char* name, PyObject* const* values) {
    PyObject* const* next = values;
    std::tuple<Ts...> arguments{Parameter<Ts>::take(next)...};
    std::apply([name](auto&... all) { (load(name, all), ...); }, arguments);
    const bool lets_others_run =
        std::apply([](const auto&... all) { return (is_long(all) || ...); }, arguments);
    if constexpr (std::is_void_v<Result>) {
      const GilRelease released(lets_others_run);
      std::apply(function, arguments);
      Py_RETURN_NONE;
    } else {
      Result result = [&] {
        const GilRelease released(lets_others_run);
        return std::apply(function, arguments);
      }();
      return as_python(result);
    }
  }
};

// The call of a builtin whose self is a torch operator: calls the function, or the operator if the
// function throws NotPlain, the number of arguments differs, or the call is observed.
using FromPython = PyObject* (*)(PyObject* const* values);
PyObject* call_from_python(PyObject* self, PyObject* const* arguments, Py_ssize_t positional,
                           PyObject* keywords, FromPython function, int expected) noexcept;

// A kernel that can be registered: the operator's name, the types that its schema must have, the
// number of results, the function for torch, and the function for Python.
struct Kernel {
  const char* name;
  std::string (*types)();
  shim::Boxed run;
  PyMethodDef* builtin;
};

template <auto kFunction>
struct KernelOf {
  using Called = Signature<decltype(kFunction)>;
  static inline const char* name = nullptr;

  static void run(Value* stack, std::uint64_t, std::uint64_t) {
    try {
      Called::call(kFunction, name, stack);
    } catch (...) {
      throw_to_python();
    }
  }

  static PyObject* run_from_python(PyObject* const* values) {
    return Called::call(kFunction, name, values);
  }
  static PyObject* builtin(PyObject* self, PyObject* const* arguments, Py_ssize_t positional,
                           PyObject* keywords) noexcept {
    return call_from_python(self, arguments, positional, keywords, &run_from_python,
                            Called::kCount);
  }
  static inline PyMethodDef definition{
      nullptr, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&builtin)),
      METH_FASTCALL | METH_KEYWORDS, nullptr};
};

template <auto kFunction>
Kernel kernel(const char* name) {
  using Made = KernelOf<kFunction>;
  Made::definition.ml_name = Made::name = name;
  return {name, &Made::Called::types, &Made::run, &Made::definition};
}

// The kernels of each family of operators, defined in a file of their own.
using Kernels = std::vector<Kernel>;
void add_norm_kernels(Kernels& all);
void add_norm_backward_kernels(Kernels& all);
void add_norm_quant_kernels(Kernels& all);
void add_activation_kernels(Kernels& all);
void add_rope_kernels(Kernels& all);
void add_qk_norm_rope_kernels(Kernels& all);
void add_embedding_kernels(Kernels& all);
void add_cross_entropy_kernels(Kernels& all);
void add_entry_kernels(Kernels& all);  // generated from src/ops

}  // namespace membound::python::torch
