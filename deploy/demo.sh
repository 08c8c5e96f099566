#!/bin/sh
# demo.sh - builds Siliceo and shows it at work: a coordinator, two CPU workers with
# different cache profiles, three questions answered by the demo model.
#
#     sh deploy/demo.sh [--once]
#
# --once stops everything after the questions and exits 0 only if the answers hold
# Umberto Eco, 391 and 1769.  Without it the fleet keeps running until Ctrl-C.
# Everything is on loopback and on free ports, so several copies may run.
set -u
cd "$(dirname "$0")/.." || exit 2
. deploy/packages.sh
once=no
for word in "$@"; do
    case $word in
        --once) once=yes ;;
        --help | -h) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "demo.sh: unknown word '$word'; --help helps" >&2; exit 2 ;;
    esac
done

say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
if [ -t 1 ]; then
    bold=$(printf '\033[1m') dim=$(printf '\033[2m') plain=$(printf '\033[0m')
else
    bold= dim= plain=
fi

ensure_packages build || exit 1
echo "siliceo: building (the first time takes a minute or two)"
build() { make -s -j"$(nproc 2>/dev/null || echo 2)" V=1 all >build/demo-build.log 2>&1; }
build_locked build || {
    grep -E 'error|Error' build/demo-build.log | head -n 20 >&2
    echo "demo.sh: the build failed; build/demo-build.log has all of it" >&2
    exit 1
}

work=$(mktemp -d "${TMPDIR:-/tmp}/siliceo-demo-XXXXXX") || exit 1
pids=
fail() {
    echo "demo.sh: $*" >&2
    for log in "$work"/*.log; do
        [ -f "$log" ] && [ "${log##*/}" != stream.log ] && tail -n 5 "$log" | sed "s|^|  ${log##*/}: |" >&2
    done
    exit 1
}
cleanup() {
    trap '' INT TERM HUP # a second Ctrl-C must not leave half of it running
    trap - EXIT
    # The workers first, so that they can say goodbye to the coordinator.
    for pid in $pids; do
        kill -TERM "$pid" 2>/dev/null
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# launch NAME PROGRAM ARGUMENT...: in a session of its own, so that Ctrl-C reaches only us.
launch() {
    name=$1
    shift
    setsid "$@" >"$work/$name.out" 2>"$work/$name.log" </dev/null &
    pids="$! $pids"
    last_pid=$!
}
# await FILE PATTERN PID WHAT: the line of FILE that matches, as soon as it is there.
await() {
    for _ in $(seq 600); do
        line=$(grep -m 1 "$2" "$1" 2>/dev/null) && return 0
        kill -0 "$3" 2>/dev/null || fail "$4 ended before it was ready"
        sleep 0.1
    done
    fail "$4 was not ready within 60 seconds"
}

launch coordinator build/siliceo-coordinator serve --http 127.0.0.1:0 --mesh tcp://127.0.0.1:0
coordinator_pid=$last_pid
await "$work/coordinator.out" '^ready http=' "$coordinator_pid" 'the coordinator'
url=http://$(echo "$line" | sed 's/^ready http=\([^ ]*\).*/\1/')
mesh=$(echo "$line" | sed 's/.*mesh=//')
model=deploy/models/demo.gguf
launch amber build/siliceo-worker serve --name amber --model "$model" --backend cpu --threads 1 \
    --profile all --coordinator "$mesh"
amber_pid=$last_pid
launch basalt build/siliceo-worker serve --name basalt --model "$model" --backend cpu --threads 1 \
    --profile quarter --coordinator "$mesh"
basalt_pid=$last_pid
await "$work/amber.out" '^ready ' "$amber_pid" 'worker amber'
await "$work/basalt.out" '^ready ' "$basalt_pid" 'worker basalt'
for _ in $(seq 300); do
    ready=$(curl -sS "$url/status" 2>/dev/null | jq '[.nodes[] | select(.state == "ready")] | length' 2>/dev/null)
    [ "$ready" = 2 ] && break
    sleep 0.1
done
[ "$ready" = 2 ] || fail "the coordinator does not see both workers"
say "Two workers are ready: amber holds all experts in slots, basalt a quarter of them."

# ask QUESTION EXPECTED: streams the answer (reasoning dimmed), then what it took.
right=0
ask() {
    say "$1"
    body=$(jq -n --arg q "$1" '{model: "demo", stream: true, temperature: 0, stream_options: {include_usage: true},
        messages: [{role: "user", content: $q}]}')
    curl -sS -N "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "$body" |
        sed -un 's/^data: //p' | tee "$work/stream.log" |
        jq -nRrj --unbuffered --arg dim "$dim" --arg plain "$plain" 'foreach (inputs | fromjson? // empty) as $chunk
            ({thinking: false, text: ""};
             ($chunk.choices[0]?.delta // {}) as $d
             | (.thinking and ($d.content // "") != "") as $answers
             | .text = (if ($d.reasoning_content // "") != "" then $dim + $d.reasoning_content + $plain else "" end)
                     + (if $answers then "\n" else "" end) + ($d.content // "")
             | .thinking = (($d.reasoning_content // "") != "" or (.thinking and ($answers | not)));
             .text)'
    echo
    jq -Rr 'fromjson? // empty | select(.siliceo and .timings) | "   node \(.siliceo.node), "
        + "\(.timings.predicted_per_second | floor) tok/s, expert hit rate "
        + (if .siliceo.hit_rate == null then "-" else "\(.siliceo.hit_rate * 1000 | floor / 10) %" end)' \
        "$work/stream.log" | tail -n 1 | sed "s/.*/$dim&$plain/"
    answer=$(jq -Rrj 'fromjson? // empty | .choices[0].delta.content // empty' "$work/stream.log")
    case $answer in
        *"$2"*) right=$((right + 1)) ;;
        *) echo "demo.sh: the answer does not hold '$2'" >&2 ;;
    esac
}
ask 'Who wrote The Name of the Rose?' 'Umberto Eco'
ask 'What is 17 × 23?' '391'
ask 'In what year was Napoleon born?' '1769'

# Hit rates come with the nodes' next beats.
for _ in $(seq 50); do
    [ "$(curl -sS "$url/status" | jq '[.nodes[] | select(.hit_rate != null)] | length')" != 0 ] && break
    sleep 0.1
done
say 'Status'
curl -sS "$url/status?format=text"

if [ "$once" = yes ]; then
    cleanup
    echo
    echo "$right of 3 answers are right; everything is stopped."
    [ "$right" -eq 3 ]
    exit
fi
cat <<END

The fleet is running.  Talk to it:

    curl $url/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "demo", "messages": [{"role": "user", "content": "What is the capital of Italy?"}]}'

or with any OpenAI client: base URL $url/v1, model demo, any key.
Status: curl '$url/status?format=text'     metrics: $url/metrics
Ctrl-C stops it.
END
trap 'echo; echo "siliceo: stopping"; exit 0' INT TERM HUP
for pid in $coordinator_pid $amber_pid $basalt_pid; do
    wait "$pid" # ends early only when one of them dies or a signal comes
    echo "demo.sh: process $pid ended by itself" >&2
done
fail 'the fleet ended'
