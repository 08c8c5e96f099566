#!/bin/bash
# gpu.sh PROGRAMS OUT [correct|speed|sanitize|all] - what a machine with a GPU is asked to do.
#
# PROGRAMS has siliceo-worker, make_model, make_routing and tests/golden (a build folder, or a
# bundle with them); OUT gets gpu.jsonl, a line a case, which gpu_record.mjs turns into
# tests/benchmark/results.  The model is the preset 35b-a3b, made at $MODEL (21 GB; /dev/shm).
# Runs in the repository's root.  A speed is never taken of a build whose golden tests or logits
# failed.  sanitize: compute-sanitizer over short runs of the demo model, where it is installed.
set -u
shopt -s extglob
programs=$1 out=$2 what=${3:-all}
worker=$programs/siliceo-worker
model=${MODEL:-/dev/shm/siliceo-35b.gguf}
lines=$out/gpu.jsonl
export SILICEO_BUILD=$programs SILICEO_PROFILES=deploy/profiles
mkdir -p "$out"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
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
    sum=$("$worker" generate --model deploy/models/demo.gguf --backend cuda --ids 1,2,3,17,200,45 -n 512 --ignore-eog $2 |
        head -1 | md5sum | cut -c1-12)
    echo "{\"greedy512\": \"$1\", \"md5\": \"$sum\"}" | tee -a "$lines"
}

bench() { # name, flags; $ONLY, a pattern, picks cases
    local name=$1
    shift
    case $name in ${ONLY:-*}) ;; *) return ;; esac
    if timeout 150 "$worker" bench --model "$model" --backend cuda --seed 1 --json "$@" > "$work/o.json" 2> "$work/o.err"; then
        echo "{\"bench\": \"$name\", \"command\": \"siliceo-worker bench --backend cuda --seed 1 --json $*\", \"result\": $(cat "$work/o.json")}" |
            sed "s#$programs/##g; s#$work/##g" | tee -a "$lines"
    else
        echo "{\"bench\": \"$name\", \"error\": \"$(tail -1 "$work/o.err" | tr -d '\"\\')\"}" | tee -a "$lines"
    fi
}

if [ "$what" = correct ] || [ "$what" = all ]; then
    for t in test_cuda_backend test_models_golden test_demo_golden test_quant test_head_order test_company test_chunks; do
        [ -x "$programs/tests/golden/$t" ] && test_case "$t"
    done
    f32="--activations f32 --kv f32"
    compare f32-steps 75 max_diff 1e-4 "--backend cpu $f32" "--backend cuda $f32 --chunk 1"
    compare f32-prompt 75 max_diff 1e-4 "--backend cpu $f32" "--backend cuda $f32 --chunk 512"
    # Both quantize, each in its way, and these ids are no text: near ties of the router part them.
    compare int8-prompt 75 kl_mean 1 "--backend cpu" "--backend cuda --chunk 512"
    for chunk in 1 512; do # the CPU lane beside the GPU alone
        compare lane-$chunk 75 kl_mean 1e-3 "--backend cuda --slots 64 --chunk $chunk" \
            "--backend cuda --slots 64 --chunk $chunk --cpu-lane on"
    done
    greedy all "--slots all"
    greedy 64 "--slots 64"
    greedy 32 "--slots 32"
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

[ -f "$model" ] || "$programs/make_model" --params '{"preset":"35b-a3b"}' --out "$model" || exit 1
"$programs/make_routing" tests/golden/data/routing.json 1 > "$work/trace"
trace="--prompt 1 --skip 60 --routing $work/trace"
one="--sequences 1 --ctx 4096"
bench resident-trace --slots all $one $trace --decode 600
bench resident-512 --slots all $one --prompt 512 --decode 64 --repeat 3
bench resident-2048 --slots all $one --prompt 2048 --chunk 2048 --decode 16 --repeat 2
for card in rtx2070 rtx3090; do
    bench $card-trace --profile $card $trace --decode 600 --project $card
    bench $card-trace-ship --profile $card $trace --decode 600 --cpu-lane off
    bench $card-512 --profile $card --prompt 512 --decode 256 --cold --repeat 2
    bench $card-2048 --profile $card --prompt 2048 --chunk 2048 --decode 16 --repeat 2
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
    if within timeout 150 "$worker" bench --model "$disk" --backend cuda --seed 1 --json --profile rtx2070 --ram-mib 9216 "$@" \
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
