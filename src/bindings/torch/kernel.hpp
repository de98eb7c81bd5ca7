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

#include "torch/tensor.hpp"

// From a C++ function to a kernel that torch's dispatcher can call: what the arguments are is taken
// from the function's own parameters, in one place for all operators, and compared with the
// operator's schema when the kernel is registered.
namespace membound::python::torch {

using shim::functions;
using shim::Value;

// A string argument.
class Text {
 public:
  explicit Text(shim::StringHandle handle) noexcept : handle_(handle) {}
  Text(Text&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  ~Text() {
    if (handle_ != nullptr) functions->delete_string(handle_);
  }
  std::string_view view() const {
    std::size_t length = 0;
    const char* text = "";
    functions->string_length(handle_, &length);
    functions->string_text(handle_, &text);
    return {text, length};
  }

 private:
  shim::StringHandle handle_;
};

template <class T>
T from_bits(Value value) {
  T number;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

// How parameters of a type are taken off a call: `type` is what torch's schemas call it, `take`
// moves past its value and owns what came. All of a call are taken before one is looked at, so that
// nothing is left behind where one is refused.
template <class T>
struct Parameter;

template <>
struct Parameter<Tensor> {
  static std::string type() { return "Tensor"; }
  static Tensor take(const Value*& next) { return Tensor(from_bits<shim::TensorHandle>(*next++)); }
};

template <>
struct Parameter<Text> {
  static std::string type() { return "str"; }
  static Text take(const Value*& next) { return Text(from_bits<shim::StringHandle>(*next++)); }
};

template <>
struct Parameter<double> {
  static std::string type() { return "float"; }
  static double take(const Value*& next) { return from_bits<double>(*next++); }
};

template <>
struct Parameter<std::int64_t> {
  static std::string type() { return "int"; }
  static std::int64_t take(const Value*& next) { return from_bits<std::int64_t>(*next++); }
};

template <>
struct Parameter<bool> {
  static std::string type() { return "bool"; }
  static bool take(const Value*& next) { return from_bits<bool>(*next++); }
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
};

// Parameters that several operators have in common: a struct that names the types of its members,
// in their order, as Members.
template <class... Ts>
struct MembersOf {
  template <class Group>
  static Group take(const Value*& next) {
    return Group{Parameter<Ts>::take(next)...};  // braces: one after the other
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
struct Parameter<Group> {
  static std::string type() { return Group::Members::type(); }
  static Group take(const Value*& next) { return Group::Members::template take<Group>(next); }
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

// One or several results.
inline void push(Value* stack, Tensor& result) {
  *stack = reinterpret_cast<Value>(result.release());
}
template <std::size_t kCount>
void push(Value* stack, std::array<Tensor, kCount>& results) {
  for (Tensor& result : results) push(stack++, result);
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
};

// What can be registered for an operator: its name, its types as the schema has to have them with
// the number of results, and what torch calls.
struct Kernel {
  const char* name;
  std::string (*types)();
  shim::Boxed run;
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
};

template <auto kFunction>
Kernel kernel(const char* name) {
  using Made = KernelOf<kFunction>;
  Made::name = name;
  return {name, &Made::Called::types, &Made::run};
}

// Those of a family of operators, one of each in its file.
using Kernels = std::vector<Kernel>;
void add_norm_kernels(Kernels& all);
void add_norm_backward_kernels(Kernels& all);
void add_norm_quant_kernels(Kernels& all);
void add_activation_kernels(Kernels& all);
void add_rope_kernels(Kernels& all);
void add_qk_norm_rope_kernels(Kernels& all);
void add_embedding_kernels(Kernels& all);
void add_softmax_kernels(Kernels& all);
void add_cross_entropy_kernels(Kernels& all);

}  // namespace membound::python::torch
