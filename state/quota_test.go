package state

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

func limits(bytes, sessions uint64) Command {
	return Command{Kind: KindLimits, Limits: &LimitsChange{StateBytes: bytes, SessionsPerIdentity: sessions}}
}

// sharesOf returns the shares of all identities.
func sharesOf(v *View) map[string]share {
	return maps.Collect(v.shares.from(""))
}

// countsProblem compares what the commands have counted with what the records say, "" if it agrees.
func countsProblem(v *View) string {
	again := *v
	again.recount()
	if got, want := maps.Collect(v.keyCounts.from("")), maps.Collect(again.keyCounts.from("")); !maps.Equal(got, want) {
		return fmt.Sprintf("keys of sessions: %v, the records have %v", got, want)
	}
	if got, want := sharesOf(v), sharesOf(&again); v.stateBytes != again.stateBytes || !maps.Equal(got, want) {
		return fmt.Sprintf("%d bytes and %v, the records have %d and %v", v.stateBytes, got, again.stateBytes, want)
	}
	return ""
}

func checkCounts(t *testing.T, s *State) {
	t.Helper()
	if p := countsProblem(s.View()); p != "" {
		t.Fatal(p)
	}
}

// limited returns a state with the smallest limit of bytes.
func limited(t *testing.T) *State {
	t.Helper()
	s := New(Options{})
	mustApply(t, s, limits(MinStateBytes, 3))
	return s
}

// full returns a limited state in which keys have taken what they may: no key of 600 bytes fits.
func full(t *testing.T) *State {
	t.Helper()
	s := limited(t)
	i := 0
	for size := 9000; size > 0; size /= 2 {
		for apply(s, put(fmt.Sprintf("k%04d", i), strings.Repeat("v", size)))[0].Err == nil {
			i++
		}
	}
	if n := s.View().StateBytes(); n > MinStateBytes-MinStateBytes/keysReserve || n < MinStateBytes*9/10 {
		t.Fatalf("%d bytes", n)
	}
	return s
}

// A full state takes what shrinks or keeps it, and leaves room for what is no key.
func TestFullState(t *testing.T) {
	t.Parallel()
	s := full(t)
	before := s.View()
	value := strings.Repeat("w", 9000)
	wantCode(t, apply(s, put("k0000", value+value[:600]))[0].Err, cluster.CodeQuotaExceeded)
	wantCode(t, apply(s, put("n", value))[0].Err, cluster.CodeQuotaExceeded)
	if now := s.View(); now.Revision() != before.Revision() || now.StateBytes() != before.StateBytes() {
		t.Fatal("a refused write has an effect")
	}
	mustApply(t, s, put("k0000", value)) // keeps
	holder := newSession(t, s, "holder")
	campaign(t, s, "r", holder)
	mustApply(t, s, appNode("w", holder, AppActive), put("k0000", "short"), del("k0001"), del("k0002"), put("n", value))
	checkCounts(t, s)
}

// Sessions, roles and application nodes are refused where the whole limit is reached. What they have goes on.
func TestFullOfSessions(t *testing.T) {
	t.Parallel()
	s := limited(t)
	a, b := newSession(t, s, "a"), newSession(t, s, "b")
	campaign(t, s, "held", a)
	node := appNode("w", a, AppActive)
	mustApply(t, s, node)
	big := create("big")
	big.SessionCreate.Meta = map[string]string{"m": strings.Repeat("x", 4000)}
	var last string
	for r := apply(s, big)[0]; r.Err == nil; r = apply(s, big)[0] {
		last = r.Session.ID
	}
	for apply(s, create("small"))[0].Err == nil {
	}
	campaignFor := func(role, session, value string, wait bool) Result {
		return apply(s, Command{Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{
			Role: role, Session: session, Value: value, Wait: wait,
		}})[0]
	}
	long := strings.Repeat("v", 1000)
	wantCode(t, campaignFor("new", b, long, true).Err, cluster.CodeQuotaExceeded)
	wantCode(t, campaignFor("held", b, long, true).Err, cluster.CodeQuotaExceeded)
	other := appNode("w2", a, AppActive)
	other.AppNodePut.Node.Hostname = long[:maxAppText]
	wantCode(t, apply(s, other)[0].Err, cluster.CodeQuotaExceeded)
	wantCode(t, apply(s, put("k", long))[0].Err, cluster.CodeQuotaExceeded)
	if r := campaignFor("held", b, long, false); r.Err != nil || r.Role.Waits(b) || r.Role.Current.Session != a {
		t.Fatalf("a look at a held role: %+v", r)
	}
	if r := campaignFor("held", a, "v", true); r.Err != nil || r.Role.Current.Session != a {
		t.Fatalf("the holder: %+v", r)
	}
	node.AppNodePut.Node.Status = AppDraining
	mustApply(t, s, node, resign("held", a))
	checkCounts(t, s)
	mustApply(t, s, end(CauseExpired, last))
	if r := campaignFor("new", b, long, true); r.Err != nil {
		t.Fatal(r.Err)
	}
	checkCounts(t, s)
}

