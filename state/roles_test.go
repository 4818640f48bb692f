package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

// roleEvents returns the events of a role, or of all roles, in order.
func roleEvents(t testing.TB, s *State, role string) []RoleEvent {
	t.Helper()
	prefix := ""
	if role != "" {
		prefix = RoleKey(role)
	}
	c, err := s.RoleFeed().Cursor(prefix, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var events []RoleEvent
	for {
		changes, err := c.Next(ctx, 10)
		if errors.Is(err, context.Canceled) {
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range changes {
			ev, err := DecodeRoleEvent(ch.Value)
			if err != nil || ev.Elected && ev.Tenure.Token != ch.Revision {
				t.Fatalf("revision %d: %+v, %v", ch.Revision, ev, err)
			}
			events = append(events, ev)
		}
	}
}

func describeEvents(events []RoleEvent) string {
	var b strings.Builder
	for _, e := range events {
		what := "+"
		if !e.Elected {
			what = "-" + string(e.Tenure.Cause) + ":"
		}
		fmt.Fprintf(&b, "%s%s/%s ", what, e.Role, e.Tenure.Holder)
	}
	return strings.TrimSpace(b.String())
}

func holderOf(s *State, role string) string {
	r, _ := s.View().Role(role)
	if r == nil {
		return ""
	}
	return r.Current.Holder
}

func TestRoleGoesDownTheQueue(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a, b, c := newSession(t, s, "a"), newSession(t, s, "b"), newSession(t, s, "c")
	first := campaign(t, s, "r", a)
	if first.Current.Session != a || first.Current.Token != s.View().Revision() || first.Current.Value != "of "+a {
		t.Fatalf("%+v", first)
	}
	campaign(t, s, "r", b)
	campaign(t, s, "r", c)
	if r := campaign(t, s, "r", b); len(r.Queue) != 2 || r.Queue[0].Session != b {
		t.Fatalf("a repeated campaign must keep the place: %+v", r.Queue)
	}
	if again := campaign(t, s, "r", a); again.Current != first.Current {
		t.Fatalf("the holder must keep its tenure: %+v", again.Current)
	}
	mustApply(t, s, resign("r", a))
	mustApply(t, s, end(CauseSessionEnded, b))
	mustApply(t, s, resign("r", c))
	if got, want := describeEvents(roleEvents(t, s, "r")),
		"+r/a -resigned:r/a +r/b -session_ended:r/b +r/c -resigned:r/c"; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	r, _ := s.View().Role("r")
	if r.Held() || r.Elections != 3 || len(r.History) != 3 || r.History[0].Value != "" ||
		r.History[2].Cause != CauseResigned {
		t.Fatalf("%+v", r)
	}
	wantCode(t, apply(s, resign("r", c))[0].Err, cluster.CodeBadRequest)
}

// A session that ends in the same command is never elected.
func TestSessionsThatEndTogether(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a, b, c := newSession(t, s, "a"), newSession(t, s, "b"), newSession(t, s, "c")
	for _, id := range []string{a, b, c} {
		campaign(t, s, "r", id)
	}
	tied := put("k", "v")
	tied.Put.Session = b
	mustApply(t, s, tied, end(CauseExpired, a, b))
	if got := describeEvents(roleEvents(t, s, "")); got != "+r/a -expired:r/a +r/c" {
		t.Fatal(got)
	}
	if _, ok := s.View().Get("k"); ok {
		t.Fatal("the key of an ended session is still there")
	}
	if s.View().bytes != 0 || s.View().Sessions() != 1 {
		t.Fatalf("%d bytes, %d sessions", s.View().bytes, s.View().Sessions())
	}
	wantCode(t, apply(s, end(CauseExpired, a, b))[0].Err, cluster.CodeSessionEnded)
	mustApply(t, s, end(CauseExpired, a, c)) // those that live end
}

// A key belongs to the session that wrote it last.
func TestSessionKeys(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a, b := newSession(t, s, "a"), newSession(t, s, "b")
	tied := func(key, session string) Command {
		c := put(key, "v")
		c.Put.Session = session
		return c
	}
	mustApply(t, s, tied("1", a), tied("2", a), tied("3", a), tied("4", a), tied("4", b), put("2", ""), del("3"),
		tied("5", b), tied("1", a))
	mustApply(t, s, end(CauseSessionEnded, a))
	items, _ := s.View().List("", "", 0)
	var left []string
	for _, it := range items {
		left = append(left, it.Key+":"+it.Session)
	}
	if got, want := strings.Join(left, " "), "2: 4:"+b+" 5:"+b; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	if keys := s.View().OwnedKeys(b, 9); keys != 2 {
		t.Fatal(keys)
	}
}

func campaignWith(role, session string, change func(*RoleCampaign)) Command {
	p := &RoleCampaign{Role: role, Session: session, Wait: true}
	change(p)
	return Command{Kind: KindRoleCampaign, RoleCampaign: p}
}

func TestCampaignWithoutWaiting(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a, b := newSession(t, s, "a"), newSession(t, s, "b")
	now := func(c *RoleCampaign) { c.Wait = false }
	mustApply(t, s, campaignWith("r", a, now))
	r := apply(s, campaignWith("r", b, now))[0]
	if r.Err != nil || r.Role.Current.Session != a || r.Role.Waits(b) {
		t.Fatalf("%+v", r)
	}
	mustApply(t, s, resign("r", a))
	if holderOf(s, "r") != "" {
		t.Fatal("a candidate that does not wait was elected later")
	}
}

func TestTakeoverDelay(t *testing.T) {
	t.Parallel()
	slow := func(c *RoleCampaign) { c.TakeoverDelay = time.Second }
	s := New(Options{})
	a, b, c := newSession(t, s, "a"), newSession(t, s, "b"), newSession(t, s, "c")
	campaign(t, s, "r", a)
	mustApply(t, s, campaignWith("r", b, slow))
	campaign(t, s, "r", c)
	mustApply(t, s, resign("r", a))
	if holderOf(s, "r") != "b" {
		t.Fatal("a voluntary loss needs no delay")
	}
	mustApply(t, s, campaignWith("r", a, slow), campaignWith("r", c, slow))
	mustApply(t, s, end(CauseExpired, b))
	r, _ := s.View().Role("r")
	if r.Held() || !r.TakeoverPending {
		t.Fatalf("elected without the delay: %+v", r)
	}
	elect := func(since uint64) Command {
		return Command{Kind: KindRoleElect, RoleElect: &RoleElect{Roles: []ElectableRole{{"r", since}}}}
	}
	mustApply(t, s, elect(r.StateRevision-1))
	if holderOf(s, "r") != "" {
		t.Fatal("elected for a different vacancy")
	}
	d := newSession(t, s, "d")
	campaign(t, s, "r", d) // wants no delay, and is not first
	if holderOf(s, "r") != "" {
		t.Fatal("a later candidate was elected first")
	}
	mustApply(t, s, elect(r.StateRevision))
	if holderOf(s, "r") != "c" {
		t.Fatal(holderOf(s, "r"))
	}
	mustApply(t, s, elect(r.StateRevision)) // late: it is held
	mustApply(t, s, end(CauseDisconnected, c))
	if holderOf(s, "r") != "" {
		t.Fatal("no takeover delay after a lost connection")
	}
	mustApply(t, s, Command{Kind: KindRoleWithdraw, RoleWithdraw: &RoleWithdraw{Role: "r", Session: a}})
	if holderOf(s, "r") != "d" {
		t.Fatal("the next candidate has no delay")
	}
	mustApply(t, s, end(CauseExpired, d))
	e := newSession(t, s, "e")
	mustApply(t, s, campaignWith("r", e, slow))
	if holderOf(s, "r") != "e" {
		t.Fatal("a candidate for a vacant role with an empty queue must be elected immediately")
	}
}

func TestIneligibleCandidates(t *testing.T) {
	t.Parallel()
	not := func(c *RoleCampaign) { c.Ineligible = true }
	s := New(Options{})
	a, b, c := newSession(t, s, "a"), newSession(t, s, "b"), newSession(t, s, "c")
	mustApply(t, s, campaignWith("r", a, not))
	if holderOf(s, "r") != "" {
		t.Fatal("elected")
	}
	campaign(t, s, "r", b)
	mustApply(t, s, campaignWith("r", c, not))
	wantCode(t, apply(s, transferRole("r", a))[0].Err, cluster.CodeTransferFailed)
	mustApply(t, s, resign("r", b))
	if holderOf(s, "r") != "" {
		t.Fatal("elected")
	}
	mustApply(t, s, campaignWith("r", c, func(*RoleCampaign) {}))
	if holderOf(s, "r") != "c" {
		t.Fatal("a candidate that becomes eligible must be elected immediately")
	}
}

func transferRole(role, to string) Command {
	return Command{Kind: KindRoleTransfer, RoleTransfer: &RoleTransfer{Role: role, ToSession: to}}
}

func TestTransferRole(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a, b, c := newSession(t, s, "a"), newSession(t, s, "b"), newSession(t, s, "c")
	wantCode(t, apply(s, transferRole("r", ""))[0].Err, cluster.CodeBadRequest)
	wantCode(t, apply(s, transferRole("r", a))[0].Err, cluster.CodeBadRequest)
	for _, id := range []string{a, b, c} {
		campaign(t, s, "r", id)
	}
	mustApply(t, s, transferRole("r", c), transferRole("r", c), transferRole("r", ""))
	if got := describeEvents(roleEvents(t, s, "")); got != "+r/a -transferred:r/a +r/c -evicted:r/c +r/b" {
		t.Fatal(got)
	}
	planned := transferRole("r", "")
	planned.RoleTransfer.IfStateRevision = 1
	wantCode(t, apply(s, planned)[0].Err, cluster.CodeTermStale)
	r, _ := s.View().Role("r")
	planned.RoleTransfer.IfStateRevision = r.StateRevision
	mustApply(t, s, planned)
}

func revoking(role, to string) Command {
	c := transferRole(role, to)
	c.RoleTransfer.AwaitPreviousHolder = true
	return c
}

// A session from which a role was revoked loses it immediately. The next candidate is elected only when that
// session has acknowledged or ended.
func TestTransfer_WaitsForPreviousHolder(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		transfer Command
		over     func(a string) Command
		events   string
	}{
		"evicted, resigns": {
			revoking("r", ""), func(a string) Command { return resign("r", a) },
			"+r/a -evicted:r/a +r/b",
		},
		"evicted, ends": {
			revoking("r", ""), func(a string) Command { return end(CauseExpired, a) },
			"+r/a -evicted:r/a +r/b",
		},
		"transferred, resigns": {
			revoking("r", "c"), func(a string) Command { return resign("r", a) },
			"+r/a -transferred:r/a +r/c",
		},
		"transferred, ends": {
			revoking("r", "c"), func(a string) Command { return end(CauseSessionEnded, a) },
			"+r/a -transferred:r/a +r/c",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Options{})
			a, b, c := newSession(t, s, "a"), newSession(t, s, "b"), newSession(t, s, "c")
			token := campaign(t, s, "r", a).Current.Token
			campaign(t, s, "r", b)
			mustApply(t, s, campaignWith("r", c, func(p *RoleCampaign) { p.TakeoverDelay = time.Hour }))
			if tt.transfer.RoleTransfer.ToSession != "" {
				tt.transfer.RoleTransfer.ToSession = c
			}
			fenced := put("k", "v")
			fenced.Fence = &FencingToken{Role: "r", Token: token}
			mustApply(t, s, fenced, tt.transfer)
			wantCode(t, apply(s, fenced)[0].Err, cluster.CodeFenced)
			// Other commands do not elect anyone meanwhile.
			d := newSession(t, s, "d")
			campaign(t, s, "r", d)
			mustApply(t, s, end(CauseExpired, d))
			campaign(t, s, "r", a)
			mustApply(t, s, Command{Kind: KindRoleWithdraw, RoleWithdraw: &RoleWithdraw{Role: "r", Session: a}})
			r, _ := s.View().Role("r")
			mustApply(t, s,
				Command{Kind: KindRoleElect, RoleElect: &RoleElect{Roles: []ElectableRole{{"r", r.StateRevision}}}})
			r, _ = s.View().Role("r")
			if r.Held() || r.RevokedFrom != a || len(s.View().Revocations(a)) != 1 {
				t.Fatalf("%+v", r)
			}
			restore(t, s, snapshotOf(t, s))
			mustApply(t, s, tt.over(a))
			if got := describeEvents(roleEvents(t, s, "r")); got != tt.events {
				t.Fatalf("got  %s\nwant %s", got, tt.events)
			}
			if len(s.View().Revocations(a)) != 0 {
				t.Fatal("the revocation is still pending")
			}
		})
	}
}

