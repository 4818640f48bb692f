#!/bin/sh
# Holds a role and writes under its fencing token, with curl. It goes on when the
# cluster's leader fails. Usage: leader.sh ROLE WRITES
# Environment: NORTHSTAR_ENDPOINTS (host:port,…), NORTHSTAR_TOKEN, NORTHSTAR_CA.
# Exit codes: 0 done, 1 no answer in time, 3 the role is lost.
set -eu
role=$1
writes=$2
endpoints=$(printf '%s' "${NORTHSTAR_ENDPOINTS:-127.0.0.1:7701,127.0.0.1:7703,127.0.0.1:7705}" | tr ',' ' ')
scheme=http
[ -z "${NORTHSTAR_CA:-}" ] || scheme=https
ttl=10 # seconds

answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

fail() { # CODE TEXT
  echo "$2" >&2
  exit "$1"
}

# field NAME: a field of the last answer. Real programs use a JSON parser.
field() { sed -n 's/.*"'"$1"'": *"\{0,1\}\([^",}]*\).*/\1/p' "$answer" | head -n 1; }

# call METHOD PATH [curl options]: one request to any node that answers. A node
# that is gone, or that knows no leader yet, is followed by the next one. A write
# is safe to repeat: it carries an idempotency key.
call() {
  method=$1
  path=$2
  shift 2
  tries=0
  while [ "$tries" -lt 60 ]; do
    for endpoint in $endpoints; do
      status=$(curl -s -o "$answer" -w '%{http_code}' --connect-timeout 1 --max-time 20 \
        ${NORTHSTAR_CA:+--cacert "$NORTHSTAR_CA"} ${NORTHSTAR_TOKEN:+-H "Authorization: Bearer $NORTHSTAR_TOKEN"} \
        -X "$method" "$@" "$scheme://$endpoint$path") || status=000
      case $status in
      2*) return 0 ;;
      000 | 429 | 502 | 503 | 504) ;; # try the next node
      *) return 1 ;;
      esac
    done
    tries=$((tries + 1))
    sleep 0.2
  done
  fail 1 'no node answers'
}

call GET /leader
echo "leader $(field leader_id) at $(field leader_address)"

call POST /v1/sessions -d "{\"name\":\"curl-$$\",\"ttl_ms\":${ttl}000}" || fail 1 "$(cat "$answer")"
session=$(field session_id)

# renew notes when the last renewal that was answered was sent.
renew() {
  sent=$(date +%s)
  call POST "/v1/sessions/$session/renew" || fail 3 'the session has ended'
  renewed=$sent
}

# A session must not end while it waits for the role.
until call POST "/v1/roles/$role/campaign" -d "{\"session_id\":\"$session\",\"value\":\"curl\",\"wait_ms\":3000}"; do
  [ "$(field code)" = 4013 ] || fail 3 "$(cat "$answer")" # 4013: another session holds it
  renew
done
token=$(field token)
renew
echo "role $role token $token"

i=1
while [ "$i" -le "$writes" ]; do
  [ $(($(date +%s) - renewed)) -lt $((ttl / 3)) ] || renew
  # The holder's own deadline ends before the cluster gives the role away. The
  # fencing token protects even a holder that was stopped after this line.
  [ $(($(date +%s) - renewed)) -lt $((ttl * 9 / 10)) ] || fail 3 'too late to act'
  call PUT "/v1/kv/examples/$role/$i" -d "$i" -H "X-Northstar-Fence: $role=$token" \
    -H "Idempotency-Key: $session-$i" || fail 3 "$(cat "$answer")"
  echo "write $i revision $(field revision)"
  sleep 0.05
  i=$((i + 1))
done

call DELETE "/v1/roles/$role?session_id=$session" || fail 3 "$(cat "$answer")"
call DELETE "/v1/sessions/$session" || true
echo resigned
