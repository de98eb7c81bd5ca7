// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "errors.hpp"

// Up to Python 3.13 a finalising interpreter ends daemon threads by pthread_exit when they request
// the GIL; its unwinding would drop our references without the GIL. Calls that may run Python code
// are therefore redirected here (the linker's --wrap): the thread sleeps until the process exits,
// as Python 3.14 does itself.
namespace {

class StopUnwinding {
 public:
  ~StopUnwinding() {
    if (unwinds_) membound::python::await_process_exit();
  }
  void returned() { unwinds_ = false; }

 private:
  bool unwinds_ = true;
};

template <class Function, class... Arguments>
auto guarded(Function* function, Arguments... arguments) {
  StopUnwinding guard;
  auto result = function(arguments...);
  guard.returned();
  return result;
}

}  // namespace

extern "C" {

#define MEMBOUND_GUARD(result, name, parameters, arguments) \
  result __real_##name parameters;                          \
  result __wrap_##name parameters { return guarded arguments; }

MEMBOUND_GUARD(PyObject*, PyObject_Call, (PyObject * callable, PyObject* args, PyObject* kwargs),
               (__real_PyObject_Call, callable, args, kwargs))
MEMBOUND_GUARD(PyObject*, PyObject_Vectorcall,
               (PyObject * callable, PyObject* const* args, std::size_t count, PyObject* keywords),
               (__real_PyObject_Vectorcall, callable, args, count, keywords))
MEMBOUND_GUARD(PyObject*, PyObject_VectorcallMethod,
               (PyObject * name, PyObject* const* args, std::size_t count, PyObject* keywords),
               (__real_PyObject_VectorcallMethod, name, args, count, keywords))
MEMBOUND_GUARD(PyObject*, PyObject_GetAttr, (PyObject * object, PyObject* name),
               (__real_PyObject_GetAttr, object, name))
MEMBOUND_GUARD(PyObject*, PyObject_GetAttrString, (PyObject * object, const char* name),
               (__real_PyObject_GetAttrString, object, name))
MEMBOUND_GUARD(int, PyObject_SetAttr, (PyObject * object, PyObject* name, PyObject* value),
               (__real_PyObject_SetAttr, object, name, value))
MEMBOUND_GUARD(int, PyObject_HasAttr, (PyObject * object, PyObject* name),
               (__real_PyObject_HasAttr, object, name))
MEMBOUND_GUARD(PyObject*, PyObject_Str, (PyObject * object), (__real_PyObject_Str, object))
MEMBOUND_GUARD(PyObject*, PyObject_Repr, (PyObject * object), (__real_PyObject_Repr, object))
MEMBOUND_GUARD(Py_ssize_t, PyObject_Size, (PyObject * object), (__real_PyObject_Size, object))
MEMBOUND_GUARD(PyObject*, PyMemoryView_FromObject, (PyObject * object),
               (__real_PyMemoryView_FromObject, object))
MEMBOUND_GUARD(PyObject*, PyImport_ImportModule, (const char* name),
               (__real_PyImport_ImportModule, name))
MEMBOUND_GUARD(PyObject*, PySequence_GetItem, (PyObject * object, Py_ssize_t at),
               (__real_PySequence_GetItem, object, at))
MEMBOUND_GUARD(Py_ssize_t, PySequence_Size, (PyObject * object), (__real_PySequence_Size, object))
MEMBOUND_GUARD(Py_ssize_t, PyNumber_AsSsize_t, (PyObject * object, PyObject* error),
               (__real_PyNumber_AsSsize_t, object, error))
MEMBOUND_GUARD(PyGILState_STATE, PyGILState_Ensure, (), (__real_PyGILState_Ensure))

void __real_PyEval_RestoreThread(PyThreadState* state);
void __wrap_PyEval_RestoreThread(PyThreadState* state) {
  StopUnwinding guard;
  __real_PyEval_RestoreThread(state);
  guard.returned();
}

#undef MEMBOUND_GUARD
}
