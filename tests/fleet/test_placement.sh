#!/bin/sh
# test_placement.sh - the promises about placement, in simulated time: no clock, no load of the
# machine changes the outcome, so that they can be asserted.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=${SILICEO_BUILD:-build}
if "$build/tests/benchmark/placement" --seeds 2 --requests 1000 2>/dev/null; then
    echo "1 passed, 0 failed"
else
    echo "FAILED  mean completion within 10 % of all-knowing greedy placement (20 % at 95 % load), ahead of plain policies"
    echo "0 passed, 1 failed"
    exit 1
fi
