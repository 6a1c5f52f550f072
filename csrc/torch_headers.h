// csrc/torch_headers.h: torch's headers that most files include, and that take a compiler most of
// its time. setup.py compiles them once and puts the result in front of every file (gcc's and
// clang's precompiled headers). No file may rely on that: each includes what it uses. (No
// `#pragma once`: gcc warns about one in the main file.)

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/InferenceMode.h>
