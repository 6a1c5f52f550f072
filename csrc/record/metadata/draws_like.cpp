// csrc/record/metadata/draws_like.cpp: the arguments of that call.
#include "csrc/record/metadata/draws_like.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>

#include "csrc/record/library.h"

namespace lazyeng::record {
namespace {

constexpr std::array<std::string_view, 5> kOptions = {"dtype", "layout", "device", "pin_memory",
                                                      "memory_format"};

const run::OpInfo& empty_like() {
  static const run::OpInfo& info =
      info_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty_like", ""));
  return info;
}

}  // namespace

bool draws_like(const Call& call) {
  const run::OpInfo& info = call.info;
  const std::vector<c10::Argument>& arguments = info.handle.schema().arguments();
  // (Not randint_like, which may refuse its range; nor for another device.)
  return info.aten && (info.short_name == "rand_like" || info.short_name == "randn_like") &&
         std::ranges::none_of(call.args, [](const c10::IValue& arg) { return arg.isDevice(); }) &&
         std::ranges::all_of(kOptions, [&](std::string_view option) {
           return std::ranges::any_of(
               arguments, [&](const c10::Argument& argument) { return argument.name() == option; });
         });
}

Call as_empty_like(const Call& call) {
  const c10::FunctionSchema& schema = call.info.handle.schema();
  Call like(empty_like());
  like.args.push_back(call.args[0]);
  for (const std::string_view option : kOptions)
    like.args.push_back(call.args[*schema.argumentIndexWithName(std::string(option))]);
  like.tensors.push_back(call.tensors[0]);
  like.looks.push_back(call.looks[0]);
  return like;
}

}  // namespace lazyeng::record
