#!/bin/sh
# test_cuda_resources.sh - every CUDA kernel fits Turing: reads what ptxas says of sm_75.
#
#     sh tests/kernels/test_cuda_resources.sh
#
# Static shared memory at most 64 KB (what a launch adds is bounded by the tests that run the
# kernels on the CPU), registers for at least one block, and nothing spilled to local memory.
# Where there is no nvcc there is nothing to read, and the test says so.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=${SILICEO_BUILD:-build}
case $build in # as CUDA_OUT in the Makefile
    build | build/* | build-*) out=build/cuda ;;
    *) out=$build/cuda ;;
esac
report=$out/sm_75.txt
if ! command -v nvcc >/dev/null 2>&1 && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "no nvcc: this build has no CUDA kernels, nothing to check"
    echo "1 passed, 0 failed"
    exit 0
fi
[ -s "$report" ] || make BUILD="$build" "$out/sm_75.cubin" || exit 1

awk '
    /Function properties for/ { name = $NF }
    /spill stores/ {
        stores = $0; sub(/ bytes spill stores.*/, "", stores); sub(/.*, /, "", stores)
        loads = $0; sub(/ bytes spill loads.*/, "", loads); sub(/.*, /, "", loads)
        if (stores + loads > 0) { print name ": spills " stores " bytes"; bad[name] = 1 }
        seen[name] = 1
    }
    /Used [0-9]+ registers/ {
        smem = 0
        if (match($0, /[0-9]+ bytes smem/)) smem = substr($0, RSTART) + 0
        if (smem > 65536) { print name ": " smem " bytes of shared memory"; bad[name] = 1 }
    }
    END {
        for (n in seen) if (n in bad) failed++; else passed++
        if (passed + failed < 20) { print "only " passed + failed " kernels in the report"; failed++ }
        print passed + 0 " passed, " failed + 0 " failed"
        exit failed > 0
    }' "$report"
