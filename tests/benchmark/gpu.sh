#!/bin/bash
# gpu.sh PROGRAMS OUT [WHAT...] - what a machine with a GPU is asked to do.
#
# PROGRAMS has siliceo-worker, make_model, make_routing and tests/golden (a build folder, or a
# bundle with them); OUT gets gpu.jsonl, a line a case with the seconds since the start, which
# gpu_record.mjs turns into tests/benchmark/results.  The model is the preset 35b-a3b, made at
# $MODEL (21 GB; /dev/shm).  Runs in the repository's root.
# WHAT, in the order given; without it correct, sanitize, speed and ram:
#   correct   golden tests and what prompts have in common, logits and greedy ids beside the CPU's
#   equal     greedy ids of the 35B with $EQUAL_SLOTS, without graphs, and above a disk
#   sanitize  compute-sanitizer over short runs of the demo model, where it is installed
#   speed     the 35B resident and in the slots of two cards, and its CPU lane
#   ram       9,216 MiB of RAM for all of it, the file on a real disk ($DISK)
#   dense     preset 9b at $DENSE in 7,782 MiB with 32k tokens of KV8, at several depths
#   draft     preset 0.8b at $DRAFT beside both, with so many of its layers on the GPU as $LAYERS say
#   batch     $USERS users, each with a trace of its own, and a long prompt beside four
#   context   types of KV pages at depth
#   prefix    a chat of eight turns through the API
#   profile   bus and kernels while prompts run (after loading, from empty slots, again), where CUPTI is
# No speed is taken of a build whose golden tests or logits failed before it.  Cases that would begin
# after $DEADLINE_S seconds are left out, and said to be.  A dry run without a GPU: BACKEND=cpu,
# small models, TRACES=no, SILICEO_PROFILES with profiles that fit them.
set -u
shopt -s extglob
programs=$1 out=$2
shift 2
worker=$programs/siliceo-worker
model=${MODEL:-/dev/shm/siliceo-35b.gguf}
lines=$out/gpu.jsonl
export SILICEO_BUILD=$programs SILICEO_PROFILES=${SILICEO_PROFILES:-deploy/profiles}
backend=${BACKEND:-cuda} limit_s=${LIMIT_S:-150}
dense=${DENSE:-/dev/shm/siliceo-9b.gguf} draft=${DRAFT:-/dev/shm/siliceo-0.8b.gguf}
mkdir -p "$out"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
say() { # an object: a line of the results
    echo "{\"at_s\": $SECONDS, ${1#\{}" | tee -a "$lines"
}
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null | head -1)
cpu=$(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo)
: > "$lines"
say "{\"machine\": \"$card; $cpu, $(nproc) cores\", \"commit\": \"${COMMIT:-unknown}\"}"
failed=0

