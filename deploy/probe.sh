#!/bin/sh
# probe.sh - the fleet's status as a table, for a person, cron or a monitoring agent.
#
#     sh deploy/probe.sh [URL] [--json | --watch]     URL: $SILICEO_URL or http://127.0.0.1:8080
#
# --json prints what programs read, --watch the table again every two seconds.  A key, where
# the API wants one, comes from SILICEO_API_KEY and is seen by no other process.
# Needs sh, curl and awk.  Exit 0: every node is ready (or loads, or is being drained);
# 1: no node, or one that is suspect, down, quarantined, or whose engine is stalled; 2: the
# coordinator does not answer; 3: usage.
url=${SILICEO_URL:-http://127.0.0.1:8080} format=text watch=no named=no
usage() {
    echo "probe.sh: $1; usage: probe.sh [URL] [--json | --watch]" >&2
    exit 3
}
for word in "$@"; do
    case $word in
        --json) format=json ;;
        --watch) watch=yes ;;
        --help | -h) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) usage "unknown word '$word'" ;;
        http://* | https://*)
            [ "$named" = no ] || usage "two addresses"
            named=yes url=${word%/}
            ;;
        *) usage "'$word' is no http:// or https:// address" ;;
    esac
done
if [ "$watch" = yes ] && [ "$format" = json ]; then usage '--json and --watch do not go together'; fi
case ${SILICEO_API_KEY:-} in *[!A-Za-z0-9_.~+/=-]*) usage 'SILICEO_API_KEY holds what no key holds' ;; esac

# ask FORMAT: the reply on stdout; curl takes the key from its standard input.
ask() {
    if [ -n "${SILICEO_API_KEY:-}" ]; then
        printf 'header = "Authorization: Bearer %s"\n' "$SILICEO_API_KEY"
    fi | curl -sS --fail --max-time 5 --config - "$url/status?format=$1"
}
# judge: reads the table; the columns are NODE STATE ENGINE ...
judge() {
    awk 'NR > 1 && $1 != "queue" { n++; if ($2 ~ /^(suspect|down|quarantined)$/ || $3 == "stalled") bad = 1 }
         END { exit bad || n == 0 }'
}
look() {
    table=$(ask text) || return 2
    if [ "$format" = json ]; then ask json || return 2; else printf '%s\n' "$table"; fi
    printf '%s\n' "$table" | judge
}
if [ "$watch" = no ]; then
    look
    exit
fi
trap 'exit 0' INT TERM
while :; do
    shown=$(look 2>&1)
    printf '\033[H\033[2J%s\n%s\n' "$(date)  $url" "$shown"
    sleep 2
done
