#!/bin/bash
# gpu.sh PROGRAMS OUT [correct|speed|sanitize|dense|draft|batch|context|prefix|all] - what a machine with a GPU is asked to do.
#
# PROGRAMS has siliceo-worker, make_model, make_routing and tests/golden (a build folder, or a
# bundle with them); OUT gets gpu.jsonl, a line a case, which gpu_record.mjs turns into
# tests/benchmark/results.  The model is the preset 35b-a3b, made at $MODEL (21 GB; /dev/shm).
# Runs in the repository's root.  A speed is never taken of a build whose golden tests or logits
# failed.  sanitize: compute-sanitizer over short runs of the demo model, where it is installed.
# all: correct, sanitize and speed.  The others are asked for one by one: dense (preset 9b at $DENSE in
# 7,782 MiB with 32k tokens of KV8, at $DEPTHS), draft (preset 0.8b at $DRAFT beside both), batch
# ($USERS users, each with a trace of its own), context (types of KV pages at depth), prefix (a chat
# of eight turns through the API).  A dry run without a GPU: BACKEND=cpu, small models,
# TRACES=no, SILICEO_PROFILES with profiles that fit them.
set -u
shopt -s extglob
programs=$1 out=$2 what=${3:-all}
worker=$programs/siliceo-worker
model=${MODEL:-/dev/shm/siliceo-35b.gguf}
lines=$out/gpu.jsonl
export SILICEO_BUILD=$programs SILICEO_PROFILES=${SILICEO_PROFILES:-deploy/profiles}
backend=${BACKEND:-cuda} limit_s=${LIMIT_S:-150}
dense=${DENSE:-/dev/shm/siliceo-9b.gguf} draft=${DRAFT:-/dev/shm/siliceo-0.8b.gguf}
mkdir -p "$out"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null | head -1)
cpu=$(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo)
echo "{\"machine\": \"$card; $cpu, $(nproc) cores\", \"commit\": \"${COMMIT:-unknown}\"}" > "$lines"
failed=0

test_case() { # a golden test on the GPU
    SILICEO_TEST_BACKEND=cuda timeout 120 "$programs/tests/golden/$1" > "$work/test.log" 2>&1
    local rc=$?
    [ $rc = 0 ] || { failed=1; grep -E 'ERROR|FAILED' "$work/test.log"; }
    echo "{\"test\": \"$1\", \"passed\": $(grep -c '\[       OK' "$work/test.log"), \"rc\": $rc}" | tee -a "$lines"
}

ids() { seq -s, "$1" "$(($1 + $2 - 1))"; }

logits() { # of the demo: file, ids, flags
    local out=$1 n=$2
    shift 2
    "$worker" logits --model deploy/models/demo.gguf --ids "$(ids 5 "$n")" --out "$out" "$@"
}

compare() { # name, ids, key and limit of gpu_compare.py, flags of the one run, of the other
    local figures
    if logits "$work/a" "$2" $5 && logits "$work/b" "$2" $6 &&
        figures=$(python3 tests/benchmark/gpu_compare.py "$work/a" "$work/b" "$2" "$3" "$4"); then
        echo "{\"logits\": \"$1\", \"limit\": {\"$3\": $4}, \"passed\": 1, \"figures\": $figures}" | tee -a "$lines"
    else
        failed=1
        echo "{\"logits\": \"$1\", \"limit\": {\"$3\": $4}, \"passed\": 0, \"figures\": ${figures:-null}}" | tee -a "$lines"
    fi
}

sanitize() { # tool, name, flags
    local tool=$1 name=$2 summary
    shift 2
    timeout 200 compute-sanitizer --tool "$tool" "$worker" generate --model deploy/models/demo.gguf --backend cuda \
        --ids "$(ids 5 40)" -n 4 --ignore-eog "$@" > "$work/sanitizer.log" 2>&1
    summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$work/sanitizer.log" | sed 's/=* *//' | head -1)
    case $summary in
        *' 0 errors'* | *' 0 hazards'*) ;;
        *) failed=1; head -40 "$work/sanitizer.log" ;;
    esac
    echo "{\"sanitizer\": \"$tool\", \"case\": \"$name\", \"summary\": \"$summary\"}" | tee -a "$lines"
}

