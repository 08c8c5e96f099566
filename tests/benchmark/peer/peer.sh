#!/bin/sh
# peer.sh - fetches llama.cpp v0.5.0 (npm: node-llama-cpp and its linux-x64 libraries,
# 3.22.1) and builds llama_peer and llama_batch in BUILD/peer.  For comparison only.
#
#     sh tests/benchmark/peer/peer.sh BUILD       prints the folder of the libraries
set -eu
cd "$(dirname "$0")/../../.."
build=$(mkdir -p "$1/peer" && cd "$1/peer" && pwd)
version=3.22.1
libraries=$build/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64
if [ ! -d "$build/headers/include" ] || [ ! -d "$libraries" ]; then
    (
        cd "$build"
        [ -f package.json ] || echo '{"private": true}' >package.json
        npm install --no-audit --no-fund --loglevel=error "@node-llama-cpp/linux-x64@$version" >&2
        npm pack --loglevel=error "node-llama-cpp@$version" >/dev/null
        tar xzf "node-llama-cpp-$version.tgz" package/llama/gitRelease.bundle
        [ -d headers ] || git clone -q --no-checkout package/llama/gitRelease.bundle headers 2>/dev/null
        git -C headers checkout -q HEAD -- include ggml/include
    )
fi
for program in llama_peer llama_batch; do
    newest=$(ls -t "tests/benchmark/peer/$program.c" tests/benchmark/peer/llama_start.h | head -n 1)
    [ ! -x "$build/$program" ] || [ "$newest" -nt "$build/$program" ] || continue
    cc -O2 -o "$build/$program" "tests/benchmark/peer/$program.c" \
        -I"$build/headers/include" -I"$build/headers/ggml/include" \
        -L"$libraries" -l:libllama.v0.5.0.so -l:libggml.v0.5.0.so -l:libggml-base.so \
        -Wl,-rpath,"$libraries" -lm >&2
done
echo "$libraries"
