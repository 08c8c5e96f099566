#!/bin/sh
# check.sh - static checks: format, both compilers with -Werror, clang-tidy, cppcheck,
# scan-build, layers, shell syntax, documents.  A tool that is not installed is a failure, not a skip.
#
#     sh tests/check.sh [BUILD]
#
# One line a check, the findings of a failed one, and 'N passed, N failed' last.
# The tools are those of Debian 12.  Another version warns of other things: it still runs,
# and what it finds is shown as 'noted', which is no failure (a build that breaks is).
set -u
cd "$(dirname "$0")/.." || exit 2
build=${1:-build}
jobs=$(nproc 2>/dev/null || echo 2)
passed=0 failed=0
mkdir -p "$build/check"
# git refuses a clone that belongs to another user, and an unpacked archive is none.
sources=$(git ls-files '*.c' 2>/dev/null)
[ -n "$sources" ] || sources=$(find common kernels worker coordinator tests -name '*.c' -not -path '*/node_modules/*')
# The peer of the benchmarks needs headers that only peer.sh fetches, the timeline those of CUPTI.
sources=$(echo "$sources" | grep -v '^tests/benchmark/\(peer\|timeline\)/')
headers=$(find common kernels worker coordinator tests -name '*.h' -not -path '*/node_modules/*')

# is TOOL VERSION: 12 matches 12.2.0, 2.10 matches 2.10.3.
is() {
    case "$("$1" --version 2>/dev/null | grep -oE '[0-9]+\.[0-9.]+' | head -n 1)." in "$2".*) return 0 ;; esac
    return 1
}
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
        printf 'FAILED  %-28s %4d s  %s\n' "$name" $(($(date +%s) - start)) "$log"
        findings "$log"
    fi
}
findings() { grep -E 'error|warning|Error|:[0-9]+:' "$1" | head -n "${2:-20}" | sed 's/^/        | /'; }
# opinion TOOL VERSION NAME COMMAND...: a check only with the version it was made with.
opinion() {
    tool=$1 version=$2 name=$3
    shift 3
    if is "$tool" "$version" || ! command -v "$tool" >/dev/null 2>&1; then
        check "$name" "$@"
        return
    fi
    log=$build/check/$(echo "$name" | tr ' /' '--').log
    start=$(date +%s)
    if "$@" >"$log" 2>&1; then words='finds nothing'; else words='finds what is no failure here:'; fi
    printf 'noted   %-28s %4d s  %s is not version %s; it %s\n' "$name" $(($(date +%s) - start)) "$tool" "$version" "$words"
    [ "$words" = 'finds nothing' ] || findings "$log" 5
}

compile() { # COMPILER VERSION: -Werror with the version that the code is clean with
    werror=
    if is "$1" "$2"; then werror=1; fi
    make -j"$jobs" CC="$1" WERROR="$werror" BUILD="$build/check/$1" test-programs
}
checks= # over those of .clang-tidy
tidy_files() { # FLAGS...: files come on stdin, one process a file
    xargs -r -P "$jobs" -I {} clang-tidy --quiet $checks --warnings-as-errors='*' {} -- -std=c11 -D_GNU_SOURCE -I. \
        '-DSILICEO_BUILD="check"' $(pkg-config --cflags libcjson libmicrohttpd libsodium gnutls libpq) -DSILICEO_LIBPQ "$@" 2>/dev/null
}
# The analyzer is most of the work, and scan-build runs it over the programs; so here tests alone have it.
tidy() {
    rc=0
    echo "$sources" | grep '^tests/' | tidy_files || rc=1
    checks='--checks=-clang-analyzer-*'
    echo "$sources" | grep -v -e '^tests/' -e '_avx' | tidy_files || rc=1
    echo "$sources" | grep '_avx2' | tidy_files -mavx2 -mfma -mf16c -mbmi2 || rc=1
    echo "$sources" | grep '_avx512' | tidy_files -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw \
        -mavx512vl -mavx512dq -mavx512vnni || rc=1
    return $rc
}
cpp_check() {
    # Kernels in CUDA C++ are beyond cppcheck's C; their logic runs in tests/kernels instead.
    cppcheck --quiet --std=c11 --enable=warning,performance,portability --error-exitcode=1 \
        --inline-suppr --suppressions-list=tests/cppcheck.txt -i tests/clients/node_modules -i tests/kernels/cuda_emu.cc -j "$jobs" -I. \
        common coordinator worker kernels/cpu tests
}
# What clang-tidy's clang-analyzer has beyond scan-build's own choice.
analyzer=optin.performance.Padding,optin.portability.UnixAPI,security.FloatLoopCounter,security.insecureAPI.rand
analyzer=$analyzer,valist.CopyToSelf,valist.Uninitialized,valist.Unterminated
scan() {
    scan-build --status-bugs -enable-checker "$analyzer" -o "$build/check/scan" make -j"$jobs" BUILD="$build/check/scan-build" all
}
shells() {
    for script in $(find deploy tests .ci -name '*.sh' -not -path '*/node_modules/*') .ci/run; do
        sh -n "$script" || return 1
    done
}

check 'layers' sh tests/layers.sh
check 'shell syntax' shells
check 'documents' node tests/documents.mjs
format=clang-format
if command -v clang-format-14 >/dev/null 2>&1; then format=clang-format-14; fi
if is "$format" 14 || ! command -v "$format" >/dev/null 2>&1; then
    check 'format' "$format" --dry-run --Werror $sources $headers
else
    echo "skipped format                       needs clang-format 14, here is: $("$format" --version 2>&1 | head -n 1)"
fi
check 'gcc -Werror' compile gcc 12
check 'clang -Werror' compile clang 14
opinion clang-tidy 14 'clang-tidy' tidy
opinion cppcheck 2.10 'cppcheck' cpp_check
opinion clang 14 'scan-build' scan
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
