package state

import (
	"bytes"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"northstar/cluster"
)

// numbered returns a command with a number of a node.
func numbered(c Command, number, answeredBelow, after uint64) Command {
	c.Idempotency = &Idempotency{
		Key: NodeIdempotencyPrefix + "n1/1", Number: number, AnsweredBelow: answeredBelow, After: after,
	}
	return c
}

// A numbered command is applied once, and what its answer says is repeated: in the same batch, later, after a restart.
func TestNumberedCommands(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	holder := newSession(t, s, "holder")
	campaign(t, s, "r", holder)
	absent := put("a", "2")
	absent.Put.IfAbsent = true
	release := Command{Kind: KindRoleRelease, RoleRelease: &RoleRelease{Role: "r", Session: holder}}
	cmds := []Command{put("a", "1"), absent, create("s"), release, end(CauseSessionEnded, holder), del("a")}
	for i := range cmds {
		cmds[i] = numbered(cmds[i], uint64(i)+1, 1, 1)
	}
	first := apply(s, append(cmds, cmds...)...)
	if first[0].Err != nil || first[2].Session == nil || first[3].Role == nil || first[5].Err != nil {
		t.Fatalf("%+v", first)
	}
	wantCode(t, first[1].Err, cluster.CodeConditionFailed)
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	for name, s := range map[string]*State{"same": s, "restored": again} {
		before := s.View().Revision()
		for i, r := range append(first[len(cmds):], apply(s, cmds...)...) {
			want := s.View().recorded(first[i%len(cmds)])
			if !bytes.Equal(EncodeResult(&r), EncodeResult(&want)) {
				t.Errorf("%s: command %d again: %+v, first %+v", name, i, r, want)
			}
		}
		if got := s.View().Revision(); got != before {
			t.Errorf("%s: %d changes by repeated commands", name, got-before)
		}
	}
	other := cmds[0]
	other.Idempotency = &Idempotency{Key: NodeIdempotencyPrefix + "n1/1", Number: 1, AnsweredBelow: 1, RequestHash: []byte("x")}
	if r := apply(s, other)[0]; r.Err.HTTPStatus() != http.StatusUnprocessableEntity {
		t.Errorf("another request with the same number: %+v", r)
	}
	wantCode(t, apply(s, numbered(put("b", ""), 7, 8, 1))[0].Err, cluster.CodeBadRequest)
}

// Only results that a sender may ask for again are kept, and a command from before them is not applied any more.
func TestSenderForgetsAnswers(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	for n := range uint64(1000) {
		mustApply(t, s, numbered(put("a", fmt.Sprint(n)), n+1, max(n, 2)-1, 1))
		if kept := s.View().senders.countRecords(); kept > 4 {
			t.Fatalf("%d records after %d commands", kept, n+1)
		}
	}
	before := s.View().Revision()
	r := apply(s, numbered(put("a", "late"), 5, 1, 1))[0]
	wantCode(t, r.Err, cluster.CodeOutcomeUnknown)
	if s.View().Revision() != before {
		t.Error("a command that its sender does not wait for was applied")
	}
	var batch []Command
	for n := range uint64(maxSenderResults + 10) {
		batch = append(batch, numbered(put("a", ""), 2000+n, 2000, 1))
	}
	mustApply(t, s, batch...)
	if kept := s.View().senders.countRecords(); kept != 1+maxSenderResults {
		t.Errorf("%d records, want %d", kept, 1+maxSenderResults)
	}
	wantCode(t, apply(s, batch[0])[0].Err, cluster.CodeOutcomeUnknown)
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	if again.View().Fingerprint() != s.View().Fingerprint() {
		t.Error("read and written differently")
	}
}

