package postgres

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// Causes of the end of a tenure in the row.
const (
	causeResigned = "resigned"
	causeLost     = "disconnected" // reported by the former holder
	causeExpired  = "expired"      // reported by observers, never written
)

// sessionSetupSQL prepares a session. With asynchronous commits, a crashed server could grant a token twice.
const sessionSetupSQL = `
SELECT set_config('idle_session_timeout', $1, false),
       set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' ELSE current_setting('synchronous_commit') END, false)`

// Schema returns the statement that creates the table. New candidates run it if the table is missing. If they lack
// the permission, run it beforehand.
func Schema(table string) string { return newStatements(table).schema }

// statements has the SQL of one table.
type statements struct {
	channel, schema, exists, listen, row, tryLock, read, elect, heartbeat, release, unlock string
}

func newStatements(table string) statements {
	name := pgx.Identifier(strings.Split(table, ".")).Sanitize()
	channel := strings.ReplaceAll(table, ".", "_")
	in := func(sql string) string {
		return strings.NewReplacer("{table}", name, "{channel}", channel).Replace(strings.ReplaceAll(sql, "{notify}",
			notify))
	}
	return statements{
		channel: channel,
		schema: in(`CREATE TABLE IF NOT EXISTS {table} (
  role           text PRIMARY KEY,
  epoch          bigint NOT NULL DEFAULT 0,  -- fencing token of the latest tenure
  session        text NOT NULL DEFAULT '',   -- of the holder; '' if the role was released
  holder         text NOT NULL DEFAULT '',
  value          text NOT NULL DEFAULT '',
  cause          text NOT NULL DEFAULT '',   -- why the latest tenure ended
  ttl_ms         bigint NOT NULL DEFAULT 0,
  beat           bigint NOT NULL DEFAULT 0,  -- heartbeats, of all tenures
  acquired_at    timestamptz,
  last_heartbeat timestamptz
)`),
		exists: `SELECT to_regclass($1) IS NOT NULL`,
		listen: `LISTEN ` + pgx.Identifier{channel}.Sanitize(),
		row:    in(`INSERT INTO {table} (role) VALUES ($1) ON CONFLICT DO NOTHING`),
		tryLock: in(`SELECT pg_try_advisory_lock($2), epoch, beat, session, ttl_ms
FROM {table} WHERE role = $1`),
		read: in(
			`SELECT epoch, beat, session, holder, value, cause, ttl_ms, coalesce(acquired_at, now()) FROM {table} WHERE role = $1`,
		),
		// The epoch is at least the time in milliseconds: tokens grow even if a promoted server has lost the last
		// tenures. From now on the server ends the session if it is silent for its TTL.
		elect: in(`WITH t AS (
  UPDATE {table} SET epoch = greatest(epoch + 1, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), session = $2, holder = $3,
    value = $4, cause = '', ttl_ms = $5, beat = beat + 1, acquired_at = clock_timestamp(), last_heartbeat = clock_timestamp()
  WHERE role = $1 RETURNING *)
SELECT epoch, acquired_at, {notify}, set_config('idle_session_timeout', ttl_ms::text, false) FROM t`),
		// It also checks the lock: a pooler may have moved the session.
		heartbeat: in(`UPDATE {table} SET beat = beat + 1, last_heartbeat = clock_timestamp()
WHERE role = $1 AND session = $2 AND EXISTS (
  SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND objsubid = 1
  AND (classid::bigint << 32 | objid::bigint) = $3)`),
		release: in(`WITH t AS (
  UPDATE {table} SET session = '', holder = '', value = '', cause = $3, beat = beat + 1 WHERE role = $1 AND session = ANY($2) RETURNING *)
SELECT {notify} FROM t`),
		// It notifies after the row was cleared: the next candidate need not wait for a deadline.
		unlock: in(`SELECT pg_advisory_unlock($2), {notify} FROM {table} t WHERE role = $1`),
	}
}

// notify notifies the listeners of the row t. The payload fits a notification: see maxValue.
const notify = `pg_notify('{channel}', json_build_object('role', t.role, 'epoch', t.epoch, 'session', t.session, 'holder', t.holder,
  'value', t.value, 'cause', t.cause, 'acquired_at', t.acquired_at)::text)`
