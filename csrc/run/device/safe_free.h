// csrc/run/device/safe_free.h: letting go of a device's memory, also when the device is lost.
//
// Memory that several streams have used is freed with an event on each, which a lost device
// refuses: torch's allocator then throws, from a destructor, which ends the process. Who has told
// the allocator of what is not known any more at that time (the program may have, too). So all
// memory of devices that lazyeng holds last is freed by another deleter, which calls the
// allocator's.
#pragma once

#include <c10/core/Storage.h>

namespace lazyeng::run {

/// Before a reference to the storage is dropped: if it is the last one, freeing will not throw.
/// (Not before: the allocator knows its memory by the deleter.) Nothing for the CPU.
void free_safely(const c10::Storage& memory);

}  // namespace lazyeng::run