// What is kept of results counts for no limit of the state, so one client must not make it large: neither by commands
// whose results are whole roles or sessions, nor by errors that name long keys.
func TestRecordedResultsAreSmall(t *testing.T) {
	t.Parallel()
	const rounds, most = 50, 1 << 10 // bytes of one result
	s := New(Options{})
	big := create("s")
	big.SessionCreate.Meta = map[string]string{"m": strings.Repeat("x", MaxSessionMeta-1)}
	for range 10 {
		mustApply(t, s, campaignWith("r", newSession(t, s, "a"), func(p *RoleCampaign) {
			p.Value = strings.Repeat("v", MaxRoleValue)
		}))
	}
	stranger := newSession(t, s, "stranger")
	before, number := len(snapshotOf(t, s)), uint64(0)
	for i := range rounds {
		long := del(strings.Repeat("\x01", MaxKey)) // a text quotes each byte as four
		cmds := []Command{big, long, resign("r", stranger), withIdempotency(long, fmt.Sprint("ann\n", i), "f")}
		for j := range cmds[:3] {
			number++
			cmds[j] = numbered(cmds[j], number, 1, 1)
		}
		first := apply(s, cmds...)
		for j, again := range apply(s, cmds...) {
			want := first[j]
			if (again.Err == nil) != (want.Err == nil) || again.Err != nil && (again.Err.Code != want.Err.Code ||
				again.Err.HTTPStatus() != want.Err.HTTPStatus()) || (again.Role == nil) != (want.Role == nil) {
				t.Fatalf("command %d again: %+v, first %+v", j, again, want)
			}
		}
		mustApply(t, s, end(CauseSessionEnded, first[0].Session.ID))
	}
	if grown := len(snapshotOf(t, s)) - before; grown > 4*rounds*most {
		t.Errorf("%d results take %d bytes, want at most %d each", 4*rounds, grown, most)
	}
}

// A published view never changes: readers have no lock.
func TestSenderIsNotChangedOncePublished(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, numbered(put("a", "1"), 1, 1, 1), numbered(put("a", "2"), 2, 1, 1))
	v := s.View()
	before := v.Fingerprint()
	mustApply(t, s, numbered(put("a", "3"), 4, 2, 1), numbered(put("a", "3"), 3, 3, 1))
	if v.Fingerprint() != before {
		t.Error("a published view has changed")
	}
}

// The senders are bounded, and no command of a dropped one is applied twice.
func TestSendersAreBounded(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, put("a", "1"))
	first := numbered(put("a", "2"), 1, 1, 1)
	mustApply(t, s, first)
	client := put("a", "3")
	client.Idempotency = &Idempotency{Key: "ann\nns1.x", Number: 1, AnsweredBelow: 1}
	mustApply(t, s, client)
	for i := range maxNodeSenders {
		c := numbered(put("a", ""), 1, 1, s.View().AppliedIndex())
		c.Idempotency.Key = fmt.Sprint(NodeIdempotencyPrefix, "n2/", i)
		mustApply(t, s, c)
	}
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	for _, s := range []*State{s, again} {
		v := s.View()
		if n := v.senders.byKey.len(); v.senders.nodes != n-1 || n > maxNodeSenders || n < maxNodeSenders/2 {
			t.Errorf("%d senders, %d of them nodes", n, v.senders.nodes)
		}
		before := v.Revision()
		r := apply(s, first, client)
		wantCode(t, r[0].Err, cluster.CodeOutcomeUnknown)
		if r[1].Err != nil || s.View().Revision() != before {
			t.Errorf("%+v, %d changes", r[1], s.View().Revision()-before)
		}
	}
}

// clientPut returns a put with a number of a client, which asks for all of its results.
func clientPut(client int, number uint64) Command {
	c := put("a", "")
	c.Idempotency = &Idempotency{Key: fmt.Sprintf("ann\nns1.%06d", client), Number: number, AnsweredBelow: 1}
	return c
}

// The results of clients are bounded: of one, and of all. Clients that were silent for longest are dropped first.
func TestResultsOfClientsAreBounded(t *testing.T) {
	t.Parallel()
	s := New(Options{HistoryRevisions: 1})
	const clients = maxResults/maxClientResults + 1
	for i := range clients {
		var batch []Command
		for n := range uint64(maxClientResults + 1) {
			batch = append(batch, clientPut(i, n+1))
		}
		mustApply(t, s, batch...)
		last, _ := s.View().senders.byKey.get(batch[0].Idempotency.Key)
		if len(last.results) != maxClientResults {
			t.Fatalf("client %d: %d results", i, len(last.results))
		}
	}
	again := New(Options{HistoryRevisions: 1})
	restore(t, again, snapshotOf(t, s))
	for _, s := range []*State{s, again} {
		v, kept := s.View(), 0
		for one := range v.senders.byKey.after("") {
			kept += len(one.results)
		}
		if kept != v.senders.results || kept > maxResults || kept < maxResults/2 {
			t.Errorf("%d results, %d counted", kept, v.senders.results)
		}
		if _, known := v.senders.byKey.get("ann\nns1.000000"); known {
			t.Error("the client that was silent for longest is kept")
		}
		answered := clientPut(clients-1, maxClientResults+2)
		answered.Idempotency.AnsweredBelow = maxClientResults + 2
		mustApply(t, s, answered)
		if got := s.View().senders.results; got != kept-maxClientResults+1 {
			t.Errorf("%d results after one client has its answers, want %d", got, kept-maxClientResults+1)
		}
	}
}

