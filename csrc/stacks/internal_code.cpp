// csrc/stacks/internal_code.cpp: internal code objects, by directory and by identity.
#include "csrc/stacks/internal_code.h"

#include <unordered_set>
#include <utility>

namespace lazyeng::stacks {
namespace {

uint32_t generation = 1;

// Never destroyed: asked until the interpreter ends.
std::vector<std::string>& prefixes() {
  static auto* list = new std::vector<std::string>;
  return *list;
}

std::unordered_set<PyCodeObject*>& registered() {
  static auto* codes = new std::unordered_set<PyCodeObject*>;
  return *codes;
}

/// Drops the bytes object; "?" if there is none, but a Python error.
std::string taken(PyObject* bytes) {
  if (!bytes) {
    PyErr_Clear();
    return "?";
  }
  std::string text(PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
  Py_DECREF(bytes);
  return text;
}

}  // namespace

void set_internal_prefixes(std::vector<std::string> directories) {
  // "/x/torch" must not hide "/x/torchvision".
  for (std::string& prefix : directories)
    if (!prefix.ends_with('/')) prefix += '/';
  prefixes() = std::move(directories);
  ++generation;
}

void add_internal_code(PyCodeObject* code) {
  if (!registered().insert(code).second) return;
  Py_INCREF(code);
  ++generation;
}

bool is_internal(PyCodeObject* code) {
  if (registered().contains(code)) return true;
  const std::string file = file_of(code);
  for (const std::string& prefix : prefixes())
    if (file.starts_with(prefix)) return true;
  return false;
}

bool is_own(PyCodeObject* code) {
  return !prefixes().empty() && file_of(code).starts_with(prefixes().front());
}

std::string file_of(PyCodeObject* code) {
  return taken(PyUnicode_EncodeFSDefault(code->co_filename));
}

std::string shown_file_of(PyCodeObject* code) {
  return taken(PyUnicode_AsEncodedString(code->co_filename, "utf-8", "backslashreplace"));
}

uint32_t internal_generation() noexcept { return generation; }

}  // namespace lazyeng::stacks
