// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "frameworks.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "core/check.hpp"
#include "errors.hpp"
#include "torch/result.hpp"

namespace membound::python {

namespace {

// Types seen so far. Entries are never changed or freed, so readers need no lock; each owns a
// reference to its type, so the address cannot be reused by another type.
struct TypeEntry {
  PyTypeObject* type;
  const Framework* framework;
  const TypeEntry* next;
};
constexpr std::size_t kBuckets = 64;
// Beyond this many, new types are classified at every call, so that a program that creates array
// types in a loop does not grow the table for ever.
constexpr int kMaxEntries = 1024;

std::atomic<const TypeEntry*> buckets[kBuckets];
int entry_count = 0;
nb::ft_mutex mutex;  // guards entry_count and insertion; no-op with the GIL

std::size_t bucket_of(PyTypeObject* type) {
  const auto address = reinterpret_cast<std::uintptr_t>(type);
  return (address >> 4 ^ address >> 12) % kBuckets;
}

Kind kind_from_name(const char* name) {
  if (std::strcmp(name, "torch") == 0) return Kind::kTorch;
  if (std::strcmp(name, "numpy") == 0) return Kind::kNumPy;
  if (std::strcmp(name, "cupy") == 0) return Kind::kCuPy;
  if (std::strcmp(name, "jax") == 0) return Kind::kJax;
  if (std::strcmp(name, "buffer") == 0) return Kind::kBuffer;
  if (std::strcmp(name, "membound") == 0) return Kind::kArray;
  return Kind::kDlpack;
}

// The exchange table of our major version, or null.
const dlpack::ExchangeApi* exchange_from_capsule(nb::object capsule) {
  if (capsule.is_none()) return nullptr;
  auto* header = static_cast<dlpack::ExchangeHeader*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (header == nullptr) throw nb::python_error();
  while (header != nullptr && header->version.major != dlpack::kMajorVersion) {
    header = header->previous;
  }
  return reinterpret_cast<const dlpack::ExchangeApi*>(header);
}

// A function of torch's library, which is loaded if there is a tensor. It takes 3 ns, the Python
// function 27.
template <class Function>
Function* find_in_torch(Kind kind, const char* symbol) {
  void* library =
      kind == Kind::kTorch ? dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  if (library == nullptr) return nullptr;
  return reinterpret_cast<Function*>(dlsym(library, symbol));
}

// From torch's C interface for compiled models (torch >= 2.2).
constexpr const char* kGradMode = "aoti_torch_grad_mode_is_enabled";
// c10::InferenceMode::is_enabled(), in no public interface: only speed depends on it.
constexpr const char* kInferenceMode = "_ZN3c1013InferenceMode10is_enabledEv";
// c10::impl::tls_is_dispatch_key_included(c10::DispatchKey) and _excluded, in no public interface.
// Without them traced calls are not detected; a test checks that they exist.
constexpr const char* kIncluded = "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE";
constexpr const char* kExcluded = "_ZN3c104impl28tls_is_dispatch_key_excludedENS_11DispatchKeyE";
// torch::profiler::impl::profilerEnabled(), in no public interface: under a profiler calls go
// through the dispatcher, as profiles show only what it calls.
constexpr const char* kProfiles = "_ZN5torch8profiler4impl15profilerEnabledEv";

const Framework* make_framework(nb::handle source, Kind kind) {
  auto kept = [&](const char* field) { return nb::object(source.attr(field)).release().ptr(); };
  const char* name = nb::cast<const char*>(nb::handle(kept("name")));
  PyObject* requires_grad = kept("requires_grad");
  return new Framework{
      .kind = kind,
      .name = name,
      .exchange = exchange_from_capsule(source.attr("exchange")),
      .to_dlpack = kept("to_dlpack"),
      .empty_like = kept("empty_like"),
      .empty_like_contiguous = kept("empty_like_contiguous"),
      .empty_rows = kept("empty_rows"),
      .empty_columns = kept("empty_columns"),
      .empty_as = kept("empty_as"),
      .empty_bytes = kept("empty_bytes"),
      .current_stream = kept("current_stream"),
      .grad_mode = find_in_torch<bool()>(kind, kGradMode),
      .is_grad_enabled = kept("is_grad_enabled"),
      .inference_mode = find_in_torch<bool()>(kind, kInferenceMode),
      .increment_version = kept("increment_version"),
      .forward_ad = kept("forward_ad"),
      .unpack_dual = kept("unpack_dual"),
      .key_included = find_in_torch<bool(std::uint16_t)>(kind, kIncluded),
      .key_excluded = find_in_torch<bool(std::uint16_t)>(kind, kExcluded),
      .mode_key = nb::cast<std::uint16_t>(source.attr("mode_key")),
      .tracer_key = nb::cast<std::uint16_t>(source.attr("tracer_key")),
      .vmap_key = nb::cast<std::uint16_t>(source.attr("vmap_key")),
      .transform_front_key = nb::cast<std::uint16_t>(source.attr("transform_front_key")),
      .transform_back_key = nb::cast<std::uint16_t>(source.attr("transform_back_key")),
      .makes_graph = kept("makes_graph"),
      .profiles = find_in_torch<bool()>(kind, kProfiles),
      .makes_arrays = kind == Kind::kTorch && torch::makes_arrays(),
      .requires_grad = requires_grad,
      .get_requires_grad =
          reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(requires_grad), Py_tp_descr_get)),
      .is_neg = kept("is_neg"),
  };
}

