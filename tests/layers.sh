#!/bin/sh
# layers.sh - no include points the wrong way: common knows nobody, kernels know common,
# worker knows kernels and common, coordinator knows common.
set -u
cd "$(dirname "$0")/.." || exit 2
passed=0 failed=0
allow() { # FOLDER ALLOWED|ALLOWED
    wrong=$(grep -rnE '^ *# *include +"' "$1" --include='*.[ch]' --include='*.cu' --include='*.cuh' |
        grep -vE "#\s*include +\"($2)/")
    if [ -n "$wrong" ]; then
        echo "$1 may include only from: $2"
        echo "$wrong"
        failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
}
allow common 'common'
allow kernels 'kernels|common'
allow worker 'worker|kernels|common'
allow coordinator 'coordinator|common'
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
