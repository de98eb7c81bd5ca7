// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Python's operators on arrays.
#include "array/array.hpp"
#include "membound/array/linear_algebra.hpp"

namespace membound::python {

namespace {

using array::Operand;

nb::object not_implemented() { return nb::borrow(Py_NotImplemented); }

nb::object apply(ElementwiseOp op, const NDArray& self, const Operand* operands, int count) {
  return nb::cast(
      run_array_work(self.size(), [&] { return array::elementwise(op, operands, count); }));
}

template <ElementwiseOp op>
nb::object unary(const NDArray& self) {
  const Operand operands[] = {self};
  return apply(op, self, operands, 1);
}

template <ElementwiseOp op>
nb::object binary(const NDArray& self, nb::handle other) {
  const std::optional<Operand> second = operand_of(other);
  if (!second) return not_implemented();
  const Operand operands[] = {self, *second};
  return apply(op, self, operands, 2);
}

template <ElementwiseOp op>
nb::object reflected(const NDArray& self, nb::handle other) {
  const std::optional<Operand> first = operand_of(other);
  if (!first) return not_implemented();
  const Operand operands[] = {*first, self};
  return apply(op, self, operands, 2);
}

// self = self op other, in self's memory and dtype.
template <ElementwiseOp op>
nb::object in_place(nb::handle self, nb::handle other) {
  const std::optional<Operand> second = operand_of(other);
  if (!second) return not_implemented();
  NDArray& result = *nb::inst_ptr<NDArray>(self);
  const Operand operands[] = {result, *second};
  run_array_work(result.size(), [&] { array::elementwise_into(result, op, operands, 2); });
  return nb::borrow(self);
}

template <ElementwiseOp op>
void bind_arithmetic(nb::class_<NDArray>& cls, const char* name) {
  const std::string stem = name;
  cls.def(("__" + stem + "__").c_str(), &binary<op>, nb::is_operator());
  cls.def(("__r" + stem + "__").c_str(), &reflected<op>, nb::is_operator());
  cls.def(("__i" + stem + "__").c_str(),
          [](nb::handle self, nb::handle other) { return in_place<op>(self, other); },
          nb::is_operator());
}

template <ElementwiseOp op>
void bind_comparison(nb::class_<NDArray>& cls, const char* name) {
  cls.def(name, &binary<op>, nb::is_operator(), nb::arg("other").none());
}

}  // namespace

void bind_array_operators(nb::class_<NDArray>& cls) {
  using Op = ElementwiseOp;
  bind_arithmetic<Op::kAdd>(cls, "add");
  bind_arithmetic<Op::kSubtract>(cls, "sub");
  bind_arithmetic<Op::kMultiply>(cls, "mul");
  bind_arithmetic<Op::kDivide>(cls, "truediv");
  bind_arithmetic<Op::kFloorDivide>(cls, "floordiv");
  bind_arithmetic<Op::kRemainder>(cls, "mod");
  bind_arithmetic<Op::kPow>(cls, "pow");
  bind_arithmetic<Op::kBitwiseAnd>(cls, "and");
  bind_arithmetic<Op::kBitwiseOr>(cls, "or");
  bind_arithmetic<Op::kBitwiseXor>(cls, "xor");
  bind_arithmetic<Op::kBitwiseLeftShift>(cls, "lshift");
  bind_arithmetic<Op::kBitwiseRightShift>(cls, "rshift");
  bind_comparison<Op::kEqual>(cls, "__eq__");
  bind_comparison<Op::kNotEqual>(cls, "__ne__");
  bind_comparison<Op::kLess>(cls, "__lt__");
  bind_comparison<Op::kLessEqual>(cls, "__le__");
  bind_comparison<Op::kGreater>(cls, "__gt__");
  bind_comparison<Op::kGreaterEqual>(cls, "__ge__");
  cls.def("__neg__", &unary<Op::kNegative>)
      .def("__pos__", &unary<Op::kPositive>)
      .def("__abs__", &unary<Op::kAbs>)
      .def("__invert__", &unary<Op::kBitwiseInvert>)
      .def(
          "__matmul__",
          [](const NDArray& self, nb::handle other) -> nb::object {
            const NDArray* second = array_of(other);
            if (second == nullptr) return not_implemented();
            return nb::cast(
                run_array_work(self.size(), [&] { return array::matmul(self, *second); }));
          },
          nb::is_operator());
}

}  // namespace membound::python