greedy() { # md5 of 512 greedy ids of the demo
    local sum
    sum=$("$worker" generate --model deploy/models/demo.gguf --backend $backend --speculate off --ids 1,2,3,17,200,45 -n 512 --ignore-eog $2 |
        head -1 | md5sum | cut -c1-12)
    echo "{\"greedy512\": \"$1\", \"md5\": \"$sum\"}" | tee -a "$lines"
}

bench_of() { # model, name, flags; $ONLY, a pattern, picks cases
    local file=$1 name=$2
    shift 2
    case $name in ${ONLY:-*}) ;; *) return ;; esac
    if timeout "$limit_s" "$worker" bench --model "$file" --seed 1 --json "$@" --backend $backend > "$work/o.json" 2> "$work/o.err"; then
        echo "{\"bench\": \"$name\", \"command\": \"siliceo-worker bench --backend $backend --seed 1 --json $*\", \"result\": $(cat "$work/o.json")}" |
            sed "s#$programs/##g; s#$work/##g" | tee -a "$lines"
    else
        echo "{\"bench\": \"$name\", \"error\": \"$(tail -1 "$work/o.err" | tr -d '\"\\')\"}" | tee -a "$lines"
    fi
}
bench() { # of the 35B, nothing guessed ahead
    local name=$1
    shift
    bench_of "$model" "$name" --speculate off "$@"
}
plan() { # name, model, flags: what the plan prints, as one line
    local name=$1 file=$2 text
    shift 2
    text=$("$worker" plan --model "$file" "$@" --backend $backend 2>&1 | tr -d '"\\\r' | sed 's/$/\\n/' | tr -d '\n')
    echo "{\"plan\": \"$name\", \"command\": \"siliceo-worker plan --backend $backend $*\", \"text\": \"$text\"}" | tee -a "$lines"
}
need() { # preset, file
    [ -f "$2" ] || "$programs/make_model" --params "{\"preset\":\"$1\"}" --out "$2" || exit 1
}
depths=${DEPTHS:-1 256 1800 8192 31000}
run_dense() { # decode behind each depth, cold prompts, and the last tenth of each alone
    local card="--vram-mib 7782 --ctx 32768 --sequences 1 --kv q8"
    need 9b "$dense"
    plan h200-9b "$dense" $card
    for depth in $depths; do
        bench_of "$dense" "dense-$depth" $card --speculate off --prompt "$depth" --decode 64 --repeat 2
        [ "$depth" -lt 100 ] || bench_of "$dense" "dense-held-$depth" $card --speculate off --prompt $((depth * 9 / 10)) --decode 2 --repeat 2
        bench_of "$dense" "dense-more-$depth" $card --speculate off --prompt $((depth + 512)) --decode 2 --repeat 2
    done
}
run_draft() { # whole on the GPU, and on the CPU
    need 9b "$dense"
    need 0.8b "$draft"
    need 35b-a3b "$model"
    for layers in ${LAYERS:-24 0}; do
        plan "h200-9b-draft-$layers" "$dense" --vram-mib 7782 --ctx 8192 --sequences 1 --kv q8 --draft "$draft" --draft-gpu-layers "$layers"
        bench_of "$dense" "9b-draft-$layers" --vram-mib 7782 --ctx 8192 --sequences 1 --kv q8 --speculate draft --draft "$draft" \
            --draft-gpu-layers "$layers" --prompt 256 --decode 256
        plan "h200-35b-draft-$layers" "$model" --profile rtx2070-draft --draft "$draft" --draft-gpu-layers "$layers"
        bench_of "$model" "35b-draft-$layers" --profile rtx2070-draft --speculate draft --draft "$draft" --draft-gpu-layers "$layers" \
            --prompt 256 --decode 256
    done
    bench_of "$dense" 9b-alone --vram-mib 7782 --ctx 8192 --sequences 1 --kv q8 --speculate off --prompt 256 --decode 256
    bench_of "$model" 35b-alone --profile rtx2070-draft --speculate off --prompt 256 --decode 256
}
run_batch() { # slots are what the profile's memory leaves after the users' states and pages
    local routing=
    need 35b-a3b "$model"
    if [ "${TRACES:-yes}" = yes ]; then
        for user in $(seq 16); do
            "$programs/make_routing" tests/golden/data/routing.json "$user" 600 1 > "$work/trace.$user" || exit 1
        done
        routing="--routing $work/trace.{}"
    fi
    for card in rtx2070 rtx3090; do
        for users in ${USERS:-1 2 4 8 16}; do
            plan "batch-$card-$users" "$model" --profile $card --slots auto --ctx 4096 --sequences "$users"
            bench "batch-$card-$users" --profile $card --slots auto --ctx 4096 --users "$users" --prompt 1 --skip 60 --decode "${DECODE:-400}" $routing
        done
        bench "batch-$card-beside" --profile $card --slots auto --ctx 16384 --users 4 --prompt 128 --decode "${DECODE:-400}" --beside "${BESIDE:-8192}"
    done
}
run_context() {
    need 35b-a3b "$model"
    for kv in f16 q8 q4; do
        plan "context-$kv" "$model" --profile rtx2070 --slots auto --ctx 32768 --kv $kv
        for depth in ${DEPTHS:-1 8192 31616}; do
            bench "context-$kv-$depth" --profile rtx2070 --slots auto --ctx 32768 --kv $kv --prompt "$depth" --decode 64
        done
    done
}
run_prefix() {
    local file=${PREFIX_MODEL:-deploy/models/demo.gguf}
    if python3 tests/benchmark/gpu_prefix.py "$programs" "$file" $backend ${PREFIX_FLAGS:---ctx 8192} > "$work/o.json" 2> "$work/o.err"; then
        echo "{\"prefix\": \"$(basename "$file" .gguf)\", \"result\": $(cat "$work/o.json")}" | tee -a "$lines"
    else
        echo "{\"prefix\": \"$(basename "$file" .gguf)\", \"error\": \"$(tail -1 "$work/o.err" | tr -d '\"\\')\"}" | tee -a "$lines"
    fi
}
case $what in dense | draft | batch | context | prefix)
    run_"$what"
    exit 0
    ;;