// A client's write that was made while some member did not know numbers is not made again when all do.
func TestNumberAfterKey(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	c := put("a", "1")
	c.Idempotency = &Idempotency{Key: "ann\nns1.x", Number: 7, AnsweredBelow: 6, RequestHash: []byte("h")}
	old := c
	old.DropNumber()
	if v := old.MinVersion(); v != 1 || old.Idempotency.Key != "ann\nns1.x.7.6" {
		t.Fatalf("version %d, key %q", v, old.Idempotency.Key)
	}
	mustApply(t, s, old)
	r := apply(s, c)[0]
	if r.Err != nil || r.Revision != 1 || s.View().Revision() != 1 {
		t.Errorf("%+v at revision %d", r, s.View().Revision())
	}
	node := numbered(put("a", "1"), 1, 1, 1)
	if node.DropNumber(); node.Idempotency.Number == 0 {
		t.Error("a node would repeat a write that has no key")
	}
}

// A call is recorded once, however often its node repeats it; each call of a client is another one.
func TestNumberedCommandIsRecordedOnce(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	c := numbered(audited(put("a", "1"), "ann", 1), 1, 1, 1)
	mustApply(t, s, c, c)
	mustApply(t, s, c)
	client := audited(put("a", "1"), "bob", 1)
	client.Idempotency = &Idempotency{Key: "bob\nns1.x", Number: 1, AnsweredBelow: 1}
	mustApply(t, s, client, client)
	got := map[string]int{}
	for r := range s.View().AuditAfter(0) {
		got[r.Who]++
	}
	if want := map[string]int{"ann": 1, "bob": 2}; !reflect.DeepEqual(got, want) {
		t.Errorf("records %v, want %v", got, want)
	}
}

// While members may know no numbers, each attempt of a keyed command of a node is recorded, as those members do.
func TestKeyedCommandIsRecordedByVersion(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	c := withIdempotency(audited(put("a", "1"), "ann", 1), NodeIdempotencyPrefix+"k", "")
	records := func() (n int) {
		for range s.View().AuditAfter(0) {
			n++
		}
		return n
	}
	mustApply(t, s, c, c)
	if n := records(); n != 2 {
		t.Errorf("%d records at version %d, want 2", n, s.View().CommandVersion())
	}
	mustApply(t, s, numbered(put("b", ""), 1, 1, 1), c)
	if n := records(); n != 2 {
		t.Errorf("%d records after a repeat at version %d, want 2", n, s.View().CommandVersion())
	}
}

// Numbers alone do not make the history keep the items that were replaced.
func TestNumbersKeepNoReplacedItems(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, put("a", "1"), numbered(put("a", "2"), 1, 1, 1), put("a", "3"))
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	for _, s := range []*State{s, again} {
		if v := s.View(); v.CommandVersion() != NumberVersion || v.KeepsReplaced() || v.CompactRevision() != 3 {
			t.Errorf("version %d, compact revision %d", v.CommandVersion(), v.CompactRevision())
		}
		mustApply(t, s, Command{Kind: KindLeaseGrant, LeaseGrant: &LeaseGrant{ID: 1, TTL: 10}}, put("a", "4"))
		if v := s.View(); !v.KeepsReplaced() || v.valuesSince != 3 {
			t.Errorf("values are kept since %d: %v", v.valuesSince, v.KeepsReplaced())
		}
	}
}

// Numbers are given when all members know them, and from then on.
func TestKnowNumbers(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	know := func(want bool, when string) {
		t.Helper()
		if s.View().KnowNumbers() != want {
			t.Errorf("%s: want %v", when, want)
		}
	}
	know(false, "before the first member")
	mustApply(t, s, member("n1"), member("n2"), patch(MemberPatch{ID: "n1", SupportedVersion: ptr(uint32(NumberVersion))}))
	know(false, "n2 has not said what it supports")
	mustApply(t, s, patch(MemberPatch{ID: "n2", SupportedVersion: ptr(uint32(NumberVersion - 1))}))
	know(false, "n2 is older")
	mustApply(t, s, patch(MemberPatch{ID: "n2", SupportedVersion: ptr(uint32(NumberVersion))}))
	know(true, "all know them")
	mustApply(t, s, member("n3"))
	know(false, "none was given, and n3 is new")
	mustApply(t, s, numbered(put("a", ""), 1, 1, 1))
	know(true, "one was given")
}
