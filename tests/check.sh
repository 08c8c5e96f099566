#!/bin/sh
# check.sh - static checks: format, both compilers with -Werror, clang-tidy, cppcheck,
# scan-build, layers, shell syntax.  A tool that is not installed is a failure, not a skip.
#
#     sh tests/check.sh [BUILD]
#
# One line a check, the findings of a failed one, and 'N passed, N failed' last.
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build}
jobs=$(nproc 2>/dev/null || echo 2)
passed=0 failed=0
mkdir -p "$build/check"
sources=$(git ls-files '*.c' 2>/dev/null)
[ -n "$sources" ] || sources=$(find common kernels worker coordinator tests -name '*.c')
# The peer of the benchmarks needs headers that only peer.sh fetches.
sources=$(echo "$sources" | grep -v '^tests/benchmark/peer/')
headers=$(find common kernels worker coordinator tests -name '*.h')

check() { # NAME COMMAND...
    name=$1
    shift
    log=$build/check/$(echo "$name" | tr ' /' '--').log
    start=$(date +%s)
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        printf 'ok      %-28s %4d s\n' "$name" $(($(date +%s) - start))
    else
        failed=$((failed + 1))
        printf 'FAILED  %-28s %s\n' "$name" "$log"
        grep -E 'error|warning|Error|:[0-9]+:' "$log" | head -n 20 | sed 's/^/        | /'
    fi
}

tidy_files() { # FLAGS...: files come on stdin, one process a file
    xargs -r -P "$jobs" -I {} clang-tidy --quiet --warnings-as-errors='*' {} -- -std=c11 -D_GNU_SOURCE -I. \
        '-DSILICEO_BUILD="check"' $(pkg-config --cflags libcjson libmicrohttpd libsodium) "$@" 2>/dev/null
}
tidy() {
    rc=0
    echo "$sources" | grep -v '_avx' | tidy_files || rc=1
    echo "$sources" | grep '_avx2' | tidy_files -mavx2 -mfma -mf16c -mbmi2 || rc=1
    echo "$sources" | grep '_avx512' | tidy_files -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw \
        -mavx512vl -mavx512dq -mavx512vnni || rc=1
    return $rc
}
cpp_check() {
    cppcheck --quiet --std=c11 --enable=warning,performance,portability --error-exitcode=1 \
        --inline-suppr --suppressions-list=tests/cppcheck.txt -j "$jobs" -I. \
        common coordinator worker kernels tests
}
scan() {
    scan-build --status-bugs -o "$build/check/scan" make -j"$jobs" BUILD="$build/check/scan-build" all
}
shells() {
    for script in $(find deploy tests .ci -name '*.sh') .ci/run; do
        sh -n "$script" || return 1
    done
}

check 'layers' sh tests/layers.sh
check 'shell syntax' shells
check 'format' clang-format --dry-run --Werror $sources $headers
check 'gcc -Werror' make -j"$jobs" CC=gcc WERROR=1 BUILD="$build/check/gcc" test-programs
check 'clang -Werror' make -j"$jobs" CC=clang WERROR=1 BUILD="$build/check/clang" test-programs
check 'clang-tidy' tidy
check 'cppcheck' cpp_check
check 'scan-build' scan
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