esac

if [ "$what" = correct ] || [ "$what" = all ]; then
    for t in test_cuda_backend test_verify_rows test_models_golden test_demo_golden test_quant test_head_order test_company test_chunks test_kv_types; do
        [ -x "$programs/tests/golden/$t" ] && test_case "$t"
    done
    f32="--activations f32 --kv f32"
    compare f32-steps 75 max_diff 1e-4 "--backend cpu $f32" "--backend $backend $f32 --chunk 1"
    compare f32-prompt 75 max_diff 1e-4 "--backend cpu $f32" "--backend $backend $f32 --chunk 512"
    # Both quantize, each in its way, and these ids are no text: near ties of the router part them.
    compare int8-prompt 75 kl_mean 1 "--backend cpu" "--backend $backend --chunk 512"
    for chunk in 1 512; do # the CPU lane beside the GPU alone
        compare lane-$chunk 75 kl_mean 1e-3 "--backend $backend --slots 64 --chunk $chunk" \
            "--backend $backend --slots 64 --chunk $chunk --cpu-lane on"
    done
    greedy all "--slots all"
    greedy all-graphs-off "--slots all --no-graphs"
    greedy 64 "--slots 64"
    greedy 64-graphs-off "--slots 64 --no-graphs"
    greedy 32 "--slots 32"
    greedy 64-disk "--slots 64 --ram-mib ${DISK_RAM_MIB:-600}"
    greedy 64-lane "--slots 64 --cpu-lane on"
fi
if [ "$what" = sanitize ] || [ "$what" = all ]; then
    if command -v compute-sanitizer > "$work/where"; then
        for tool in memcheck racecheck; do
            sanitize $tool resident
            sanitize $tool slots --slots 64 --cpu-lane off
        done
    else
        echo '{"sanitizer": "none", "case": "compute-sanitizer is not installed here"}' | tee -a "$lines"
    fi
fi
[ $failed = 0 ] || { echo "tests failed: no speeds"; exit 1; }
case $what in correct | sanitize) exit 0 ;; esac

need 35b-a3b "$model"
trace="--prompt 1 --skip 60"
if [ "${TRACES:-yes}" = yes ]; then
    "$programs/make_routing" tests/golden/data/routing.json 1 > "$work/trace" || exit 1
    trace="$trace --routing $work/trace"
