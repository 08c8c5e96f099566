#!/bin/sh
# test_demo.sh - the demo as a stranger runs it: answers right, exit 0, nothing left running;
# twice at the same time; and stopped by a signal.
set -u
cd "$(dirname "$0")/../.." || exit 2
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
expect() { # SENTENCE COMMAND...
    sentence=$1
    shift
    if "$@"; then passed=$((passed + 1)); echo "ok      $sentence"; else failed=$((failed + 1)); echo "FAILED  $sentence"; fi
}
holds() { grep -qF "$2" "$1"; }

TMPDIR=$work sh deploy/demo.sh --once >"$work/one" 2>&1 &
one=$!
TMPDIR=$work sh deploy/demo.sh --once >"$work/two" 2>&1 &
two=$!
wait "$one"; expect 'the first copy exits 0' test $? -eq 0
wait "$two"; expect 'a second one beside it exits 0' test $? -eq 0
for answer in 'Umberto Eco' '17 × 23 = 391' '1769' 'node ' 'tok/s' 'expert hit rate' '3 of 3 answers are right'; do
    expect "the demo prints: $answer" holds "$work/one" "$answer"
done

TMPDIR=$work sh deploy/demo.sh >"$work/three" 2>&1 &
three=$!
for _ in $(seq 1200); do
    grep -q 'Ctrl-C stops it' "$work/three" && break
    kill -0 "$three" 2>/dev/null || break
    sleep 0.1
done
expect 'without --once it goes on and says how to talk to it' holds "$work/three" '/v1/chat/completions'
url=$(sed -n 's|.*curl \(http://[^/]*\)/v1/chat.*|\1|p' "$work/three" | head -n 1)
expect 'and answers there' sh -c "curl -sS '$url/readyz' >/dev/null"
kill -TERM "$three"
wait "$three"; expect 'a signal stops it with exit 0' test $? -eq 0
expect 'and nothing answers any more' sh -c "! curl -s --max-time 2 '$url/readyz' >/dev/null"
expect 'and nothing is left in the temporary folder' test -z "$(find "$work" -maxdepth 1 -name 'siliceo-demo-*')"
[ "$failed" -eq 0 ] || tail -n 30 "$work"/one "$work"/two "$work"/three
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
