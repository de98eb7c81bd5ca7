// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/array/elementwise.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "core/array/geometry.hpp"
#include "core/check.hpp"
#include "core/layout.hpp"
#include "core/route.hpp"
#include "membound/array/copy.hpp"
#include "ops/array/operands.hpp"

namespace membound::array {

namespace {

enum class Argument { kBool, kInteger, kBits, kNumeric, kFloating, kAny };
enum class Result { kSame, kBool };

struct Signature {
  const char* name;
  int operands;
  Argument argument;
  Result result;
};
constexpr Signature kSignatures[] = {
#define MEMBOUND_SIGNATURE(name_, Enumerator_, operands_, argument_, result_) \
  {#name_, operands_, Argument::argument_, Result::result_},
    MEMBOUND_ARRAY_ELEMENTWISE(MEMBOUND_SIGNATURE)
#undef MEMBOUND_SIGNATURE
};

const Signature& signature_of(ElementwiseOp op) { return kSignatures[static_cast<int>(op)]; }

// The dtype that a function computes in: its operands', or float64 where it takes floats alone.
DType check_dtype(DType dtype, const Signature& of) {
  check_array_dtype(dtype, of.name, "x");
  const bool is_bool = dtype == DType::kBool;
  const auto check = [&](bool takes, const char* expected) {
    MEMBOUND_CHECK(takes, TypeMismatch, of.name, "its operands must be ", expected, ", got ",
                   dtype_name(dtype));
  };
  switch (of.argument) {
    case Argument::kBool: check(is_bool, "bool"); break;
    case Argument::kInteger: check(is_integer(dtype), "integers"); break;
    case Argument::kBits: check(is_bool || is_integer(dtype), "bool or integers"); break;
    case Argument::kNumeric: check(!is_bool, "integers or floats"); break;
    case Argument::kFloating: return is_floating(dtype) ? dtype : DType::kFloat64;
    case Argument::kAny: break;
  }
  return dtype;
}

// What is left to a back end.
struct Plan {
  enum Form { kKernel, kCopy, kFill };
  ElementwiseOp op;
  DType dtype;  // of the arithmetic
  Form form = kKernel;
  bool filling = false;
  bool swapped = false;
};

bool is_logical(ElementwiseOp op) {
  return op == ElementwiseOp::kLogicalAnd || op == ElementwiseOp::kLogicalOr ||
         op == ElementwiseOp::kLogicalXor || op == ElementwiseOp::kLogicalNot;
}

// Functions of bools, by functions that kernels are made for.
ElementwiseOp of_bools(ElementwiseOp op) {
  switch (op) {
    case ElementwiseOp::kBitwiseAnd: return ElementwiseOp::kLogicalAnd;
    case ElementwiseOp::kBitwiseOr: return ElementwiseOp::kLogicalOr;
    case ElementwiseOp::kBitwiseXor: return ElementwiseOp::kLogicalXor;
    case ElementwiseOp::kBitwiseInvert: return ElementwiseOp::kLogicalNot;
    default: return op;
  }
}

// See MEMBOUND_ARRAY_FUNCTORS: signed integers share the kernels of unsigned ones where the bits
// are the same.
Plan plan_of(ElementwiseOp op, DType dtype) {
  using Op = ElementwiseOp;
  if (is_logical(op)) return {op, DType::kBool};
  if (dtype == DType::kBool && of_bools(op) != op) return {of_bools(op), DType::kBool};
  if (dtype == DType::kBool) dtype = DType::kUInt8;
  const bool floating = is_floating(dtype);
  switch (op) {
    case Op::kGreater: return {Op::kLess, dtype, Plan::kKernel, false, true};
    case Op::kGreaterEqual: return {Op::kLessEqual, dtype, Plan::kKernel, false, true};
    case Op::kPositive: return {op, dtype, Plan::kCopy};
    case Op::kCeil:
    case Op::kFloor:
    case Op::kRound:
    case Op::kTrunc: return {op, dtype, floating ? Plan::kKernel : Plan::kCopy};
    case Op::kIsFinite:
    case Op::kIsInf:
    case Op::kIsNan:
      return {op, dtype, floating ? Plan::kKernel : Plan::kFill, op == Op::kIsFinite};
    case Op::kAbs:
      return {op, dtype, floating || is_signed_integer(dtype) ? Plan::kKernel : Plan::kCopy};
    case Op::kAdd:
    case Op::kSubtract:
    case Op::kMultiply:
    case Op::kSquare:
    case Op::kNegative:
    case Op::kEqual:
    case Op::kNotEqual:
    case Op::kBitwiseAnd:
    case Op::kBitwiseOr:
    case Op::kBitwiseXor:
    case Op::kBitwiseInvert:
    case Op::kBitwiseLeftShift: return {op, unsigned_of(dtype)};
    default: return {op, dtype};
  }
}

DType of_size(std::size_t bytes) {
  return bytes == 1   ? DType::kUInt8
         : bytes == 2 ? DType::kUInt16
         : bytes == 4 ? DType::kUInt32
                      : DType::kUInt64;
}

// A call with checked operands.
struct Call {
  const Signature& signature;
  Plan plan;
  DType promoted;  // of the operands, but for the condition of `where`
  DType result;
  Device device;
  NDArray::Dims shape;
  int count;
  bool is_where;
};

Call checked_call(ElementwiseOp op, const Operand* operands, int count) {
  const Signature& of = signature_of(op);
  MEMBOUND_CHECK(count == of.operands, InvalidArgument, of.name, "expected ", of.operands,
                 " operands, got ", count);
  const bool is_where = op == ElementwiseOp::kWhere;
  const DType promoted = check_dtype(result_type(operands + is_where, count - is_where), of);
  const NDArray* first = nullptr;
  NDArray::Dims shape;
  for (int i = 0; i < count; ++i) {
    const NDArray* array = operands[i].array();
    if (array == nullptr) continue;
    if (first == nullptr) {
      first = array;
      shape = array->shape();
    } else {
      check_same_device(*array, first->device(), of.name, "x2");
      if (array->shape() != shape)
        shape = geometry::broadcast_shapes(shape, array->shape(), of.name);
    }
  }
  MEMBOUND_CHECK(first != nullptr, TypeMismatch, of.name, "one operand must be an array");
  if (is_where) {
    const NDArray* condition = operands[0].array();
    MEMBOUND_CHECK(condition != nullptr && condition->dtype() == DType::kBool, TypeMismatch,
                   of.name, "argument 'condition' must be a bool array, got ",
                   condition != nullptr ? dtype_name(condition->dtype()) : "a number");
  }
  return {of,
          plan_of(op, promoted),
          promoted,
          of.result == Result::kBool ? DType::kBool : promoted,
          first->device(),
          std::move(shape),
          count,
          is_where};
}

// The dtype that an operand's memory is read as. Bytes of the promoted dtype are those of the
// arithmetic, whose integers may be unsigned.
DType read_dtype(const Call& call, DType dtype) {
  return dtype == call.promoted && !is_logical(call.plan.op) ? call.plan.dtype : dtype;
}

// On a GPU operands of other dtypes are converted before.
const NDArray& prepared(const Call& call, const NDArray& array, int place,
                        std::optional<NDArray>& kept) {
  const bool as_it_is =
      call.is_where ? place == 0 || array.dtype() == call.promoted
                    : !call.device.is_cuda() || read_dtype(call, array.dtype()) == call.plan.dtype;
  if (as_it_is) return array;
  return kept.emplace(array.astype(is_logical(call.plan.op) ? DType::kBool : call.promoted));
}

void set_dtypes_by_size(ArrayElementwise& problem, DType promoted) {
  problem.dtype = of_size(dtype_size(promoted));
  problem.result.dtype = problem.dtype;
  for (int i = 1; i < 3; ++i) {
    ArrayOperand& operand = problem.operands[i];
    if (operand.data == nullptr && dtype_size(promoted) == 2 && is_floating(promoted)) {
      // The bits of a 16-bit float from its float32, which is exact.
      const NDArray bits = NDArray::full(
          {1},
          [&] {
            float value;
            std::memcpy(&value, operand.scalar, sizeof(value));
            return value;
          }(),
          promoted);
      std::memcpy(operand.scalar, bits.data(), 2);
    }
    operand.dtype = problem.dtype;
  }
}

void run_kernel(const Call& call, NDArray& result, const Operand* operands) {
  ArrayElementwise problem;
  problem.op = call.plan.op;
  problem.operand_count = call.count;
  problem.dtype = call.plan.dtype;
  problem.dims = dims_of(call.shape);
  problem.result = operand_of(result, call.shape, call.signature.name);
  // A comparison of bools has a bool result, but is computed in another dtype.
  if (call.signature.result != Result::kBool) problem.result.dtype = call.plan.dtype;
  std::optional<NDArray> kept[3];
  for (int i = 0; i < call.count; ++i) {
    const int from = call.plan.swapped ? call.count - 1 - i : i;
    const NDArray* array = operands[from].array();
    ArrayOperand& operand = problem.operands[i];
    if (array == nullptr) {
      operand = scalar_operand(operands[from].scalar(),
                               is_logical(call.plan.op) ? DType::kBool : call.promoted,
                               call.signature.name);
      if (!is_floating(call.promoted)) operand.dtype = call.plan.dtype;
      continue;
    }
    const NDArray& input = prepared(call, *array, from, kept[i]);
    operand = operand_of(input, call.shape, call.signature.name);
    operand.dtype = read_dtype(call, input.dtype());
  }
  if (call.is_where) set_dtypes_by_size(problem, call.promoted);
  switch (call.count) {
    case 1: collapse(problem.dims, {&problem.result, &problem.operands[0]}); break;
    case 2:
      collapse(problem.dims, {&problem.result, &problem.operands[0], &problem.operands[1]});
      break;
    default:
      collapse(problem.dims,
               {&problem.result, &problem.operands[0], &problem.operands[1], &problem.operands[2]});
  }
  route(
      call.device, call.signature.name, [&] { cpu::array_elementwise(problem); },
      [&] { cuda::array_elementwise(problem, array_stream(call.device)); });
}

void run(const Call& call, NDArray& result, const Operand* operands) {
  if (result.size() == 0) return;
  switch (call.plan.form) {
    case Plan::kKernel: return run_kernel(call, result, operands);
    case Plan::kCopy: return copy_into(result, *operands[0].array());
    case Plan::kFill: return fill(result, call.plan.filling);
  }
}

// A new result. Its axes are in the order of the first operand of its shape that is dense, so that
// both are walked in the order of memory.
NDArray new_result(const Call& call, const Operand* operands) {
  for (int i = 0; i < call.count; ++i) {
    const NDArray* array = operands[i].array();
    if (array == nullptr || array->shape() != call.shape) continue;
    if (array->is_contiguous()) break;
    NDArray::Dims axes(call.shape.size()), shape, place(call.shape.size());
    std::iota(axes.begin(), axes.end(), 0);
    const auto stride = [&](std::int64_t axis) {
      return array->strides()[static_cast<std::size_t>(axis)];
    };
    std::stable_sort(axes.begin(), axes.end(),
                     [&](auto a, auto b) { return stride(a) > stride(b); });
    if (!array->permute_dims(axes).is_contiguous()) continue;
    for (std::size_t at = 0; at < axes.size(); ++at) {
      shape.push_back(call.shape[static_cast<std::size_t>(axes[at])]);
      place[static_cast<std::size_t>(axes[at])] = static_cast<std::int64_t>(at);
    }
    return NDArray::empty(shape, call.result, call.device).permute_dims(place);
  }
  return NDArray::empty(call.shape, call.result, call.device);
}

}  // namespace

NDArray elementwise(ElementwiseOp op, const Operand* operands, int count) {
  const Call call = checked_call(op, operands, count);
  NDArray result = new_result(call, operands);
  run(call, result, operands);
  return result;
}

NDArray elementwise(ElementwiseOp op, std::initializer_list<Operand> operands) {
  return elementwise(op, operands.begin(), static_cast<int>(operands.size()));
}

void elementwise_into(NDArray& result, ElementwiseOp op, const Operand* operands, int count) {
  const Call call = checked_call(op, operands, count);
  const char* name = call.signature.name;
  check_same_device(result, call.device, name, "out");
  check_destination(result, name, "out");
  MEMBOUND_CHECK(result.shape() == call.shape, InvalidArgument, name,
                 "argument 'out' must have shape ", geometry::shape_text(call.shape), ", got ",
                 geometry::shape_text(result.shape()));
  MEMBOUND_CHECK(result.dtype() == call.result, TypeMismatch, name, "argument 'out' must be ",
                 dtype_name(call.result), ", got ", dtype_name(result.dtype()));
  std::optional<NDArray> kept[3];
  Operand apart[3] = {false, false, false};
  for (int i = 0; i < count; ++i) {
    apart[i] = operands[i];
    if (operands[i].array() != nullptr)
      apart[i] = Operand(kept[i].emplace(apart_from(*operands[i].array(), result)));
  }
  run(call, result, apart);
}

void check_scalar(Scalar scalar, DType dtype, const char* op) { scalar_operand(scalar, dtype, op); }

ElementwiseOp elementwise_op(const char* name) {
  for (int i = 0; i < static_cast<int>(std::size(kSignatures)); ++i) {
    if (std::strcmp(kSignatures[i].name, name) == 0) return static_cast<ElementwiseOp>(i);
  }
  fail<InvalidArgument>("elementwise", "the array-API standard has no element-wise function '",
                        name, "'");
}

}  // namespace membound::array