fi
one="--sequences 1 --ctx 4096"
bench resident-trace --slots all $one $trace --decode 600
bench resident-512 --slots all $one --prompt 512 --decode 64 --repeat 3
bench resident-2048 --slots all $one --prompt 2048 --chunk 2048 --decode 16 --repeat 2
for card in rtx2070 rtx3090; do
    bench $card-trace --profile $card $trace --decode 600 --project $card
    bench $card-trace-ship --profile $card $trace --decode 600 --cpu-lane off
    bench $card-512 --profile $card --prompt 512 --decode 256 --cold --repeat 2
    bench $card-2048 --profile $card --prompt 2048 --decode 16 --repeat 2
done
# Many users: a trace for each, from the same stacks; slots are what states and pages leave.
for user in $(seq 16); do
    "$programs/make_routing" tests/golden/data/routing.json "$user" 600 1 > "$work/user-$user"
done
for card in rtx2070 rtx3090; do
    for users in 1 2 4 8 16; do
        bench $card-users-$users --profile $card --users $users --prompt 1 --skip 60 --decode 600 --routing "$work/user-{}"
    done
    bench $card-beside --profile $card --users 4 --prompt 128 --decode 2048 --beside 8192
done
bench cpu-lane-trace --slots 320 $one $trace --decode 200 --cpu-lane all
bench cpu-lane-512 --slots 320 $one --prompt 512 --decode 16 --repeat 2 --cpu-lane all

# More model than memory: 9,216 MiB of RAM, in a cgroup of 11.5 GiB where one can be made.  On a
# real disk ($DISK), since a file in /dev/shm is memory already.
within() { # run a command in the cgroup
    local group=/sys/fs/cgroup/siliceo-bench
    if mkdir -p $group 2> "$work/cgroup" && echo $((11776 << 20)) 2>> "$work/cgroup" > $group/memory.max &&
        echo 0 2>> "$work/cgroup" > $group/memory.swap.max; then
        limit=$(cat $group/memory.max)
        (echo $BASHPID > $group/cgroup.procs && exec "$@")
    else
        limit=null
        "$@"
    fi
}
ram_case() { # name, flags
    local name=$1 limit=null
    shift
    case $name in ${ONLY:-*}) ;; *) return ;; esac
    if within timeout 150 "$worker" bench --model "$disk" --seed 1 --json --profile rtx2070 --ram-mib "${RAM_MIB:-9216}" --speculate off "$@" --backend $backend \
        > "$work/o.json" 2> "$work/o.err"; then
        [ -f /sys/fs/cgroup/siliceo-bench/memory.max ] && limit=$(cat /sys/fs/cgroup/siliceo-bench/memory.max)
        peak=$(cat /sys/fs/cgroup/siliceo-bench/memory.peak 2> /dev/null || echo null)
        oom=$(awk '/^oom_kill / { print $2 }' /sys/fs/cgroup/siliceo-bench/memory.events 2> /dev/null)
        echo "{\"bench\": \"$name\", \"command\": \"siliceo-worker bench --backend cuda --seed 1 --json --profile rtx2070 --ram-mib 9216 $*\"," \
            "\"cgroup_memory_max\": $limit, \"cgroup_memory_peak\": ${peak:-null}, \"cgroup_oom_kills\": ${oom:-null}," \
            "\"file_system\": \"$(stat -f -c %T "$disk")\", \"result\": $(cat "$work/o.json")}" |
            sed "s#$programs/##g; s#$work/##g" | tee -a "$lines"
    else
        echo "{\"bench\": \"$name\", \"error\": \"$(tail -1 "$work/o.err" | tr -d '\"\\')\"}" | tee -a "$lines"
    fi
}
case ram-9216-trace in ${ONLY:-*}) ;; *) exit 0 ;; esac
disk=${DISK:-$PWD/siliceo-35b.gguf}
[ -f "$disk" ] || cp "$model" "$disk" || exit 1
sync "$disk"
ram_case ram-9216-trace $trace --decode 200
ram_case ram-9216-512 --prompt 512 --decode 64 --cold --repeat 2
