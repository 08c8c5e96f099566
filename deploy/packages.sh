# packages.sh - which Debian or Ubuntu packages Siliceo needs, and their installation.
#
# Sourced by demo.sh, test.sh and install.sh:
#     ensure_packages build         what compiling and running needs
#     ensure_packages build test    and what the tests and static checks need
# Installs what is missing with apt-get, through sudo when not root.  Where that
# cannot be done it says so in one line with the list and returns 1.

# Names differ between releases: a|b is the first that apt knows, and the last one,
# which all of Debian 12, 13 and Ubuntu 24.04 have, where apt knows nothing yet.
build_packages='gcc make pkg-config libc6-dev libzmq3-dev libmsgpack-c-dev|libmsgpack-dev libcjson-dev
libmicrohttpd-dev libsodium-dev libutf8proc-dev libxxhash-dev libinih-dev libsqlite3-dev
libcurl4-openssl-dev libsystemd-dev libgnutls28-dev libpq-dev curl jq'
# The client tests run with Node 18 (Debian 12, Ubuntu 24.04) and later; the format check
# needs clang-format 14, which Debian 13 does not have.
test_packages='g++ libcmocka-dev clang clang-format-14|clang-format clang-tidy clang-tools cppcheck
libclang-rt-dev nodejs npm ca-certificates git postgresql openssl python3 iproute2 nftables'
# Tests that want these are skipped by name without them (Ubuntu's chromium is a snap).
wanted_packages='chromium wrk'

is_installed() {
    dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed
}

# missing WORD...: of each alternative list a|b nothing when one is installed, else the
# first that apt can install.
missing() {
    for word in "$@"; do
        found= candidate=
        for name in $(echo "$word" | tr '|' ' '); do
            if is_installed "$name"; then found=$name; break; fi
            if [ -z "$candidate" ] && apt-cache show "$name" 2>/dev/null | grep -q .; then candidate=$name; fi
        done
        # node and npm may be there without being Debian's packages.
        case $word in nodejs) command -v node >/dev/null && found=node ;; npm) command -v npm >/dev/null && found=npm ;; esac
        [ -n "$found" ] || echo "${candidate:-${word##*|}}"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Root, a sudo that asks nothing, or one that may ask at this terminal.
may_be_root() {
    [ "$(id -u)" = 0 ] && return 0
    command -v sudo >/dev/null 2>&1 || return 1
    sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }
}

ensure_packages() {
    wanted=
    for set_name in "$@"; do
        case $set_name in build) wanted="$wanted $build_packages" ;; test) wanted="$wanted $test_packages" ;; esac
    done
    command -v dpkg-query >/dev/null 2>&1 || {
        echo "siliceo: this is no Debian or Ubuntu; install what matches:" $wanted >&2
        return 0 # the build says what is really missing
    }
    needed=$(missing $wanted)
    [ -n "$needed" ] || return 0
    if ! may_be_root; then
        echo "siliceo: cannot install packages without root or sudo; please run as root: apt-get install" $needed >&2
        return 1
    fi
    echo "siliceo: installing" $needed
    log=$(mktemp)
    # The lists may be empty or old: names are looked up again after the update.
    if as_root apt-get -o DPkg::Lock::Timeout=300 update >"$log" 2>&1 &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 \
            install -y --no-install-recommends $(missing $wanted) >>"$log" 2>&1; then
        rm -f "$log"
        return 0
    fi
    tail -n 5 "$log" >&2
    rm -f "$log"
    echo "siliceo: apt-get failed; please run as root: apt-get update && apt-get install" $needed >&2
    return 1
}

# install_wanted: what is nice to have, without which tests are skipped; never fails.
install_wanted() {
    command -v apt-get >/dev/null 2>&1 || return 0
    absent=
    for name in $wanted_packages; do
        is_installed "$name" || command -v "$name" >/dev/null || { apt-cache show "$name" 2>/dev/null | grep -q . && absent="$absent $name"; }
    done
    [ -n "$absent" ] && may_be_root || return 0
    echo "siliceo: installing$absent"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $absent >/dev/null 2>&1 ||
        echo "siliceo: apt-get install$absent failed; the tests that want them are skipped" >&2
}

# borrow_programs: nginx, haproxy and promtool for the tests.  Their packages would start
# servers on this machine, so they are unpacked into build/tools instead of installed; a test
# whose program is missing is skipped by name.
borrow_programs() {
    command -v apt-get >/dev/null 2>&1 || return 0
    borrowed=
    command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || borrowed="$borrowed nginx"
    command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || borrowed="$borrowed haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1"
    command -v promtool >/dev/null || borrowed="$borrowed prometheus"
    [ -n "$borrowed" ] && [ ! -e build/tools/complete ] || return 0
    mkdir -p build/tools || return 0
    for name in $borrowed; do
        (cd build/tools && apt-get download "$name" >/dev/null 2>&1) || echo "siliceo: apt-get download $name failed; its tests are skipped" >&2
    done
    for file in build/tools/*.deb; do
        [ ! -f "$file" ] || dpkg-deb -x "$file" build/tools || return 0
    done
    rm -f build/tools/*.deb
    : >build/tools/complete
}

# build_locked COMMAND...: one build at a time in a clone, however many copies run.
build_locked() {
    mkdir -p build || return 1
    (
        flock -n 9 || { echo "siliceo: waiting for another build in this clone" >&2; flock 9; }
        "$@" 9>&-
    ) 9>build/.lock
}
