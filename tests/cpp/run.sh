#!/bin/sh
# tests/cpp/run.sh [plain|tsan|asan] [test file ...]: builds and runs the C++ tests.
# Build outputs go to ${BUILD:-/tmp/lazyeng-tests}/<mode>.
set -eu
cd "$(dirname "$0")/../.."
mode=${1:-plain}
[ $# -gt 0 ] && shift
case $mode in
  plain) flags="-O2" percent=100 ;;
  tsan) flags="-O1 -g -fsanitize=thread" percent=${PERCENT:-100} ;;
  asan) flags="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all" percent=${PERCENT:-100} ;;
  *) echo "run.sh: unknown mode '$mode', expected plain, tsan or asan" >&2; exit 2 ;;
esac
flags="-std=c++20 $flags -Wall -Wextra -Werror -I. -pthread -ldl"
out=${BUILD:-/tmp/lazyeng-tests}/$mode
mkdir -p "$out"
export TSAN_OPTIONS="halt_on_error=1 die_after_fork=0 ${TSAN_OPTIONS:-}"

# Rebuilt only when a source is newer: enough for a handful of files.
newest_header=$(ls -t csrc/engine/*.h csrc/fuse/triton_launch.h csrc/record/read_habit.h csrc/run/crowding.h csrc/run/other_programs.h csrc/run/program_time.h csrc/run/spare_cores.h tests/cpp/*.h tests/cpp/run.sh |
  head -n 1)
compile() {  # source, object
  if [ ! "$2" -nt "$1" ] || [ ! "$2" -nt "$newest_header" ]; then
    ${CXX:-g++} $flags -c "$1" -o "$2"
  fi
}
objects=""
for source in csrc/engine/*.cpp csrc/fuse/triton_launch.cpp csrc/run/other_programs.cpp \
  csrc/run/program_time.cpp csrc/run/spare_cores.cpp; do
  object=$out/$(basename "$source" .cpp).o
  compile "$source" "$object"
  objects="$objects $object"
done
# What stands in for CUDA's driver (test_triton_launch.cpp).
export FAKE_CUDA=$out/libfake_cuda.so
${CXX:-g++} $flags -shared -fPIC tests/cpp/fake_cuda.cpp -o "$FAKE_CUDA"

passed=0 failed=0
[ $# -gt 0 ] || set -- tests/cpp/test_*.cpp
for source in "$@"; do
  name=$(basename "$source" .cpp)
  compile "$source" "$out/$name.o"
  ${CXX:-g++} $flags "$out/$name.o" $objects -o "$out/$name"
  echo "$name ($mode)"
  "$out/$name" "$percent" >"$out/$name.log" 2>&1 && status=0 || status=$?
  sed '$d' "$out/$name.log"
  last=$(tail -n 1 "$out/$name.log")
  p=$(echo "$last" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1/p')
  f=$(echo "$last" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\2/p')
  if [ -z "$p" ]; then  # a crash or a sanitizer report
    echo "$last"
    echo "  FAIL $name exited with status $status"
    p=0 f=1
  elif [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then
    echo "  FAIL $name exited with status $status"
    f=1
  fi
  passed=$((passed + p)) failed=$((failed + f))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
