#!/usr/bin/env bash
# Makes the fixtures of this directory: make.sh BIN OUT, with northstar-node and
# northstarctl of the build in BIN.
set -eu
bin=${1:?directory of the binaries}; out=${2:?directory for the result}
work=$(mktemp -d); mkdir -p "$out"
trap 'kill -9 $(jobs -p) 2>/dev/null' EXIT
initial=n1=127.0.0.1:27701@127.0.0.1:27801,n2=127.0.0.1:27702@127.0.0.1:27802,n3=127.0.0.1:27703@127.0.0.1:27803,n4=127.0.0.1:27704@127.0.0.1:27804
declare -A pid
run() {
	"$bin/northstar-node" run --id "n$1" --data-dir "$work/n$1" --raft-addr "127.0.0.1:2770$1" --http-addr "127.0.0.1:2780$1" \
		--initial-cluster "$initial" --election-timeout-min 1s --election-timeout-max 2s --disk-reserve 1MiB \
		--snapshot-threshold 20 --snapshot-interval 2s --snapshot-trailing-logs 1000 >>"$work/n$1.log" 2>&1 &
	pid[$1]=$!
}
endpoints=127.0.0.1:27801,127.0.0.1:27802
ctl() { "$bin/northstarctl" --endpoints "$endpoints" "$@"; }
post() { curl -m 40 -sSf -X "$1" "http://127.0.0.1:27801$2" -d "$3"; echo; }
until_ok() { for _ in $(seq 100); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.2; done; echo "failed: $*" >&2; exit 1; }
for i in 1 2 3 4; do run $i; done
until_ok "$bin/northstarctl" --endpoints "$endpoints" kv put old/before-recovery 1
kill -9 ${pid[3]} ${pid[4]}; wait ${pid[3]} ${pid[4]} || true
id=$(curl -m 10 -s http://127.0.0.1:27801/status | sed 's/.*"cluster_id":"\([0-9a-f]*\)".*/\1/')
until_ok "$bin/northstarctl" --endpoints "$endpoints" recover --survivors n1,n2 --confirm "$id" --yes --reason "two of four are lost"
until_ok "$bin/northstarctl" --endpoints "$endpoints" kv put old/after-recovery 2
voters() { test "$(curl -m 10 -s http://127.0.0.1:27801/v1/cluster | grep -o '"suffrage":"voter"' | wc -l)" = 2; }
until_ok voters
for i in 3 4; do until_ok "$bin/northstarctl" --endpoints "$endpoints" members remove n$i --reason "lost" --yes; done
for i in $(seq 30); do ctl kv put "old/key-$i" "value $i" >/dev/null; done
ctl kv del old/key-30 >/dev/null
snapshot() { ls "$work"/n1/snapshots/*/state.bin; }
until_ok snapshot
session=$(post POST /v1/sessions '{"name":"worker-1","ttl_ms":3600000,"meta":{"rack":"a1"}}' | sed 's/.*"session_id":"\([^"]*\)".*/\1/')
other=$(post POST /v1/sessions '{"name":"worker-2","ttl_ms":3600000}' | sed 's/.*"session_id":"\([^"]*\)".*/\1/')
post POST /v1/roles/scheduler/campaign "{\"session_id\":\"$session\",\"value\":\"10.0.0.1:9000\",\"wait_ms\":30000}"
curl -m 10 -s -X POST http://127.0.0.1:27801/v1/roles/scheduler/campaign -d "{\"session_id\":\"$other\",\"value\":\"10.0.0.2:9000\",\"wait_ms\":0}"; echo
post PUT "/v1/kv/old/ephemeral?ttl_session=$session" here
post PUT /v1/nodes/app-1 "{\"session_id\":\"$session\",\"hostname\":\"app-1.example\",\"address\":\"10.0.0.1\",\"http_port\":9000,\"roles\":[\"worker\"],\"version\":\"1.2.3\"}"
curl -m 10 -sSf -X PUT -H 'Idempotency-Key: once' http://127.0.0.1:27801/v1/kv/old/idempotent -d first; echo
post PATCH /admin/members/n2 '{"priority":50,"zone":"east","reason":"second choice"}'
post POST /admin/auto-failover '{"enabled":false,"reason":"maintenance"}'
ctl kv put old/last "the last value"
ctl snapshot save "$out/backup.snapshot"
kill -9 ${pid[1]} ${pid[2]}; wait ${pid[1]} ${pid[2]} || true
gzip -9nf "$out/backup.snapshot"
name=([1]=leader [2]=follower)
for i in 1 2; do
	rm -f "$work/n$i/reserve"
	tar -C "$work/n$i" --sort=name --owner=0 --group=0 -czf "$out/${name[$i]}.tar.gz" .
done
