#!/bin/sh
# test_worker.sh - the worker's process: ready line, signals, exit codes, a coordinator that comes
# late, dies and comes back, and keys.  Runs the real programs with the demo model.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=${SILICEO_BUILD:-build}
worker=$build/siliceo-worker coordinator=$build/siliceo-coordinator
model=deploy/models/demo.gguf
passed=0 failed=0 pids=
work=$(mktemp -d)
finish() {
    for pid in $pids; do kill -9 "$pid" 2>/dev/null; done
    rm -rf "$work"
}
trap finish EXIT
expect() { # SENTENCE COMMAND...
    sentence=$1
    shift
    if "$@"; then passed=$((passed + 1)); echo "ok      $sentence"; else failed=$((failed + 1)); echo "FAILED  $sentence"; fi
}
await() { # COMMAND...: true within 60 s
    for _ in $(seq 1200); do
        "$@" 2>/dev/null && return 0
        sleep 0.05
    done
    return 1
}
start_worker() { # NAME ARGUMENT...: log in $work/NAME.out and .err, pid in $pid
    name=$1
    shift
    "$worker" serve --model $model --name "$name" --measure-ms 50 "$@" >"$work/$name.out" 2>"$work/$name.err" &
    pid=$!
    pids="$pids $pid"
}
start_coordinator() { # NAME ARGUMENT...: pid in $pid, addresses in $http and $mesh
    name=$1
    shift
    "$coordinator" serve --http 127.0.0.1:0 "$@" >"$work/$name.out" 2>"$work/$name.err" &
    pid=$!
    pids="$pids $pid"
    await grep -q '^ready' "$work/$name.out" || { cat "$work/$name.err"; exit 1; }
    http=$(sed -n 's/.*http=\([^ ]*\).*/\1/p' "$work/$name.out")
    mesh=$(sed -n 's/.*mesh=\([^ ]*\).*/\1/p' "$work/$name.out")
}
serves() { curl -sf --max-time 5 "http://$http/readyz" >/dev/null; }
answers() {
    curl -sf --max-time 60 "http://$http/v1/chat/completions" \
        -d '{"model":"demo","messages":[{"role":"user","content":"Who wrote The Name of the Rose?"}]}' |
        grep -q 'Umberto Eco'
}
exits() { # CODE SENTENCE COMMAND...: what it says on stderr goes to $work/said
    code=$1 said=$2
    shift 2
    timeout 60 "$@" >"$work/out" 2>"$work/said"
    got=$?
    [ "$got" -eq "$code" ] && grep -q "$said" "$work/said" && return 0
    echo "exit $got, said: $(tail -n 2 "$work/said")"
    return 1
}

# ---- settings
expect 'without a model it is a usage error' exits 2 'model is missing' "$worker" serve
expect 'an unknown key is a usage error' exits 2 'nonsense' "$worker" serve --model $model --nonsense 1
expect 'plain text to another machine is refused' exits 2 'mesh.allow_plain' \
    "$worker" serve --model $model --coordinator tcp://192.0.2.1:5690
expect 'an address without a port is refused' exits 2 'tcp://HOST:PORT' \
    "$worker" serve --model $model --coordinator tcp://127.0.0.1
expect 'a name with a space is refused' exits 2 'other characters' "$worker" serve --model $model --name 'a b'
printf 'not a model' >"$work/bad.gguf"
expect 'a file that is no model ends it with 1 and names the file' exits 1 'bad.gguf' \
    "$worker" serve --model "$work/bad.gguf" --coordinator tcp://127.0.0.1:9

# ---- before the coordinator, and after its death
start_coordinator first --mesh tcp://127.0.0.1:0
address=$mesh first=$pid
kill -9 "$first"
wait "$first" 2>/dev/null
start_worker early --coordinator "$address"
early=$pid
await grep -q '^ready' "$work/early.out"
expect 'the ready line names node and model' grep -qx 'ready name=early model=demo' "$work/early.out"
start_coordinator second --mesh "$address"
second=$pid
expect 'a coordinator that starts later finds it' await serves
expect 'and gets answers' answers
kill -9 "$second"
wait "$second" 2>/dev/null
start_coordinator third --mesh "$address"
third=$pid
expect 'a coordinator that was killed and starts again finds it' await serves
expect 'and gets answers again' answers

# ---- signals
kill -TERM "$early"
wait "$early"
expect 'SIGTERM ends it with 0' test $? -eq 0
expect 'and the coordinator knows that it left' await sh -c "! curl -sf http://$http/readyz >/dev/null"
start_worker brief --coordinator "$address"
brief=$pid
await grep -q '^ready' "$work/brief.out"
kill -INT "$brief"
wait "$brief"
expect 'SIGINT ends it with 0 as well' test $? -eq 0

start_worker slow --coordinator "$address" --drain-limit-s 60
slow=$pid
await serves
# An answer without an end: the tokens that would end it are forbidden.
ends=$(printf '<|im_end|><|endoftext|>' | "$worker" tokenize --model $model --added all |
    sed 's/[0-9][0-9]*/"&":-100/g; s/\[/{/; s/\]/}/')
curl -sN --max-time 60 "http://$http/v1/chat/completions" \
    -d "{\"model\":\"demo\",\"messages\":[{\"role\":\"user\",\"content\":\"Count.\"}],\"max_tokens\":30000,
         \"logit_bias\":$ends,\"stream\":true}" >"$work/stream" &
stream=$!
pids="$pids $stream"
expect 'a long answer has begun' await grep -q 'data: {' "$work/stream"
kill -TERM "$slow"
await grep -q ' stopping ' "$work/slow.err"
expect 'a running request keeps a stopping worker' kill -0 "$slow"
kill -TERM "$slow"
wait "$slow"
expect 'a second signal ends it at once, with 1' test $? -eq 1
kill "$stream" 2>/dev/null
wait "$stream" 2>/dev/null
kill -TERM "$third"
wait "$third"

# ---- keys
(umask 077 && "$coordinator" keygen >"$work/server.key" && "$coordinator" keygen >"$work/node.key" &&
    "$coordinator" keygen >"$work/other.key")
public() { sed -n 's/^# public key: *\([^ ]*\).*/\1/p' "$1"; }
echo "$(public "$work/node.key") keyed" >"$work/allow"
start_coordinator keyed --mesh tcp://127.0.0.1:0 --mesh-curve-secret-file "$work/server.key" \
    --mesh-curve-allow-file "$work/allow"
start_worker stranger --coordinator "$mesh" --curve-secret-key-file "$work/other.key" \
    --curve-server-key "$(public "$work/server.key")"
stranger=$pid
start_worker plain --coordinator "$mesh"
plain=$pid
await grep -q '^ready' "$work/stranger.out"
await grep -q 'coordinator-handshake-failed' "$work/stranger.err"
expect 'a key that is not on the list is told so' grep -q 'coordinator-handshake-failed' "$work/stranger.err"
await grep -q '^ready' "$work/plain.out"
expect 'neither it nor plain text is admitted' sh -c "! curl -sf http://$http/readyz >/dev/null"
kill -TERM "$stranger" "$plain"
start_worker keyed --coordinator "$mesh" --curve-secret-key-file "$work/node.key" \
    --curve-server-key "$(public "$work/server.key")"
expect 'a node on the list is admitted' await serves
expect 'and answers over CURVE' answers
kill -TERM "$pid"
wait "$pid"
expect 'and ends with 0' test $? -eq 0

[ "$failed" -eq 0 ] || for log in "$work"/*.err "$work/stream"; do
    echo "== $log"
    grep -v ' plan ' "$log" | tail -c 2000
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
