package state

import (
	"bytes"
	"testing"
	"time"

	"northstar/cluster"
)

// rawRecord is a record with any fields.
type rawRecord func(c *codec)

func (r rawRecord) fields(c *codec) { r(c) }

func (c *codec) putText(num int, v string) { textAlways(c, num, &v) }

func put(key, value string) Command {
	return Command{Kind: KindPut, Put: &Put{Key: key, Value: []byte(value)}}
}

func del(key string) Command {
	return Command{Kind: KindDelete, Delete: &Delete{Key: key}}
}

func ptr[T any](v T) *T { return &v }

// apply applies one batch as the next log entry of term 1.
func apply(s *State, cmds ...Command) []Result {
	return s.Apply(s.View().AppliedIndex()+1, 1, cmds)
}

// mustApply applies one batch in which every command succeeds.
func mustApply(t testing.TB, s *State, cmds ...Command) {
	t.Helper()
	for i, r := range apply(s, cmds...) {
		if r.Err != nil {
			t.Fatalf("command %d: %v", i, r.Err)
		}
	}
}

func snapshotOf(t testing.TB, s *State) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func restore(t testing.TB, s *State, snapshot []byte) {
	t.Helper()
	n, err := s.ReadFrom(bytes.NewReader(snapshot))
	if err != nil {
		t.Fatal(err)
	}
	if n != int64(len(snapshot)) {
		t.Fatalf("ReadFrom returns %d bytes of %d", n, len(snapshot))
	}
}

func wantCode(t testing.TB, err error, code cluster.Code) {
	t.Helper()
	if !cluster.IsCode(err, code) {
		t.Fatalf("want code %d, got %v", code, err)
	}
}

// richState has content in every section of a snapshot.
func richState(t testing.TB) *State {
	t.Helper()
	s := New(Options{})
	mustApply(t, s,
		Command{Kind: KindLeaderStart, Now: 10, LeaderStart: &LeaderStart{
			Term: 1, Node: "n1", Trigger: "startup",
			Reason: "first start", StartedAt: 5, Votes: []byte(`[]`),
		}},
		Command{Kind: KindClusterInit, Now: 11, ClusterInit: &ClusterInit{
			ClusterID: "c-1", Generation: cluster.Generation{Number: 1, RecoveryID: "r"}, AutoFailover: true,
			Members: []cluster.Member{{
				ID: "n1", RaftAddress: "h:1", HTTPAddress: "h:2", Priority: 7, Eligible: true,
				Zone: "z", Lifecycle: cluster.Active, Version: "1", Reads: 1,
			}},
			Roster: map[cluster.NodeID]string{"n1": "inc1", "n2": "inc2"},
		}},
		Command{Kind: KindSettings, Now: 12, Settings: &SettingsChange{PausedUntil: 99}},
	)
	mustApply(t, s, put("a", "1"), put("b", "2"), put("a", "3"), put("c/ä", ""), del("b"))
	failing := put("a", "4")
	failing.Put.IfAbsent = true
	failing.Idempotency = &Idempotency{Key: "client/1", RequestHash: []byte{1, 2}}
	apply(s, failing)
	done := put("d", "5")
	done.Now = 13
	done.Idempotency = &Idempotency{Key: "client/2"}
	mustApply(t, s, done)
	holder, candidate := newSession(t, s, "holder"), newSession(t, s, "candidate")
	campaign(t, s, "primary", holder)
	campaign(t, s, "primary", candidate)
	campaign(t, s, "former", candidate)
	mustApply(t, s, resign("former", candidate))
	tied := put("e", "6")
	tied.Put.Session = holder
	mustApply(t, s, tied, appNode("w1", holder, AppActive), appNode("w2", candidate, AppJoining))
	mustApply(t, s, Command{Kind: KindAppNodeRemove, AppNodeRemove: &AppNodeRemove{IDs: []string{"w2"}}})
	return s
}

// upgraded makes all members of richState support the version of this build. A restore needs that while roles are
// held.
func upgraded(t testing.TB, s *State) {
	t.Helper()
	for _, id := range []cluster.NodeID{"n1", "n2"} {
		mustApply(t, s, Command{
			Kind:        KindMemberPatch,
			MemberPatch: &MemberPatch{ID: id, SupportedVersion: ptr(CommandVersion)},
		})
	}
}

func appNode(id, session string, status AppStatus) Command {
	return Command{Kind: KindAppNodePut, AppNodePut: &AppNodePut{Node: AppNode{
		ID: id, Session: session, HTTPPort: 80,
		Roles: []string{"worker"}, Status: status,
	}}}
}

func create(name string) Command {
	return Command{Kind: KindSessionCreate, SessionCreate: &SessionCreate{
		Nonce: "abcdefgh", Name: name, TTL: 10 * time.Second, Meta: map[string]string{"zone": "z", "pid": "7"},
	}}
}

func end(cause Cause, ids ...string) Command {
	return Command{Kind: KindSessionEnd, SessionEnd: &SessionEnd{IDs: ids, Cause: cause}}
}

func resign(role, session string) Command {
	return Command{Kind: KindRoleRelease, RoleRelease: &RoleRelease{Role: role, Session: session}}
}

// newSession starts a session and returns its ID.
func newSession(t testing.TB, s *State, name string) string {
	t.Helper()
	r := apply(s, create(name))[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r.Session.ID
}

// campaign makes a session hold a role, or wait for it.
func campaign(t testing.TB, s *State, role, session string) *Role {
	t.Helper()
	r := apply(s, Command{
		Kind:         KindRoleCampaign,
		RoleCampaign: &RoleCampaign{Role: role, Session: session, Value: "of " + session, Wait: true},
	})[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r.Role
}
