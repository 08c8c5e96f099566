#!/bin/sh
# install.sh - builds Siliceo and installs it on this machine.
#
#     sh deploy/install.sh [--packages] [PREFIX]
#
# --packages only installs the Debian or Ubuntu packages that the build needs.
# PREFIX is /usr/local unless given; through sudo when the folder is not ours.
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
prefix=/usr/local only=
for word in "$@"; do
    case $word in
        --packages) only=packages ;;
        --help | -h) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) echo "install.sh: unknown word '$word'; --help helps" >&2; exit 2 ;;
        *) prefix=$word ;;
    esac
done
ensure_packages build
[ -z "$only" ] || exit 0
make -j"$(nproc)" all
if [ -w "$prefix" ]; then make install PREFIX="$prefix"; else as_root make install PREFIX="$prefix"; fi
echo "siliceo: installed below $prefix"
