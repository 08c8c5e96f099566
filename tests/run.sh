#!/bin/sh
# run.sh - runs test programs and scripts, one line each, and counts what passed.
#
#     sh tests/run.sh BUILD NAME...
#
# NAME is a program in BUILD/tests (unit/test_wire), a fuzz target whose corpus is
# replayed (fuzz/fuzz_wire) or a script in tests (fleet/test_x.sh, clients/test_x.mjs).
# Logs go to BUILD/test-logs; those of failed ones are shown.  What a script could not
# test on this machine it names in lines 'skipped ...'; they are shown and counted.  Four
# lanes run side by side: the chaos test, what starts fleets and mostly waits, and two that share
# the rest, which computes and so steps back for them.  The last line is 'N passed, N failed'; the
# exit code is 1 when anything failed.
set -u
cd "$(dirname "$0")/.." || exit 2
build=$1
shift
logs=$build/test-logs
mkdir -p "$logs"
export SILICEO_BUILD=$build
passed=0 failed=0 skipped=0 limit=${SILICEO_TEST_LIMIT_S:-900}

# cmocka and our own scripts tell how many tests ran; anything else counts as one.
count() { # LOG RC: sets p and f
    p=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$1" | tail -n 1)
    f=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$1" | tail -n 1)
    if [ -z "$p" ]; then
        line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$1" | tail -n 1)
        p=$(echo "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p')
        f=$(echo "$line" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')
    fi
    p=${p:-0} f=${f:-0}
    if [ "$2" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    k=$(grep -c '^skipped ' "$1")
    if [ "$2" -eq 0 ] && [ "$p" -eq 0 ] && [ "$f" -eq 0 ] && [ "$k" -eq 0 ]; then p=1; fi
}

# Runs one and tells; adds to passed, failed and skipped.
run() { # NAME PRIORITY
    log=$logs/$(echo "$1" | tr '/' '-').log
    start=$(date +%s%N)
    case $1 in
        *.sh) nice -n "$2" timeout "$limit" sh "tests/$1" >"$log" 2>&1 ;;
        *.mjs) nice -n "$2" timeout "$limit" node "tests/$1" >"$log" 2>&1 ;;
        fuzz/*) nice -n "$2" timeout "$limit" "$build/tests/$1" "tests/fuzz/corpus/${1#fuzz/fuzz_}" >"$log" 2>&1 ;;
        *) nice -n "$2" timeout "$limit" "$build/tests/$1" >"$log" 2>&1 ;;
    esac
    rc=$?
    count "$log" "$rc"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + k))
    ms=$((($(date +%s%N) - start) / 1000000))
    if [ "$rc" -eq 0 ]; then
        printf 'ok      %-44s %4d passed  %6d.%03d s\n' "$1" "$p" $((ms / 1000)) $((ms % 1000))
        [ "$k" -eq 0 ] || grep '^skipped ' "$log"
    else
        printf 'FAILED  %-44s %4d passed, %d failed, exit %d; %s\n' "$1" "$p" "$f" "$rc" "$log"
        grep -vE '^\[ RUN|^\[       OK' "$log" | tail -n 25 | sed 's/^/        | /'
    fi
}

lane_of() {
    case $1 in fleet/test_chaos.mjs) echo chaos ;; fleet/* | browser/*) echo fleets ;; *) echo rest ;; esac
}

# What of a kind nobody has taken yet, one after the other; the counts go to a file.
lane() { # LANE KIND PRIORITY NAME...
    lane=$1 kind=$2 priority=$3
    shift 3
    for name in "$@"; do
        [ "$(lane_of "$name")" = "$kind" ] || continue
        ! mkdir "$logs/taken/$(echo "$name" | tr '/' '-')" 2>/dev/null || run "$name" "$priority"
    done
    echo "$passed $failed $skipped" >"$logs/lane-$lane.count"
}

rm -rf "$logs"/lane-*.count "$logs/taken"
mkdir "$logs/taken"
lane 0 chaos 0 "$@" &
lane 1 fleets 0 "$@" &
lane 2 rest 10 "$@" &
lane 3 rest 10 "$@" &
wait
for lane in 0 1 2 3; do
    p=0 f=1 k=0 # a lane that could not tell has failed
    read -r p f k <"$logs/lane-$lane.count" || f=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + k))
done
[ "$skipped" -eq 0 ] || echo "$skipped skipped, named above"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
