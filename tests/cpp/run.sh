#!/bin/sh
# tests/cpp/run.sh [plain|tsan|asan] [test file ...]: builds and runs the C++ tests.
# Build outputs go to ${BUILD:-/tmp/lazyeng-tests}/<mode>.
set -eu
cd "$(dirname "$0")/../.."
mode=${1:-plain}
[ $# -gt 0 ] && shift
# (-g1: the lines of reports, and two thirds of the time of a build with -g.)
case $mode in
  plain) flags="-O2" percent=100 ;;
  tsan) flags="-O1 -g1 -fsanitize=thread" percent=${PERCENT:-100} ;;
  asan) flags="-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all" percent=${PERCENT:-100} ;;
  *) echo "run.sh: unknown mode '$mode', expected plain, tsan or asan" >&2; exit 2 ;;
esac
flags="-std=c++20 $flags -Wall -Wextra -Werror -I. -pthread -ldl"
out=${BUILD:-/tmp/lazyeng-tests}/$mode
mkdir -p "$out"
export TSAN_OPTIONS="halt_on_error=1 die_after_fork=0 ${TSAN_OPTIONS:-}"

# Rebuilt only when a source is newer: enough for a handful of files.
newest_header=$(find csrc tests/cpp -name '*.h' -o -name run.sh | xargs ls -t | head -n 1)
stale() {  # source file ...: "source object" of each that needs compiling
  for source in "$@"; do
    object=$out/$(basename "$source" .cpp).o
    if [ ! "$object" -nt "$source" ] || [ ! "$object" -nt "$newest_header" ]; then
      echo "$source $object"
    fi
  done
}
[ $# -gt 0 ] || set -- tests/cpp/test_*.cpp
# What is tested is one file: most of a compiler's time goes by on headers that all have in common.
sources="csrc/engine/*.cpp csrc/fuse/device/cuda_driver.cpp csrc/fuse/triton_launch.cpp csrc/run/doubts.cpp
  csrc/run/caller/only_thread.cpp csrc/run/cores/finding.cpp csrc/run/cores/other_programs.cpp
  csrc/run/cores/program_time.cpp csrc/run/cores/spare_cores.cpp csrc/run/cores/team_places.cpp"
tested=$out/tested.cpp
if [ ! "$tested" -nt "$(ls -t $sources | head -n 1)" ]; then
  printf '#include "%s"\n' $sources >"$tested"
fi
stale "$tested" "$@" | xargs -r -n 2 -P "${MAX_JOBS:-2}" \
  sh -c '"$1" $2 -c "$3" -o "$4"' compile "${CXX:-g++}" "$flags"
# What stands in for CUDA's driver (test_triton_launch.cpp).
export FAKE_CUDA=$out/libfake_cuda.so
${CXX:-g++} $flags -shared -fPIC tests/cpp/fake_cuda.cpp -o "$FAKE_CUDA"

passed=0 failed=0
for source in "$@"; do
  name=$(basename "$source" .cpp)
  ${CXX:-g++} $flags "$out/$name.o" "$out/tested.o" -o "$out/$name"
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