// A late release does not end a later tenure.
func TestRelease_OfOneTenure(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a, b := newSession(t, s, "a"), newSession(t, s, "b")
	of := func(token uint64) Command {
		c := resign("r", a)
		c.RoleRelease.Token = token
		return c
	}
	first := campaign(t, s, "r", a).Current.Token
	campaign(t, s, "r", b)
	mustApply(t, s, revoking("r", ""))
	wantCode(t, apply(s, of(first+1))[0].Err, cluster.CodeFenced)
	mustApply(t, s, of(first))
	wantCode(t, apply(s, of(first))[0].Err, cluster.CodeFenced)
	campaign(t, s, "r", a)
	wantCode(t, apply(s, of(first))[0].Err, cluster.CodeFenced)
	mustApply(t, s, resign("r", b))
	wantCode(t, apply(s, of(first))[0].Err, cluster.CodeFenced)
	r, _ := s.View().Role("r")
	if r.Current.Session != a {
		t.Fatalf("%+v", r)
	}
	mustApply(t, s, of(r.Current.Token))
	if got := describeEvents(roleEvents(t, s, "r")); got != "+r/a -evicted:r/a +r/b -resigned:r/b +r/a -resigned:r/a" {
		t.Fatal(got)
	}
	for c, want := range map[*Command]uint32{
		ptr(of(0)): 1, ptr(of(1)): 3, ptr(transferRole("r", "")): 1,
		ptr(revoking("r", "")): 3,
	} {
		if got := c.MinVersion(); got != want {
			t.Errorf("%+v needs version %d, want %d", c.payload(), got, want)
		}
	}
}

