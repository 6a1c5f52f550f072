#!/bin/sh
# tools/sanitize.sh address|thread [command ...]: builds lazyeng._C under a sanitizer (with address
# also that of undefined behaviour), in a copy of the tree, and runs the command there. Without a
# command: random programs for SOAK seconds (1800), then the tests of unwinding, processes, threads,
# engine failures, layouts, plain values, step plans and trials. (Tests of memory would measure what
# the sanitizer keeps. Those of Ctrl-C need a shell that does not ignore it, as `nohup ... &` does.)
#
# Engine threads take memory from a pool, which hides from a sanitizer what is used after it was
# given back: half of the random programs run with a pool that keeps nothing.
#
#   SOAK=60 sh tools/sanitize.sh address
#   sh tools/sanitize.sh address python -m pytest -n 0 tests/test_tiny.py
#
# torch itself is not instrumented: what is found is in our code, or in memory that it handed on.
# (ThreadSanitizer knows no locks of libraries that it did not see compiled, and reports torch's.)
# PYTHON is the interpreter, with torch and pytest; BUILD the folder of the copy.
set -eu
cd "$(dirname "$0")/.."
name=${1:?"sanitize.sh: expected address or thread"}
shift
case $name in
  address) libraries="libasan.so libubsan.so" sanitizers=address,undefined ;;
  thread) libraries=libtsan.so sanitizers=thread ;;
  *) echo "sanitize.sh: unknown sanitizer '$name', expected address or thread" >&2; exit 2 ;;
esac
python=${PYTHON:-python}
out=${BUILD:-$PWD/build/sanitize}/$name
mkdir -p "$out"
git ls-files -co --exclude-standard | tar -cf - -T - | tar -xf - -C "$out"  # keeps times: ninja
cd "$out"
export PYTHONPATH="$out"
LAZYENG_SANITIZE=$sanitizers "$python" setup.py --quiet build_ext --inplace

# An interpreter that is not instrumented needs the sanitizer first, and its C++ library with it:
# else the interceptor of throw finds nothing to call.
LD_PRELOAD=
for library in $libraries libstdc++.so.6; do
  LD_PRELOAD="$LD_PRELOAD $(${CC:-gcc} -print-file-name=$library)"
done
export LD_PRELOAD PYTHONMALLOC=malloc UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export ASAN_OPTIONS="detect_leaks=0:halt_on_error=1:abort_on_error=1:${ASAN_OPTIONS:-}"
export LAZYENG_TEST_SLOWNESS="${LAZYENG_TEST_SLOWNESS:-4}"  # time limits of tests, times this
export TSAN_OPTIONS="ignore_noninstrumented_modules=1:die_after_fork=0:${TSAN_OPTIONS:-}"
if [ $# -gt 0 ]; then
  exec "$@"
fi
half=$((${SOAK:-1800} / 2))
LAZYENG_MAX_POOL_BYTES=0 "$python" -m tests.soak --seconds "$half"
"$python" -m tests.soak --seconds "$half"
exec "$python" -m pytest -q -n 0 -p no:cacheprovider tests/test_errors_unwinding.py \
  tests/test_process.py tests/test_sharing.py tests/test_errors_engine.py tests/test_layouts.py \
  tests/test_plain_values.py tests/test_step_plans.py tests/test_fusion_trials.py
