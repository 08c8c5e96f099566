#!/bin/sh
# install.sh - builds Siliceo and installs it on this machine.
#
#     sh deploy/install.sh [--packages] [--units] [PREFIX]
#
# --packages only installs the Debian or Ubuntu packages that the build needs.
# --units also installs the systemd units, the user siliceo they run as, and /etc/siliceo
# (nothing is enabled, started or overwritten there); deploy/tailscale.md goes on from there.
# PREFIX is /usr/local unless given; through sudo when the folder is not ours.
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
prefix=/usr/local only= units=no
for word in "$@"; do
    case $word in
        --packages) only=packages ;;
        --units) units=yes ;;
        --help | -h) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) echo "install.sh: unknown word '$word'; --help helps" >&2; exit 2 ;;
        *) prefix=$word ;;
    esac
done
ensure_packages build
[ -z "$only" ] || exit 0
make -j"$(nproc)" all
if [ -w "$prefix" ]; then make install PREFIX="$prefix"; else as_root make install PREFIX="$prefix"; fi
if [ "$units" = yes ]; then
    folder=${SILICEO_UNIT_FOLDER:-/etc/systemd/system} configuration=${SILICEO_ETC:-/etc/siliceo}
    [ -w / ] || [ -n "${SILICEO_UNIT_FOLDER:-}" ] || may_be_root || { echo "install.sh: --units needs root or sudo" >&2; exit 1; }
    root() { if [ -n "${SILICEO_UNIT_FOLDER:-}" ]; then "$@"; else as_root "$@"; fi; }
    if [ -z "${SILICEO_UNIT_FOLDER:-}" ] && ! id siliceo >/dev/null 2>&1; then
        root useradd --system --home-dir /var/lib/siliceo --shell /usr/sbin/nologin siliceo
    fi
    root install -d "$folder" "$configuration"
    for unit in coordinator worker; do
        made=$(mktemp)
        sed "s|/usr/local/|$prefix/|g" "deploy/systemd/siliceo-$unit.service" >"$made"
        root install -m 644 "$made" "$folder/siliceo-$unit.service"
        rm -f "$made"
        if [ ! -e "$configuration/$unit.conf" ]; then root install -m 644 /dev/null "$configuration/$unit.conf"; fi
    done
    [ -n "${SILICEO_UNIT_FOLDER:-}" ] || ! command -v systemctl >/dev/null || root systemctl daemon-reload || true
    echo "siliceo: units in $folder, settings in $configuration"
fi
echo "siliceo: installed below $prefix"