// One Framework per kind, so that equal pointers mean the same framework. (Python may return equal
// objects: TorchDynamo ignores its cache while it traces.)
const Framework* framework_from(nb::handle source) {
  static const Framework* known[kKinds] = {};
  const Kind kind = kind_from_name(nb::cast<const char*>(nb::object(source.attr("name"))));
  nb::ft_lock_guard guard(mutex);
  const Framework*& framework = known[static_cast<int>(kind)];
  if (framework == nullptr) framework = make_framework(source, kind);
  return framework;
}

void remember(PyTypeObject* type, const Framework* framework) {
  nb::ft_lock_guard guard(mutex);
  if (entry_count >= kMaxEntries) return;
  ++entry_count;
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  auto& bucket = buckets[bucket_of(type)];
  bucket.store(new TypeEntry{type, framework, bucket.load(std::memory_order_relaxed)},
               std::memory_order_release);
}

[[gnu::noinline]] const Framework& classify(PyObject* array, Site site) {
  const nb::object answer = arrays_module().attr("classify")(nb::handle(array));
  MEMBOUND_CHECK(!nb::isinstance<nb::str>(answer) || !nb::hasattr(array, "__torch_function__"),
                 TorchCanTake<TypeMismatch>, site.op, "argument '", site.argument, "' ",
                 str_of(answer));
  MEMBOUND_CHECK(!nb::isinstance<nb::str>(answer), TypeMismatch, site.op, "argument '",
                 site.argument, "' ", str_of(answer));
  const Framework* framework = framework_from(answer);
  remember(Py_TYPE(array), framework);
  return *framework;
}

}  // namespace

const Framework& framework_of(PyObject* array, Site site) {
  PyTypeObject* type = Py_TYPE(array);
  const TypeEntry* entry = buckets[bucket_of(type)].load(std::memory_order_acquire);
  for (; entry != nullptr; entry = entry->next) {
    if (entry->type == type) return *entry->framework;
  }
  return classify(array, site);
}

const Names& names() {
  static const Names* interned = new Names;
  return *interned;
}

nb::object arrays_module() { return nb::module_::import_("membound.arrays"); }

std::string type_name(PyObject* object) {
  return str_of(arrays_module().attr("type_name")(nb::handle(object)));
}

}  // namespace membound::python
