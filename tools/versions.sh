#!/bin/sh
# tools/versions.sh [-d DIR] [PYTHON/TORCH ...]: builds lazyeng and runs its tests with other
# versions, each pair in a copy of the tree and a new virtual environment; a line for each pair.
#
#   sh tools/versions.sh                                   3.11, 3.12, 3.13 with torch 2.13.0, and
#                                                          3.12 with the newest torch that we allow
#   sh tools/versions.sh -d /var/tmp/versions 3.13/2.12.1 /opt/python/bin/python3/2.15
#
# PYTHON: a version, whose python3.x is on PATH, or the path of an interpreter. TORCH: a version
# ("2.15" is its latest patch), or "newest" within pyproject.toml's bounds. DIR (a new one below
# TMPDIR) keeps the environments and, beside them, the logs.
#
# pip takes torch from where it is set up to (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS); where it finds
# no build for CPUs it takes CUDA's, several GB for each pair.
#
# Settings: MAX_JOBS (compilers at once, 2), PYTEST_ARGS ("-n 2 --dist worksteal").
# Exit status: 1 if a pair could not be built or a test of it failed.
set -u
root=$(cd "$(dirname "$0")/.." && pwd) || exit
export MAX_JOBS="${MAX_JOBS:-2}" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
unset PYTHONPATH # (what is tested is the copy)

folder=
while getopts d: option; do
  case $option in
    d) folder=$OPTARG ;;
    *) echo "usage: versions.sh [-d DIR] [PYTHON/TORCH ...]" >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- 3.11/2.13.0 3.12/2.13.0 3.13/2.13.0 3.12/newest
for pair; do
  case $pair in
    ?*/?*) ;;
    *) echo "versions.sh: expected PYTHON/TORCH, got '$pair'" >&2; exit 2 ;;
  esac
done
folder=${folder:-$(mktemp -d)} && mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || exit

# The name of what is done now is kept: it is told if that fails.
step() {
  current=$1
  shift
  echo "=== $current: $*"
  "$@"
}

torch_requirement() {
  case $1 in
    newest)
      awk -F '[(,) ]+' '/^OLDEST/ {oldest = $3 "." $4}
                        /^NEWEST/ {print "torch>=" oldest ",<" $3 "." $4 + 1}' \
        "$root/lazyeng/_check_torch.py" ;;
    *.*.*) echo "torch==$1" ;;
    *) echo "torch==$1.*" ;;
  esac
}

copy_tree() {
  rm -rf "$place/tree" && mkdir "$place/tree" && cd "$root" || return
  git ls-files -co --exclude-standard | tar -cf - -T - | tar -xf - -C "$place/tree"
}

install_requirements() {
  "$bin/python" "$place/tree/tools/requirements.py" build test > "$place/requirements.txt" &&
    "$bin/python" -m pip install --quiet numpy -r "$place/requirements.txt"
}

build() {
  cd "$place/tree" &&
    "$bin/python" -m pip install --no-build-isolation --no-deps --editable .
}

run_tests() {
  # shellcheck disable=SC2086 # several arguments
  cd "$place/tree" && "$bin/python" -m pytest -q ${PYTEST_ARGS:--n 2 --dist worksteal}
}

prepare() { # python, torch
  step "virtual environment" "$1" -m venv --clear "$place/venv" &&
    step "torch" "$bin/python" -m pip install --quiet "$(torch_requirement "$2")" &&
    step "copy of the tree" copy_tree &&
    step "requirements" install_requirements &&
    step "build" build
}

count() { # of pytest's last line: 3 failed, 3450 passed, 12 skipped, 1 error in 812.34s
  number=$(printf '%s\n' "$summary" | grep -oE "[0-9]+ $1" | cut -d ' ' -f 1)
  echo "${number:-0}"
}

versions() {
  "$bin/python" -c 'import platform as p, torch
print(f"Python {p.python_version()}, torch {torch.__version__}")'
}

# Prints the pair's line; its status says whether all went well.
test_pair() { # python, torch
  case $1 in
    *[!0-9.]*) python=$1 ;;
    *) python=python$1 ;;
  esac
  place=$folder/$(basename "$python")-torch-$2
  bin=$place/venv/bin
  log=$place/log.txt
  started=$(date +%s)
  mkdir -p "$place" || return
  echo "$1/$2: $log" >&2
  if ! prepare "$python" "$2" > "$log" 2>&1; then
    echo "Python $1, torch $2: failed at $current ($log)"
    return 1
  fi
  found=$(TORCH_DEVICE_BACKEND_AUTOLOAD=0 versions 2>> "$log")
  step "tests" run_tests >> "$log" 2>&1
  status=$?
  summary=$(grep -E '(passed|failed|skipped|errors?|warnings?) in [0-9]|no tests ran' "$log" | tail -n 1)
  failed=$(($(count failed) + $(count error)))
  echo "$found: $(count passed) passed, $failed failed, $(count skipped) skipped" \
    "($(($(date +%s) - started)) s, exit $status, $log)"
  [ "$status" -eq 0 ]
}

result=0
for pair; do
  (test_pair "${pair%/*}" "${pair##*/}") || result=1
done
exit "$result"
