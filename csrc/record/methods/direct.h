// csrc/record/methods/direct.h: recording straight from Python arguments, past torch's dispatcher.
//
// Taken only where the dispatcher would do nothing that we do not do here: no grad, no mode, no
// transform, no profiler, all tensors lazy, and a plan that an earlier call through the dispatcher
// has left. Anything else, errors included, is the dispatcher's: callers then call what
// torch.Tensor has.
#pragma once

#include <Python.h>

#include "csrc/record/call.h"

namespace lazyeng::record {

/// What a parameter of an op takes from Python, of exactly these types.
enum class Take : uint8_t {
  tensor,            ///< a LazyTensor
  tensor_or_number,  ///< also a number, which becomes a wrapped 0-dim tensor as torch makes it
  scalar,            ///< int, float or bool
  integer,
  integers,  ///< int, or list or tuple of ints; if it is the only parameter also several: view(2,
             ///< 3)
  boolean,
  nothing,  ///< of a kind that is not taken: its default
};

struct Parameter {
  Take take = Take::nothing;
  PyObject* name = nullptr;  ///< interned; never let go of
  bool keyword_only = false;
  bool required = false;
  bool rest = false;   ///< takes all further arguments too
  c10::IValue absent;  ///< the schema's default
};

/// An op that can be recorded directly.
struct DirectOp {
  const run::OpInfo* info = nullptr;
  std::vector<Parameter> parameters;
  bool view = false;
  bool in_place = false;
};

/// "aten::add", "Tensor". `numbers`: Python numbers go for tensors, as torch's parser has it for +
/// - * /.
DirectOp direct_op(const char* name, const char* overload, bool numbers);

/// Records op(*args, **keywords) and returns the result: a new reference. `names` of the keywords,
/// a tuple or null; their values stand behind the `count` arguments, as in a vectorcall. Null
/// without a Python error: take the ordinary way, nothing was recorded. Null with one: waiting for
/// room was interrupted. GIL.
PyObject* record_directly(const DirectOp& op, PyObject* const* args, size_t count,
                          PyObject* names = nullptr);

/// No mode, transform, autocast, inference mode or profiler wants to see what this thread calls,
/// nor is anybody about to fork.
bool ordinary_thread();

/// The same below autograd, of calls that C++ makes.
bool nobody_watches_calls();

/// x[key] by numbers (subscripts.h); otherwise as record_directly.
PyObject* subscript_directly(PyObject* self, PyObject* key);

/// x.detach(); otherwise as record_directly.
PyObject* detach_directly(PyObject* self);

}  // namespace lazyeng::record
