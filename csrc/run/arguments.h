// csrc/run/arguments.h: the arguments of a kernel, from those of a call and its real tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "csrc/run/op_info.h"

namespace lazyeng::run {
namespace detail {

template <class Next>
c10::IValue list_of(const Next& next, int64_t length) {
  c10::List<at::Tensor> list;
  list.reserve(length);
  for (int64_t i = 0; i < length; ++i) list.push_back(next());
  return list;
}

template <class Next>
c10::IValue optional_list_of(const Next& next, int64_t length) {
  c10::List<std::optional<at::Tensor>> list;
  list.reserve(length);
  for (int64_t i = 0; i < length; ++i) {
    at::Tensor tensor = next();
    list.push_back(tensor.defined() ? std::optional<at::Tensor>(std::move(tensor)) : std::nullopt);
  }
  return list;
}

template <class Next>
c10::IValue lists_of(const Next& next, const c10::IValue& lengths) {
  c10::List<c10::List<at::Tensor>> lists;
  for (const int64_t length : lengths.toIntVector())
    lists.push_back(list_of(next, length).toTensorList());
  return lists;
}

}  // namespace detail

/// `args` are as in Node::args; `next` returns the real tensors that they leave out, one after
/// another; undefined: what stands in `args` goes for it (None, or an undefined tensor).
template <class Next>
torch::jit::Stack arguments_with(const OpInfo& info, c10::ArrayRef<c10::IValue> args,
                                 const Next& next) {
  torch::jit::Stack stack;
  stack.reserve(args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::IValue& arg = args[i];
    switch (info.args[i].kind) {
      case ArgKind::tensor: {
        at::Tensor tensor = next();
        if (tensor.defined())
          stack.emplace_back(std::move(tensor));
        else
          stack.push_back(arg);
        break;
      }
      case ArgKind::tensor_list:
        stack.push_back(arg.isNone() ? arg : detail::list_of(next, arg.toInt()));
        break;
      case ArgKind::tensor_lists:
        stack.push_back(arg.isNone() ? arg : detail::lists_of(next, arg));
        break;
      case ArgKind::optional_tensor_list:
        stack.push_back(arg.isNone() ? arg : detail::optional_list_of(next, arg.toInt()));
        break;
      default:
        stack.push_back(arg);
    }
  }
  return stack;
}

}  // namespace lazyeng::run