// The session from which a role was revoked may be elected again without an acknowledgement: there is no second
// holder.
func TestRevokedSessionCanBeElectedAgain(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a := newSession(t, s, "a")
	token := campaign(t, s, "r", a).Current.Token
	mustApply(t, s, revoking("r", ""))
	if r := campaign(t, s, "r", a); r.Current.Token <= token || r.RevokedFrom != "" ||
		len(s.View().Revocations(a)) != 0 {
		t.Fatalf("%+v", r)
	}
	mustApply(t, s, end(CauseExpired, a))
}

// A backup brings no session, role or owned key, and does not reuse tokens.
func TestRestoreEndsSessions(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a := newSession(t, s, "a")
	token := campaign(t, s, "r", a).Current.Token
	tied := put("tied", "v")
	tied.Put.Session = a
	mustApply(t, s, put("free", "v"), tied)
	backup := snapshotOf(t, s)
	b := newSession(t, s, "b")
	campaign(t, s, "r", b)
	campaign(t, s, "queue-only", b)
	campaign(t, s, "other", b)
	watching, err := s.RoleFeed().Cursor("", s.View().Revision())
	if err != nil {
		t.Fatal(err)
	}
	from, err := ReadBackup(bytes.NewReader(backup))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := MergeBackup(s.Snapshot(), from, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	if _, err := merged.WriteTo(&raw); err != nil {
		t.Fatal(err)
	}
	restore(t, s, raw.Bytes())
	v := s.View()
	if v.Sessions() != 0 || v.keys.len() != 1 || v.bytes != 5 || v.ownership.len() != 0 {
		t.Fatalf("%d sessions, %d keys, %d bytes, %d index entries", v.Sessions(), v.keys.len(), v.bytes,
			v.ownership.len())
	}
	for _, name := range []string{"r", "other"} {
		r, _ := v.Role(name)
		if r == nil || r.Held() || len(r.Queue) != 0 || r.History[len(r.History)-1].Cause != CauseRestored {
			t.Fatalf("%s: %+v", name, r)
		}
	}
	if _, err := watching.Next(t.Context(), 1); !cluster.IsCode(err, cluster.CodeHistoryCompacted) {
		t.Fatal(err)
	}
	c := newSession(t, s, "c")
	since := campaign(t, s, "r", c).StateRevision
	mustApply(t, s, elect("r", since))
	if r, _ := s.View().Role("r"); r.Current.Session != c || r.Current.Token <= token {
		t.Fatalf("%+v after token %d", r, token)
	}
	wantCode(t, apply(s, tied)[0].Err, cluster.CodeSessionEnded)
}

func TestRoleLimits(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	for name, c := range map[string]Command{
		"nonce": {Kind: KindSessionCreate, SessionCreate: &SessionCreate{Nonce: "ABCDEFGHI", TTL: MinSessionTTL}},
		"ttl_ms": {
			Kind:          KindSessionCreate,
			SessionCreate: &SessionCreate{Nonce: "abcdefgh", TTL: MinSessionTTL - 1},
		},
		"name": {
			Kind:          KindSessionCreate,
			SessionCreate: &SessionCreate{Nonce: "abcdefgh", TTL: MinSessionTTL, Name: long},
		},
		"meta": {
			Kind:          KindSessionCreate,
			SessionCreate: &SessionCreate{Nonce: "abcdefgh", TTL: MinSessionTTL, Meta: map[string]string{"a": long}},
		},
		"session_ids":       end(CauseExpired),
		"cause":             end(CauseResigned, "s"),
		"role":              campaignWith("a/b", "s", func(*RoleCampaign) {}),
		"session_id":        campaignWith("r", "", func(*RoleCampaign) {}),
		"value":             campaignWith("r", "s", func(c *RoleCampaign) { c.Value = long }),
		"takeover_delay_ms": campaignWith("r", "s", func(c *RoleCampaign) { c.TakeoverDelay = -1 }),
		"to_session_id":     transferRole("r", long),
		"idempotency key": {
			Kind: KindSessionCreate, Idempotency: &Idempotency{Key: "k"},
			SessionCreate: &SessionCreate{Nonce: "abcdefgh", TTL: MinSessionTTL},
		},
	} {
		err := c.Validate()
		wantCode(t, err, cluster.CodeBadRequest)
		if !strings.HasPrefix(err.Detail, name+":") {
			t.Errorf("%s: %s", name, err.Detail)
		}
	}
}

// There is room for another role while some are vacant. An evicted role does not reuse tokens.
func TestVacantRolesAreEvicted(t *testing.T) {
	t.Parallel()
	s := New(Options{HistoryRevisions: 100})
	a := newSession(t, s, "a")
	var cmds []Command
	for i := range MaxRoles {
		cmds = append(cmds, campaignWith(fmt.Sprint("role", i), a, func(*RoleCampaign) {}))
	}
	mustApply(t, s, cmds...)
	wantCode(t, apply(s, campaignWith("more", a, func(*RoleCampaign) {}))[0].Err, cluster.CodeBusy)
	role7, _ := s.View().Role("role7")
	mustApply(t, s, resign("role7", a), resign("role8", a), revoking("role9", ""))
	mustApply(t, s, campaignWith("more", a, func(*RoleCampaign) {}))
	if _, known := s.View().Role("role7"); known || s.View().Roles() != MaxRoles-1 {
		t.Fatalf("%d roles", s.View().Roles())
	}
	if r, known := s.View().Role("role9"); !known || r.RevokedFrom != a {
		t.Fatal("a revoked role was evicted")
	}
	mustApply(t, s, campaignWith("role7", a, func(*RoleCampaign) {}))
	if r, _ := s.View().Role("role7"); r.Current.Token <= role7.Current.Token {
		t.Fatalf("token %d after %d", r.Current.Token, role7.Current.Token)
	}
	restore(t, New(Options{}), snapshotOf(t, s))
}
