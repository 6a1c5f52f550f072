// csrc/record/process/first_use.h: what is left for the moment when the program first uses lazyeng.
//
// `import torch` imports lazyeng (it is one of its backends), before the program's next line can
// set an environment variable. So what the environment asks for is looked at once more when a block
// is entered, a tensor wrapped or a plan made for the first time (lazyeng/setup_core.py).
#pragma once

namespace lazyeng::record {

/// Has first_use() call Python once more: when the package is imported.
void arm_first_use();

/// Calls lazyeng.setup_core.look_again, once. Takes the GIL; throws what Python raises, and then
/// the next call tries again.
void first_use();

}  // namespace lazyeng::record
