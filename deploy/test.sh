#!/bin/sh
# test.sh - installs what is needed and runs every test and check of Siliceo.
#
#     sh deploy/test.sh [--quick]
#
# --quick leaves out the sanitizer builds and the static checks.  The last line is
# 'N passed, N failed'; the exit code is 0 only when nothing failed.
set -u
cd "$(dirname "$0")/.." || exit 2
. deploy/packages.sh
quick=no
for word in "$@"; do
    case $word in
        --quick) quick=yes ;;
        --help | -h) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "test.sh: unknown word '$word'; --help helps" >&2; exit 2 ;;
    esac
done
ensure_packages build test || exit 1
jobs=$(nproc 2>/dev/null || echo 2)
mkdir -p build
# One copy at a time in a clone: another waits here instead of building over us.
exec 9>build/.lock
flock 9
passed=0 failed=0
results=$(mktemp)
trap 'rm -f "$results"' EXIT

phase() { # TITLE COMMAND...: runs it and adds its last 'N passed, N failed'
    title=$1
    shift
    echo "== $title"
    "$@" 2>&1 | tee "$results"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$results" | tail -n 1)
    if [ -z "$line" ]; then
        echo "$title: did not finish"
        failed=$((failed + 1))
        return
    fi
    passed=$((passed + ${line%% *}))
    rest=${line#*, }
    failed=$((failed + ${rest%% *}))
}

phase 'tests' make -s -j"$jobs" test
if [ "$quick" = no ]; then
    phase 'tests under the address and undefined-behaviour sanitizers' make -s -j"$jobs" SAN=address,undefined test
    phase 'threads under the thread sanitizer' make -s -j"$jobs" SAN=thread test-threads
    phase 'static checks' make -s check
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