// An identity has its share of sessions, independent of others. Those without an owner have no limit.
func TestSessionsPerIdentity(t *testing.T) {
	t.Parallel()
	s := limited(t)
	var first string
	for i := range 3 {
		r := apply(s, ownedSession("s", "client alice"))[0]
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		if i == 0 {
			first = r.Session.ID
		}
	}
	wantCode(t, apply(s, ownedSession("s", "client alice"))[0].Err, cluster.CodeQuotaExceeded)
	for _, owner := range []string{"client bob", "operator alice", "", "operator loopback", "operator insecure"} {
		mustApply(t, s, ownedSession("s", owner))
	}
	for range 4 {
		mustApply(t, s, ownedSession("s", ""), ownedSession("s", "operator loopback"),
			ownedSession("s", "operator insecure"))
	}
	mustApply(t, s, end(CauseSessionEnded, first), ownedSession("s", "client alice"))
	wantCode(t, apply(s, ownedSession("s", "client alice"))[0].Err, cluster.CodeQuotaExceeded)
	checkCounts(t, s)
}

// One identity takes at most half of all roles and of all application nodes.
func TestRolesAndNodesPerIdentity(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, limits(1<<30, 10))
	alice := apply(s, ownedSession("a", "client alice"))[0].Session.ID
	bob := apply(s, ownedSession("b", "client bob"))[0].Session.ID
	campaignFor := func(name, session string) Command {
		return Command{Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{
			Role: name, Session: session, Wait: true, Ineligible: len(name)%2 == 0, // these wait in a vacant role
		}}
	}
	var cmds []Command
	for i := range MaxRolesPerIdentity {
		cmds = append(cmds, campaignFor(fmt.Sprint("r", i), alice), appNode(fmt.Sprint("w", i), alice, AppActive))
	}
	mustApply(t, s, cmds...)
	wantCode(t, apply(s, campaignFor("more", alice))[0].Err, cluster.CodeQuotaExceeded)
	wantCode(t, apply(s, appNode("more", alice, AppActive))[0].Err, cluster.CodeQuotaExceeded)
	mustApply(t, s, campaignFor("more", bob), appNode("more", bob, AppActive), campaignFor("more", alice),
		campaignFor("r1", bob))
	wantCode(t, apply(s, appNode("more", alice, AppActive))[0].Err, cluster.CodeQuotaExceeded) // it counts to bob
	mustApply(t, s, resign("r1", alice), campaignFor("again", alice), appNode("w1", alice, AppDraining))
	checkCounts(t, s)
	mustApply(t, s, end(CauseExpired, alice))
	if got := sharesOf(s.View())["client alice"]; got != (share{appNodes: MaxAppNodesPerIdentity}) {
		t.Fatalf("%+v after the end of its session", got)
	}
	alice = apply(s, ownedSession("a", "client alice"))[0].Session.ID
	wantCode(t, apply(s, appNode("another", alice, AppActive))[0].Err, cluster.CodeQuotaExceeded)
	mustApply(t, s, appNode("w1", alice, AppActive), campaignFor("r1", alice)) // a dead node comes back
	mustApply(t, s, Command{Kind: KindAppNodeRemove, AppNodeRemove: &AppNodeRemove{IDs: []string{"w2"}}})
	mustApply(t, s, appNode("another", alice, AppActive))
	checkCounts(t, s)
}

// Without limits, as before every member supports them, nothing is refused.
func TestNoLimits(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	for range 40 {
		mustApply(t, s, ownedSession("s", "client alice"), put("k", strings.Repeat("v", MaxValue)))
	}
	for i := range 4 {
		mustApply(t, s, put(fmt.Sprint(i), strings.Repeat("v", MaxValue)))
	}
	if l := s.View().Limits(); l != (Limits{}) {
		t.Fatalf("%+v", l)
	}
	if c := limits(MinStateBytes, 1); c.MinVersion() != limitsVersion {
		t.Fatalf("limits need version %d", c.MinVersion())
	}
	for _, bad := range []Command{
		limits(MinStateBytes-1, 1), limits(MaxStateBytes+1, 1), limits(MinStateBytes, 0),
		limits(MinStateBytes, MaxSessions+1),
	} {
		wantCode(t, apply(s, bad)[0].Err, cluster.CodeBadRequest)
	}
}

