#!/bin/sh
# probe.sh - the fleet's status as a table, for a person, cron or a monitoring agent.
#
#     sh deploy/probe.sh [URL]        (default: $SILICEO_URL or http://127.0.0.1:8080)
#
# Exit 0 when at least one node is ready, 1 when none is, 2 when the coordinator does not answer.
url=${1:-${SILICEO_URL:-http://127.0.0.1:8080}}
curl -sS --max-time 5 "$url/status?format=text" || exit 2
[ "$(curl -s -o /dev/null -w '%{http_code}' --max-time 5 "$url/readyz")" = 200 ]
