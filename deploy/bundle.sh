#!/bin/sh
# bundle.sh BUILD - a folder with the programs and every shared library they need beside them,
# and a tar of it: what a machine needs that has only a kernel, a C library and a driver.
#
# The programs look in lib/ beside themselves (rpath $ORIGIN/lib).  The C library is the
# machine's own: built on Debian 12, it runs on every distribution of the same age or younger.
set -eu
build=${1:-build}
out=$build/bundle/siliceo
rm -rf "$build/bundle"
mkdir -p "$out/lib" "$out/profiles"
for program in siliceo-coordinator siliceo-worker make_model; do
    install -m 755 "$build/$program" "$out/$program"
    strip "$out/$program"
done
install -m 644 deploy/profiles/*.conf "$out/profiles/"
for program in "$out"/siliceo-* "$out/make_model"; do
    ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
done | sort -u | while read -r library; do
    case $library in
    */libc.so.* | */libm.so.* | */libpthread.so.* | */libdl.so.* | */librt.so.* | */libresolv.so.* | */ld-linux*) ;;
    *) cp -L "$library" "$out/lib/" ;;
    esac
done
tar -C "$build/bundle" -czf "$build/bundle/siliceo.tar.gz" siliceo
echo "$out"
du -sh "$out" "$build/bundle/siliceo.tar.gz"