test_case() { # a test on the GPU
    SILICEO_TEST_BACKEND=cuda timeout 120 "$programs"/tests/*/"$1" > "$work/test.log" 2>&1
    local rc=$?
    [ $rc = 0 ] || { failed=1; grep -E 'ERROR|FAILED' "$work/test.log"; }
    say "{\"test\": \"$1\", \"passed\": $(grep -c '\[       OK' "$work/test.log"), \"rc\": $rc}"
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
        say "{\"logits\": \"$1\", \"limit\": {\"$3\": $4}, \"passed\": 1, \"figures\": $figures}"
    else
        failed=1
        say "{\"logits\": \"$1\", \"limit\": {\"$3\": $4}, \"passed\": 0, \"figures\": ${figures:-null}}"
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
    say "{\"sanitizer\": \"$tool\", \"case\": \"$name\", \"summary\": \"$summary\"}"
}

greedy() { # name, flags, model: md5 of 512 greedy ids
    local sum
    sum=$("$worker" generate --model "${3:-deploy/models/demo.gguf}" --backend $backend --speculate off --ids 1,2,3,17,200,45 -n 512 --ignore-eog $2 |
        head -1 | md5sum | cut -c1-12)
    say "{\"greedy512\": \"$1\", \"md5\": \"$sum\"}"
}

left_out() { # name: not asked for by $ONLY, a pattern, or too late
    case $1 in ${ONLY:-*}) ;; *) return 0 ;; esac
    [ "$SECONDS" -ge "${DEADLINE_S:-86400}" ] || return 1
    say "{\"bench\": \"$1\", \"error\": \"left out, after $DEADLINE_S seconds\"}"
}
plan_said() { # name: the plan that the bench printed
    local text
    text=$(grep -v '^siliceo-worker' "$work/o.err" | tr -d '"\\\r' | sed 's/$/\\n/' | tr -d '\n')
    [ -z "$text" ] || say "{\"plan\": \"$1\", \"text\": \"$text\"}"
}
bench_each() { # names, model, flags: as many lines of figures as names
    local names=$1 file=$2 name command
    shift 2
    left_out "${names%% *}" && return
    timeout "$limit_s" "$worker" bench --model "$file" --seed 1 --json "$@" --backend $backend > "$work/o.json" 2> "$work/o.err" ||
        say "{\"bench\": \"${names%% *}\", \"error\": \"$(tail -1 "$work/o.err" | tr -d '\"\\')\"}"
    command=$(echo "siliceo-worker bench --backend $backend --seed 1 --json $*" | sed "s#$programs/##g; s#$work/##g")
    plan_said "${names%% *}"
    for name in $names; do
        read -r figures || break
        say "{\"bench\": \"$name\", \"command\": \"$command\", \"result\": $figures}"
    done < "$work/o.json"
}
bench() { # name, flags: of the 35B, nothing guessed ahead
    local name=$1
    shift
    bench_each "$name" "$model" --speculate off "$@"
}
need() { # preset, file
    [ -f "$2" ] || "$programs/make_model" --params "{\"preset\":\"$1\"}" --out "$2" || exit 1
}
run_dense() { # decode behind each depth, cold prompts, and the last tenth of each alone
    local card="--vram-mib 7782 --ctx 32768 --sequences 1 --kv q8 --speculate off --decode 64"
    need 9b "$dense"
    bench_each "dense-1 dense-more-1 dense-256 dense-held-256 dense-more-256 dense-1800 dense-held-1800 dense-more-1800" "$dense" $card \
        --prompts 1,513,256,230,768,1800,1620,2312 --repeat 3
    bench_each "dense-8192 dense-held-8192 dense-more-8192" "$dense" $card --prompts 8192,7372,8704
    bench_each "dense-31000 dense-held-31000 dense-more-31000" "$dense" $card --prompts 31000,27900,31512
}
run_draft() { # whole on the GPU, in part, and on the CPU
    local dense_card="--vram-mib 7782 --ctx 8192 --sequences 1 --kv q8" draft_flags
    need 9b "$dense"
    need 0.8b "$draft"
    need 35b-a3b "$model"
    for layers in ${LAYERS:-24 12 0}; do
        draft_flags="--speculate draft --draft $draft --draft-gpu-layers $layers --prompt 256 --decode 256"
        bench_each "9b-draft-$layers" "$dense" $dense_card $draft_flags
        bench_each "35b-draft-$layers" "$model" --profile rtx2070-draft $draft_flags
    done
    bench_each 9b-alone "$dense" $dense_card --speculate off --prompt 256 --decode 256
    bench_each 35b-alone "$model" --profile rtx2070-draft --speculate off --prompt 256 --decode 256
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
            bench "batch-$card-$users" --profile $card --slots auto --ctx 4096 --users "$users" --prompt 1 --skip 60 --decode "${DECODE:-140}" $routing
        done
        bench "batch-$card-beside" --profile $card --slots auto --ctx 16384 --users 4 --prompt 128 --decode "${BESIDE_DECODE:-400}" --beside "${BESIDE:-8192}"
    done
}
run_context() {
    need 35b-a3b "$model"
    for kv in f16 q8 q4; do
        bench "context-$kv-1 context-$kv-8192 context-$kv-31616" --profile rtx2070 --slots auto --ctx 32768 --kv $kv \
            --prompts "${CONTEXTS:-1,8192,31616}" --decode 64
    done
}
run_prefix() {
    local file=${PREFIX_MODEL:-deploy/models/demo.gguf}
    if python3 tests/benchmark/gpu_prefix.py "$programs" "$file" $backend ${PREFIX_FLAGS:---ctx 8192} > "$work/o.json" 2> "$work/o.err"; then
        say "{\"prefix\": \"$(basename "$file" .gguf)\", \"result\": $(cat "$work/o.json")}"
    else
        say "{\"prefix\": \"$(basename "$file" .gguf)\", \"error\": \"$(tail -1 "$work/o.err" | tr -d '\"\\')\"}"
    fi
}
run_profile() {
    local header library name profile
    need 35b-a3b "$model"
    header=$(find -L /usr/local/cuda/ -name cupti.h 2> "$work/find" | head -1)
    library=$(find -L /usr/local/cuda/ -name 'libcupti.so*' 2> "$work/find" | head -1)
    if ! gcc -shared -fPIC -I"$(dirname "$header")" -I/usr/local/cuda/include tests/benchmark/timeline/timeline.c -o "$work/timeline.so" \
        "$library" -Wl,-rpath,"$(dirname "$library")" 2> "$work/o.err"; then
        say "{\"profile\": \"none\", \"error\": \"$(head -1 "$work/o.err" | tr -d '\"\\')\"}"
        return
    fi
    for card in rtx2070 rtx3090; do
        name=$card-512
        CUDA_INJECTION64_PATH=$work/timeline.so TIMELINE=$work/timeline.csv timeout "$limit_s" "$worker" bench --model "$model" --seed 1 \
            --json --backend $backend --speculate off --profile $card --prompt 512 --decode 2 --cold --repeat 1 > "$work/o.json" 2> "$work/o.err"
        if profile=$(python3 tests/benchmark/timeline/timeline.py "$work/timeline.csv" 2>> "$work/o.err"); then
            say "{\"profile\": \"$name\", \"result\": $profile}"
        else
            say "{\"profile\": \"$name\", \"error\": \"$(sed -n '1p;$p' "$work/o.err" | tr -d '\"\\' | tr '\n' ' ')\"}"
        fi
        rm -f "$work/timeline.csv"
    done
}
run_correct() {
    for t in test_cuda_backend test_verify_rows test_models_golden test_demo_golden test_quant test_head_order test_company test_chunks test_kv_types test_cuda_draft test_cuda_lane test_cuda_mtp test_cuda_warm test_prefix_engine test_prefix_ahead; do
        [ -x "$(echo "$programs"/tests/*/"$t")" ] && test_case "$t"
    done
    f32="--activations f32 --kv f32"
    compare f32-steps 75 max_diff 1e-4 "--backend cpu $f32" "--backend $backend $f32 --chunk 1"
    compare f32-prompt 75 max_diff 1e-4 "--backend cpu $f32" "--backend $backend $f32 --chunk 512"
    # Both quantize, each in its way, and these ids are no text: near ties of the router part them.
    compare int8-prompt 75 kl_mean 1 "--backend cpu" "--backend $backend --chunk 512"
    for case in "on 64 1" "all 64 1" "prompts 64 512" "on 64 512" "all 32 1" "on 32 512"; do # no bit tells of the CPU lane
        set -- $case
        lane=$1 slots=$2 chunk=$3
        compare "lane-$lane-$slots-$chunk" 75 max_diff 0 "--backend $backend --slots $slots --chunk $chunk" \
            "--backend $backend --slots $slots --chunk $chunk --cpu-lane $lane"
    done
    greedy all "--slots all"
    greedy all-graphs-off "--slots all --no-graphs"
    greedy 64 "--slots 64"
    greedy 64-graphs-off "--slots 64 --no-graphs"
    greedy 32 "--slots 32"
    greedy 64-disk "--slots 64 --ram-mib ${DISK_RAM_MIB:-600}"
    greedy 64-lane "--slots 64 --cpu-lane on"
    greedy 64-lane-all "--slots 64 --cpu-lane all"
}
run_equal() {
    local one="--sequences 1 --ctx 1024 --cpu-lane off" slots last
    need 35b-a3b "$model"
    for slots in ${EQUAL_SLOTS:-320 2750 all}; do
        greedy "35b-$slots" "--slots $slots $one" "$model"
        last=${last:-$slots}
    done
    greedy "35b-$last-graphs-off" "--slots $last $one --no-graphs" "$model"
    greedy "35b-$last-disk" "--slots $last $one --ram-mib ${EQUAL_RAM_MIB:-9216}" "$model"
}
run_sanitize() {
    if command -v compute-sanitizer > "$work/where"; then
        for tool in memcheck racecheck; do
            sanitize $tool resident
            sanitize $tool slots --slots 64 --cpu-lane off
        done
    else
        say '{"sanitizer": "none", "case": "compute-sanitizer is not installed here"}'
    fi
}
single_trace() { # sets trace: flags that replay one
    need 35b-a3b "$model"
    trace="--prompt 1 --skip 60"
    [ "${TRACES:-yes}" = yes ] || return
    "$programs/make_routing" tests/golden/data/routing.json 1 > "$work/trace" || exit 1
    trace="$trace --routing $work/trace"
    # Every depth as likely as any other: routing without locality.
    echo "{\"draw_256_top8\":{\"weight\":[1$(printf ',1%.0s' $(seq 255))]}}" > "$work/law.json"
    "$programs/make_routing" "$work/law.json" 1 > "$work/uniform" || exit 1
}
run_speed() {
    local one="--sequences 1 --ctx 4096"
    single_trace
    bench resident-trace --slots all $one $trace --decode 600
    bench resident-512 --slots all $one --prompt 512 --decode 64 --repeat 3
    bench resident-2048 --slots all $one --prompt 2048 --chunk 2048 --decode 16 --repeat 2
    for card in rtx2070 rtx3090; do
        bench $card-trace --profile $card $trace --decode 600 --project $card
        [ $card = rtx3090 ] || bench $card-trace-ship --profile $card $trace --decode 600 --cpu-lane off
        bench $card-uniform --profile $card ${trace/"$work/trace"/"$work/uniform"} --decode 300
        bench $card-512 --profile $card --prompt 512 --decode 256 --cold --repeat 2
        bench $card-2048 --profile $card --prompt 2048 --decode 16 --repeat 2
        # A start that knows which experts an earlier one used, for another prompt than they were.
        rm -rf "$work/experts"
        bench $card-learn --profile $card --prompt 512 --decode 64 --experts-dir "$work/experts"
        bench $card-restarted --profile $card --prompt 512 --decode 64 --cold --seed 2 --experts-dir "$work/experts"
    done
    bench cpu-lane-trace --slots 320 $one $trace --decode 200 --cpu-lane all
    bench cpu-lane-512 --slots 320 $one --prompt 512 --decode 16 --repeat 2 --cpu-lane all
}

