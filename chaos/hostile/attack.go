// Package hostile attacks clusters of real processes with hostile clients. It measures what the attacked nodes need,
// and what other clients, health checks and operators notice, and compares that with limits.
package hostile

import "context"

// Attack is one way in which clients misuse a node.
type Attack struct {
	Name    string
	Unit    string // what its size counts
	Full    int    // size as it is promised to be withstood
	Short   int    // size of the short form
	Callers int    // identities, and addresses, of the attacker
	TLS     bool
	Held    bool     // size counts connections that are open at the same time
	PerConn int      // of what size counts, on one connection; 0: 1
	Etcd    bool     // on the etcd API, and a part of the other clients' writes are there
	Quiet   bool     // none of its requests may reach the log
	Flags   []string // of the nodes

	prepare func(ctx context.Context, c *cluster) error // before anything is measured
	run     func(ctx context.Context, a *attacker) error
}

// Attacks returns the corpus, in the order of the report.
//
// Large because it is a table.
func Attacks() []Attack {
	const mib = "67108864" // 64 MiB
	return append([]Attack{
		{
			Name: "none", Unit: "attackers that do nothing, for comparison", Full: 1, Short: 1, Callers: 1, Held: true,
			Quiet: true, run: doNothing,
		},
		{
			Name: "unread-lists", Unit: "lists of 4 MiB that no client reads", Full: 400, Short: 40, Callers: 4, Held: true,
			prepare: fillLists, run: held(unreadList),
		},
		{
			Name: "unread-watches", Unit: "watches that no client reads, while 256 KiB values change", Full: 400, Short: 40,
			Callers: 4, Held: true, prepare: fillHistory, run: unreadWatches,
		},
		{
			Name: "idle", Unit: "idle connections of 20 addresses", Full: 20000, Short: 1500, Callers: 20, Held: true,
			run: held(idle),
		},
		{
			Name: "idle-tls", Unit: "idle TLS connections of 20 addresses", Full: 20000, Short: 100, Callers: 20, Held: true,
			TLS: true, run: held(idle),
		},
		{
			Name: "idle-tls-address", Unit: "idle TLS connections of one address", Full: 20000, Short: 1500, Callers: 1,
			Held: true, TLS: true, run: held(idle),
		},
		{
			Name: "slow-headers", Unit: "requests whose header never ends", Full: 2000, Short: 200, Callers: 2, Held: true,
			run: held(slowHeader),
		},
		{
			Name: "slow-bodies", Unit: "requests whose body never ends", Full: 2000, Short: 200, Callers: 2, Held: true,
			run: held(slowBody),
		},
		{
			Name: "raft-flood", Unit: "connections to the raft port", Full: 100000, Short: 2000, Callers: 8, Quiet: true,
			run: flood(64, raftConnection),
		},
		{
			Name: "tokenless-puts", Unit: "writes without a token, of another origin, or with a bad token", Full: 60000,
			Short: 2000, Callers: 4, Quiet: true, run: flood(64, tokenlessPut),
		},
		{
			Name: "audit-flood", Unit: "forbidden calls, and deletions of absent sessions", Full: 60000, Short: 1000,
			Callers: 4, run: flood(32, auditedCall),
		},
		{
			Name: "state-fill", Unit: "values of 256 KiB and sessions of 4 KiB, with limits.state-bytes of 64 MiB",
			Full: 10000, Short: 600, Callers: 1, Flags: []string{"--limits-state-bytes", mib}, run: flood(8, fill),
		},
		{
			Name: "stream-resets", Unit: "streams that are reset after their first bytes", Full: 20000, Short: 1000,
			Callers: 4, run: flood(64, resetStream),
		},
	}, etcdAttacks()...)
}