// A refusal is remembered like every decision of the state: a retried write has one outcome.
func TestQuotaIdempotent(t *testing.T) {
	t.Parallel()
	s := full(t)
	refused := withIdempotency(put("n", strings.Repeat("v", 9000)), "client/1", "f")
	wantCode(t, apply(s, refused)[0].Err, cluster.CodeQuotaExceeded)
	mustApply(t, s, del("k0000"), del("k0001"))
	wantCode(t, apply(s, refused)[0].Err, cluster.CodeQuotaExceeded)
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	wantCode(t, apply(again, refused)[0].Err, cluster.CodeQuotaExceeded)
}

// A node that comes from a snapshot decides as the others do.
func TestLimitsInSnapshot(t *testing.T) {
	t.Parallel()
	s := full(t)
	for _, owner := range []string{"client alice", "client alice", "client alice", "client bob"} {
		id := apply(s, ownedSession("s", owner))[0].Session.ID
		campaign(t, s, "r", id)
		mustApply(t, s, appNode("w-"+id, id, AppActive))
	}
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	a, b := s.View(), again.View()
	if a.Limits() != b.Limits() || a.StateBytes() != b.StateBytes() || !maps.Equal(sharesOf(a), sharesOf(b)) {
		t.Fatalf("%+v %d %v, read as %+v %d %v", a.Limits(), a.StateBytes(), sharesOf(a), b.Limits(), b.StateBytes(),
			sharesOf(b))
	}
	for _, c := range []Command{
		put("n", strings.Repeat("v", 9000)), ownedSession("s", "client alice"), ownedSession("s", "client bob"),
		del("k0000"), put("n", strings.Repeat("v", 9000)),
	} {
		one, two := apply(s, c)[0], apply(again, c)[0]
		if fmt.Sprint(one.Err) != fmt.Sprint(two.Err) || one.Revision != two.Revision {
			t.Fatalf("%v: %+v and %+v", c.Kind, one, two)
		}
	}
	if !bytes.Equal(snapshotOf(t, s), snapshotOf(t, again)) {
		t.Fatal("the states differ")
	}
	checkCounts(t, again)
}

// A backup that exceeds the limit is restored. Then the state cannot grow, but shrink. The limits are not those of the
// backup.
func TestRestoreBeyondTheLimit(t *testing.T) {
	t.Parallel()
	large := New(Options{})
	mustApply(t, large, limits(1<<40, 7))
	for i := range 3 {
		mustApply(t, large, put(fmt.Sprint("k", i), strings.Repeat("v", MaxValue)))
	}
	s := limited(t)
	newSession(t, s, "ends")
	merged, err := mergeBackup(s.Snapshot(), snapshotOf(t, large))
	if err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	if _, err := merged.WriteTo(&raw); err != nil {
		t.Fatal(err)
	}
	restore(t, s, raw.Bytes())
	v := s.View()
	if v.Keys() != 3 || v.StateBytes() < 3*MaxValue || v.Limits() != (Limits{MinStateBytes, 3, 0}) {
		t.Fatalf("%d keys, %d bytes, %+v", v.Keys(), v.StateBytes(), v.Limits())
	}
	wantCode(t, apply(s, put("n", "v"))[0].Err, cluster.CodeQuotaExceeded)
	wantCode(t, apply(s, create("s"))[0].Err, cluster.CodeQuotaExceeded)
	mustApply(t, s, put("k0", "v"), put("k1", "v"), del("k2"), put("n", "v"), create("s"))
	checkCounts(t, s)
}

// A recovery ends the sessions, and the measure follows.
func TestRecoveryCounts(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	restore(t, s, snapshotOf(t, limitedState(t)))
	mustApply(t, s, Command{Kind: KindRecovery, Recovery: &Recovery{
		Generation: cluster.Generation{Number: 2, RecoveryID: "again"}, LockDelay: true,
	}})
	dead := map[string]share{"client alice": {appNodes: 1}} // it stays for a time
	if v := s.View(); !maps.Equal(sharesOf(v), dead) || v.Limits() != (Limits{1 << 30, 5, 0}) {
		t.Fatalf("%v, %+v", sharesOf(v), v.Limits())
	}
	checkCounts(t, s)
	mustApply(t, s, ownedSession("a", "client alice"), put("a", "b"))
	checkCounts(t, s)
}

// limitedState is richState with what version 5 has: limits, and sessions with owners that have something.
func limitedState(t *testing.T) *State {
	t.Helper()
	s := richState(t)
	mustApply(t, s, limits(1<<30, 5))
	holder := apply(s, ownedSession("holder", "client alice"))[0].Session.ID
	campaign(t, s, "owned", holder)
	waiting := ownedSession("next", "client bob")
	waiting.SessionCreate.TTL = time.Minute
	campaign(t, s, "owned", apply(s, waiting)[0].Session.ID)
	mustApply(t, s, appNode("w9", holder, AppActive))
	return s
}