# More model than memory: 9,216 MiB of RAM, in a cgroup of 11.5 GiB where one can be made.  On a
# real disk, since a file in /dev/shm is memory already.
group=/sys/fs/cgroup/siliceo-bench
within() { # run a command in the cgroup
    if mkdir -p $group 2> "$work/cgroup" && echo $((11776 << 20)) 2>> "$work/cgroup" > $group/memory.max &&
        echo 0 2>> "$work/cgroup" > $group/memory.swap.max; then
        (echo $BASHPID > $group/cgroup.procs && exec "$@")
    else
        "$@"
    fi
}
ram_case() { # name, flags
    local name=$1 limit peak oom command
    shift
    left_out "$name" && return
    command="bench --seed 1 --json --profile rtx2070 --ram-mib ${RAM_MIB:-9216} --speculate off $* --backend $backend"
    if ! within timeout "$limit_s" "$worker" $command --model "$disk" > "$work/o.json" 2> "$work/o.err"; then
        say "{\"bench\": \"$name\", \"error\": \"$(tail -1 "$work/o.err" | tr -d '\"\\')\"}"
        return
    fi
    limit=$(cat $group/memory.max 2> "$work/cgroup") peak=$(cat $group/memory.peak 2> "$work/cgroup")
    oom=$(awk '/^oom_kill / { print $2 }' $group/memory.events 2> "$work/cgroup")
    plan_said "$name"
    say "{\"bench\": \"$name\", \"command\": \"siliceo-worker $(echo "$command" | sed "s#$work/##g")\",\
 \"cgroup_memory_max\": ${limit:-null}, \"cgroup_memory_peak\": ${peak:-null}, \"cgroup_oom_kills\": ${oom:-null},\
 \"file_system\": \"$(stat -f -c %T "$disk")\", \"result\": $(cat "$work/o.json")}"
}
run_ram() {
    single_trace
    ram_case ram-9216-trace $trace --decode 200
    ram_case ram-9216-512 --prompt 512 --decode 64 --cold --repeat 2
}

# Models are made, and the one for the disk written, while what is no speed runs.
disk=${DISK:-$PWD/siliceo-35b.gguf}
prepare() {
    case " $* " in *' equal '* | *' speed '* | *' ram '* | *' draft '* | *' batch '* | *' context '* | *' profile '*) need 35b-a3b "$model" ;; esac
    case " $* " in *' dense '* | *' draft '*) need 9b "$dense" ;; esac
    case " $* " in *' draft '*) need 0.8b "$draft" ;; esac
    case " $* " in *' ram '*) [ -f "$disk" ] || cp "$model" "$disk" && sync "$disk" ;; esac
}
[ $# -gt 0 ] || set -- correct sanitize speed ram
prepare "$@" &
preparing=$!
for part in "$@"; do
    case $part in
        correct | sanitize) run_"$part" ;;
        equal) wait $preparing && run_equal ;;
        speed | ram | dense | draft | batch | context | prefix | profile)
            [ $failed = 0 ] || { echo "tests failed: no speeds"; exit 1; }
            wait $preparing
            run_"$part"
            ;;
        *) echo "gpu.sh: $part is none of its parts"; exit 2 ;;
    esac
done
wait $preparing
exit $failed
