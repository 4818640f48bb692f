package postgres

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// Causes of the end of a tenure, as the row has them.
const (
	causeResigned = "resigned"
	causeLost     = "disconnected" // and its holder has said so
	causeExpired  = "expired"      // seen by observers: nobody writes it
)

// sessionSetupSQL prepares a session. A server that forgets what it has acknowledged would
// give a token twice.
const sessionSetupSQL = `
SELECT set_config('idle_session_timeout', $1, false),
       set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' ELSE current_setting('synchronous_commit') END, false)`

// Schema is the statement that makes the table. New candidates run it when the
// table is missing; where they may not, somebody else must have.
func Schema(table string) string { return newStatements(table).schema }

// statements are the SQL of one table.
type statements struct {
	channel, schema, exists, listen, row, tryLock, read, elect, heartbeat, release, unlock string
}

func newStatements(table string) statements {
	name := pgx.Identifier(strings.Split(table, ".")).Sanitize()
	channel := strings.ReplaceAll(table, ".", "_")
	in := func(sql string) string {
		return strings.NewReplacer("{table}", name, "{channel}", channel).Replace(strings.ReplaceAll(sql, "{notify}", notify))
	}
	return statements{
		channel: channel,
		schema: in(`CREATE TABLE IF NOT EXISTS {table} (
  role           text PRIMARY KEY,
  epoch          bigint NOT NULL DEFAULT 0,  -- fencing token of the latest tenure
  session        text NOT NULL DEFAULT '',   -- of the holder; '' when the role was given back
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
		read: in(`SELECT epoch, beat, session, holder, value, cause, ttl_ms, coalesce(acquired_at, now()) FROM {table} WHERE role = $1`),
		// Milliseconds of a clock: should a server have lost the last tenures, as one that is
		// promoted may, its tokens are greater all the same.
		elect: in(`WITH t AS (
  UPDATE {table} SET epoch = greatest(epoch + 1, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), session = $2, holder = $3,
    value = $4, cause = '', ttl_ms = $5, beat = beat + 1, acquired_at = clock_timestamp(), last_heartbeat = clock_timestamp()
  WHERE role = $1 RETURNING *)
SELECT epoch, acquired_at, {notify} FROM t`),
		// The lock is looked at as well: a pooler may have taken it from the session.
		heartbeat: in(`UPDATE {table} SET beat = beat + 1, last_heartbeat = clock_timestamp()
WHERE role = $1 AND session = $2 AND EXISTS (
  SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND objsubid = 1
  AND (classid::bigint << 32 | objid::bigint) = $3)`),
		release: in(`WITH t AS (
  UPDATE {table} SET session = '', holder = '', value = '', cause = $3, beat = beat + 1 WHERE role = $1 AND session = ANY($2) RETURNING *)
SELECT {notify} FROM t`),
		// After the row says so, or whoever gets the lock would wait for a deadline.
		unlock: in(`SELECT pg_advisory_unlock($2), {notify} FROM {table} t WHERE role = $1`),
	}
}

// notify tells those who listen of the row t. It fits: see maxValue.
const notify = `pg_notify('{channel}', json_build_object('role', t.role, 'epoch', t.epoch, 'session', t.session, 'holder', t.holder,
  'value', t.value, 'cause', t.cause, 'acquired_at', t.acquired_at)::text)`
