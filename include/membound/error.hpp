// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "membound/export.hpp"

namespace membound {

// The exception types are API; their texts are not. Each text names the op, the argument, what was
// expected and what was given. A call that throws has touched neither its inputs nor its outputs.
class MEMBOUND_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value, shape, stride, device or overlap that the op does not take. Python: ValueError.
class MEMBOUND_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// An index or axis beyond the end of an array. Python: IndexError.
class MEMBOUND_API OutOfRange : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// A dtype or kind of object that the op does not take. Python: TypeError.
class MEMBOUND_API TypeMismatch : public Error {
 public:
  using Error::Error;
};

// Host or device memory ran out. Python: MemoryError.
class MEMBOUND_API OutOfMemory : public Error {
 public:
  using Error::Error;
};

// A CUDA runtime call failed, or CUDA was asked for and is not available. Python:
// membound.CudaError.
class MEMBOUND_API CudaError : public Error {
 public:
  CudaError(int code, std::string name, const std::string& what)
      : Error(what), code_(code), name_(std::move(name)) {}
  int code() const noexcept { return code_; }
  const std::string& name() const noexcept { return name_; }  // e.g. "cudaErrorNoDevice"

 private:
  int code_;
  std::string name_;
};

}  // namespace membound
