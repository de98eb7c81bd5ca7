// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
//
// What inline functions of today's C++ headers call and the glibc and libstdc++ of manylinux_2_28
// lack, made of what those have. link_stubs.py links it into each library, which keeps it to
// itself.
#include <new>

extern "C" {
// Since GCC 4.4: std::exception_ptr's copy constructor and destructor.
void _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(void* to, const void* from);
void _ZNSt15__exception_ptr13exception_ptrD1Ev(void* pointer);

#pragma GCC visibility push(hidden)

// Since glibc 2.32. With 0, "perhaps not", reference counts are always atomic.
char __libc_single_threaded = 0;

// Since GCC 11, whose copy constructor and destructor are inline: exception_ptr::_M_addref().
void _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(const void* pointer) {
  void* kept;
  _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(&kept, pointer);
}

// Since GCC 11: exception_ptr::_M_release().
void _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv(void* const* pointer) {
  void* given = *pointer;
  _ZNSt15__exception_ptr13exception_ptrD1Ev(&given);
}

// Since GCC 11: std::__throw_bad_array_new_length().
[[noreturn]] void _ZSt28__throw_bad_array_new_lengthv() { throw std::bad_array_new_length(); }
}
