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
jobs=$(nproc 2>/dev/null || echo 2)
passed=0 failed=0 output=$(mktemp -d) || exit 2

# Whatever ends this script, its last line is the count, and an end before the end fails.
finish() {
    trap '' INT TERM HUP
    trap - EXIT
    rm -rf "$output"
    if [ "$1" != done ]; then failed=$((failed + 1)); fi
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit $?
}
trap 'finish early' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

phase() { # TITLE COMMAND...: runs it and adds its last 'N passed, N failed'
    title=$1 begun=$(date +%s)
    shift
    echo "== $title"
    { "$@" 2>&1 9>&-; echo $? >"$output/rc"; } | tee "$output/text"
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$output/text" | tail -n 1)
    p=${line%% *} f=${line#*, }
    p=${p:-0} f=${f%% *}
    f=${f:-0}
    if [ "$(cat "$output/rc")" != 0 ] && [ "$f" -eq 0 ]; then
        echo "$title: did not finish"
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f))
    echo "== $title: $(($(date +%s) - begun)) s"
}
# Builds under the clone's lock, runs without it: a test starts the demo, which builds, too.
built() { # PROGRAMS-TARGET TARGET MAKE-VARIABLE...
    programs=$1 target=$2
    shift 2
    build_locked make -s -j"$jobs" "$@" "$programs" && make -s "$@" "$target"
}

ensure_packages build test || exit 1
mkdir -p build || exit 1
install_wanted
borrow_programs
# One run at a time in a clone, since the logs have one place.
exec 9>build/.test-lock
flock -n 9 || { echo "siliceo: waiting for another test run in this clone"; flock 9; }

phase 'tests' built test-programs test
if [ "$quick" = no ]; then
    phase 'tests under the address and undefined-behaviour sanitizers' built test-programs test SAN=address,undefined
    phase 'threads under the thread sanitizer' built thread-programs test-threads SAN=thread
    phase 'static checks' make -s check
fi
finish done
