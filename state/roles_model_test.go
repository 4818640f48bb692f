package state

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// roleModel is a simple model of sessions and roles: names of sessions in order of arrival.
type roleModel struct {
	living     map[string]bool
	holder     map[string]string
	queue      map[string][]string
	slow       map[string]bool // role/session: wants a takeover delay
	ineligible map[string]bool // role/session: ineligible
	waits      map[string]bool // role: waits for a takeover delay
	revoked    map[string]string
	lockDelay  map[string]bool // role: has a lock delay after a restore
	required   map[string]bool // role: its last campaign has asked for an alert
	hadHolder  map[string]bool // role: some tenure has ended
	upgraded   bool            // decides by RolesVersion
	keys       map[string]string
	events     []string
}

func newRoleModel() *roleModel {
	return &roleModel{
		living: map[string]bool{}, holder: map[string]string{}, queue: map[string][]string{}, slow: map[string]bool{},
		ineligible: map[string]bool{}, waits: map[string]bool{}, revoked: map[string]string{},
		lockDelay: map[string]bool{}, required: map[string]bool{}, hadHolder: map[string]bool{},
		keys: map[string]string{},
	}
}

func (m *roleModel) campaign(role, s string, wait, slow, ineligible, required bool) {
	if !m.living[s] {
		return
	}
	m.required[role] = required
	if m.holder[role] == s {
		return
	}
	queued := slices.Contains(m.queue[role], s)
	m.slow[role+"/"+s], m.ineligible[role+"/"+s] = slow, ineligible
	if !queued {
		m.queue[role] = append(m.queue[role], s)
	}
	m.electNext(role, false)
	if !wait && !queued {
		m.withdraw(role, s)
	}
}

func (m *roleModel) withdraw(role, s string) {
	m.queue[role] = slices.DeleteFunc(m.queue[role], func(q string) bool { return q == s })
	m.electNext(role, false)
}

func (m *roleModel) electNext(role string, over bool) {
	if m.holder[role] != "" {
		return
	}
	for _, s := range m.queue[role] {
		if m.ineligible[role+"/"+s] {
			continue
		}
		if m.lockDelay[role] || m.revoked[role] != "" && m.revoked[role] != s {
			return
		}
		if m.waits[role] && !over && m.slow[role+"/"+s] {
			return
		}
		m.elect(role, s)
		return
	}
	m.waits[role] = false
}

func (m *roleModel) elect(role, s string) {
	m.queue[role] = slices.DeleteFunc(m.queue[role], func(q string) bool { return q == s })
	m.holder[role], m.waits[role], m.revoked[role] = s, false, ""
	m.events = append(m.events, "+"+role+"/"+s)
}

// endHolder ends the tenure of the holder as an operator does. With revoke the next candidate must wait.
func (m *roleModel) endHolder(role string, cause Cause, revoke bool) {
	if revoke {
		m.revoked[role] = m.holder[role]
	}
	m.vacate(role, cause)
}

func (m *roleModel) clearRevocation(role string) {
	m.revoked[role] = ""
	m.electNext(role, false)
}

func (m *roleModel) vacate(role string, cause Cause) {
	m.events = append(m.events, "-"+string(cause)+":"+role+"/"+m.holder[role])
	m.holder[role], m.waits[role], m.hadHolder[role] = "", cause.involuntary(), true
}

// forget drops the marks of roles without a record.
func (m *roleModel) forget() {
	for _, role := range modelRoles {
		if m.holder[role] == "" && len(m.queue[role]) == 0 && !m.hadHolder[role] && !m.lockDelay[role] && !m.upgraded {
			m.required[role] = false
		}
	}
}

func (m *roleModel) end(cause Cause, sessions ...string) {
	roles := sortedKeys(m.queue)
	for _, s := range sessions {
		delete(m.living, s)
	}
	m.leaveQueues(roles, sessions)
	for _, s := range sessions {
		for _, role := range roles {
			if m.holder[role] == s {
				m.vacate(role, cause)
				m.electNext(role, false)
			}
		}
		for _, role := range roles {
			if m.revoked[role] == s {
				m.clearRevocation(role)
			}
		}
		for key, owner := range m.keys {
			if owner == s {
				delete(m.keys, key)
			}
		}
	}
}

// leaveQueues removes sessions from all queues. An older build may elect one of them in between.
func (m *roleModel) leaveQueues(roles, sessions []string) {
	if m.upgraded {
		for _, role := range roles {
			m.queue[role] = slices.DeleteFunc(m.queue[role],
				func(q string) bool { return slices.Contains(sessions, q) })
			m.electNext(role, false)
		}
		return
	}
	for _, s := range sessions {
		for _, role := range roles {
			if slices.Contains(m.queue[role], s) {
				m.withdraw(role, s)
			}
		}
	}
}

// roleRun drives a model and two states, one of which goes through snapshots.
type roleRun struct {
	t             *rapid.T
	m             *roleModel
	steady, moved *State
	ids           map[string]string // name of a session to its ID
	now           int64
	tokens        map[string]uint64 // highest token of each role
	cursor        *Cursor
	got           []string
	before        *View
	print         [32]byte // of before, when it was taken
}

func (r *roleRun) apply(c Command) {
	r.now += int64(time.Second)
	c.Now = r.now
	index := r.steady.View().AppliedIndex() + 1
	a := r.steady.Apply(index, 1, throughLog(r.t, []Command{c}))[0]
	b := r.moved.Apply(index, 1, throughLog(r.t, []Command{c}))[0]
	if (a.Err == nil) != (b.Err == nil) || r.steady.View().Fingerprint() != r.moved.View().Fingerprint() {
		r.t.Fatalf("two nodes differ after %+v", c)
	}
	if a.Session != nil {
		r.ids[a.Session.Name] = a.Session.ID
	}
}

var modelRoles = []string{"r", "role", "x"}

func (r *roleRun) step(t *rapid.T) {
	session := fmt.Sprint("s", rapid.IntRange(0, 4).Draw(t, "session"))
	role := rapid.SampledFrom(modelRoles).Draw(t, "role")
	id := r.ids[session]
	if id == "" {
		id = "none"
	}
	switch rapid.IntRange(0, 12).Draw(t, "what") {
	case 0, 1:
		r.begin(session)
	case 2, 3, 4:
		wait, slow, ineligible := rapid.IntRange(0, 4).Draw(t, "wait") != 3, rapid.Bool().Draw(t, "slow"),
			rapid.IntRange(0, 4).Draw(t, "ineligible") == 3
		required := rapid.Bool().Draw(t, "required")
		r.m.campaign(role, session, wait, slow, ineligible, required)
		r.apply(campaignWith(role, id, func(c *RoleCampaign) {
			c.Wait, c.Ineligible, c.Required = wait, ineligible, required
			if slow {
				c.TakeoverDelay = time.Second
			}
		}))
	case 5:
		switch session {
		case r.m.holder[role]:
			r.m.vacate(role, CauseResigned)
			r.m.electNext(role, false)
		case r.m.revoked[role]:
			r.m.clearRevocation(role)
		default:
			r.m.withdraw(role, session)
		}
		r.apply(resign(role, id))
	case 6:
		cause := rapid.SampledFrom([]Cause{CauseExpired, CauseDisconnected, CauseSessionEnded}).Draw(t, "cause")
		ending, ids := []string{}, []string{}
		candidates := []string{"s0", "s1", "s2"}
		if rapid.Bool().Draw(t, "of the queue") {
			candidates = r.m.queue[role]
		}
		for _, s := range candidates[:min(len(candidates), rapid.IntRange(1, 3).Draw(t, "ending"))] {
			if r.m.living[s] {
				ending, ids = append(ending, s), append(ids, r.ids[s])
			}
		}
		if len(ids) > 0 {
			r.m.end(cause, ending...)
			r.apply(end(cause, ids...))
		}
	case 7:
		r.transfer(role, session, id)
	case 8:
		if rec, ok := r.steady.View().Role(role); ok && (r.m.waits[role] || r.m.lockDelay[role]) {
			r.m.lockDelay[role] = false
			r.m.electNext(role, true)
			r.apply(Command{
				Kind:      KindRoleElect,
				RoleElect: &RoleElect{Roles: []ElectableRole{{role, rec.StateRevision}}},
			})
		}
	case 9:
		key := rapid.SampledFrom([]string{"k1", "k2", "k3"}).Draw(t, "key")
		c := put(key, "v")
		c.Put.Session = id
		if r.m.living[session] {
			r.m.keys[key] = session
		}
		r.apply(c)
	case 10:
		raw := snapshot(t, r.moved)
		r.moved = New(Options{})
		read(t, r.moved, raw)
	case 11:
		r.m.withdraw(role, session)
		r.apply(Command{Kind: KindRoleWithdraw, RoleWithdraw: &RoleWithdraw{Role: role, Session: id}})
	case 12:
		r.m.upgraded = true
		r.apply(rolesVersion())
	}
	r.m.forget()
}

// begin begins a session that does not live.
func (r *roleRun) begin(session string) {
	if !r.m.living[session] {
		r.m.living[session] = true
		r.apply(ownedSession(session, []string{"", "client a", "client b"}[session[len(session)-1]%3]))
	}
}

func (r *roleRun) transfer(role, session, id string) {
	revoke := rapid.IntRange(0, 3).Draw(r.t, "revoke") > 0
	switch {
	case rapid.Bool().Draw(r.t, "evict"):
		if r.m.holder[role] != "" {
			r.m.endHolder(role, CauseEvicted, revoke)
			r.m.electNext(role, false)
		}
		id = ""
	case slices.Contains(r.m.queue[role], session) && !r.m.ineligible[role+"/"+session]:
		if r.m.holder[role] != "" {
			r.m.endHolder(role, CauseTransferred, revoke)
		}
		r.m.queue[role] = slices.DeleteFunc(r.m.queue[role], func(q string) bool { return q == session })
		r.m.queue[role] = slices.Insert(r.m.queue[role], 0, session)
		r.m.waits[role] = false
		r.m.electNext(role, false)
	}
	cmd := transferRole(role, id)
	cmd.RoleTransfer.AwaitPreviousHolder = revoke
	r.apply(cmd)
}

// check compares the states with the model. Tokens must always grow, which the model does not know.
func (r *roleRun) check() {
	v := r.moved.View()
	for _, role := range modelRoles {
		rec, ok := v.Role(role)
		if !ok {
			rec = &Role{}
		}
		var queue []string
		for _, c := range rec.Queue {
			queue = append(queue, c.Name)
		}
		if rec.Current.Holder != r.m.holder[role] || !slices.Equal(queue, r.m.queue[role]) ||
			rec.TakeoverPending != r.m.waits[role] {
			r.t.Fatalf("%s: holder %q, queue %q, delayed %v; model %q, %q, %v", role, rec.Current.Holder, queue,
				rec.TakeoverPending, r.m.holder[role], r.m.queue[role], r.m.waits[role])
		}
		if r.nameOf(rec.RevokedFrom) != r.m.revoked[role] ||
			rec.RevokedFrom != "" && !slices.Contains(v.Revocations(rec.RevokedFrom),
				Revocation{rec.RevokedFrom, role, rec.History[len(rec.History)-1].Token}) {
			r.t.Fatalf("%s: revoked from %q, model %q", role, rec.RevokedFrom, r.m.revoked[role])
		}
		if rec.Required != r.m.required[role] {
			r.t.Fatalf("%s is required: %v, model %v", role, rec.Required, r.m.required[role])
		}
		if rec.LockDelay > 0 != r.m.lockDelay[role] {
			r.t.Fatalf("%s has lock delay %v, model %v", role, rec.LockDelay, r.m.lockDelay[role])
		}
		if rec.Held() && rec.Current.Token < r.tokens[role] {
			r.t.Fatalf("%s: token %d after %d", role, rec.Current.Token, r.tokens[role])
		}
	}
	if v.Sessions() != len(r.m.living) || v.keys.len() != len(r.m.keys) {
		r.t.Fatalf("%d sessions, %d keys; model %d, %d", v.Sessions(), v.keys.len(), len(r.m.living), len(r.m.keys))
	}
	for key, owner := range r.m.keys {
		if it, _ := v.Get(key); it.Session != r.ids[owner] {
			r.t.Fatalf("%s is tied to %q, want %s", key, it.Session, owner)
		}
	}
	r.checkIndex(v)
	if r.before.Fingerprint() != r.print {
		r.t.Fatal("an old view has changed")
	}
	r.before = r.steady.View()
	r.print = r.before.Fingerprint()
	r.watch()
}

// nameOf returns the name of a session that exists or existed.
func (r *roleRun) nameOf(id string) string {
	for name, x := range r.ids {
		if x == id {
			return name
		}
	}
	return id
}

// checkIndex compares the ownership index with keys, roles and nodes.
func (r *roleRun) checkIndex(v *View) {
	want, err := ownershipOf(v)
	if err != nil {
		r.t.Fatal(err)
	}
	if p := countsProblem(r.steady.View()); p != "" {
		r.t.Fatal(p)
	}
	if got, want := keysOf(r.steady.View().ownership), keysOf(want); !slices.Equal(got, want) {
		r.t.Fatalf("ownership %q, index %q", want, got)
	}
}

// watch reads the events of the watch and checks the order of tokens.
func (r *roleRun) watch() {
	for _, ev := range roleEventsSince(r.t, r.cursor) {
		r.got = append(r.got, describeEvents([]RoleEvent{ev}))
		if ev.Elected {
			if ev.Tenure.Token <= r.tokens[ev.Role] {
				r.t.Fatalf("%s: elected with token %d after %d", ev.Role, ev.Tenure.Token, r.tokens[ev.Role])
			}
			r.tokens[ev.Role] = ev.Tenure.Token
		}
	}
	if strings.Join(r.got, " ") != strings.Join(r.m.events, " ") {
		r.t.Fatalf("events %q\nmodel %q", r.got, r.m.events)
	}
}

func roleEventsSince(t *rapid.T, c *Cursor) (events []RoleEvent) {
	w := &watcher{cursor: c}
	w.each(t, func(ch Change) {
		ev, err := DecodeRoleEvent(ch.Value)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
	})
	return events
}

// restore restores a backup of the state on both nodes.
func (r *roleRun) restore() {
	from, err := ReadBackup(bytes.NewReader(snapshot(r.t, r.steady)))
	if err != nil {
		r.t.Fatal(err)
	}
	merged, err := MergeBackup(r.steady.Snapshot(), from, time.Time{})
	if err != nil {
		r.t.Fatal(err)
	}
	var raw bytes.Buffer
	if _, err := merged.WriteTo(&raw); err != nil {
		r.t.Fatal(err)
	}
	read(r.t, r.steady, raw.Bytes())
	read(r.t, r.moved, raw.Bytes())
	before := r.m
	r.m = newRoleModel()
	r.m.upgraded, r.m.required = before.upgraded, before.required
	for _, role := range modelRoles {
		r.m.hadHolder[role] = before.hadHolder[role] || before.holder[role] != ""
		r.m.lockDelay[role] = before.lockDelay[role] || before.holder[role] != "" || before.revoked[role] != ""
	}
	r.m.forget()
	r.got = nil
	r.follow()
}

func (r *roleRun) follow() {
	var err error
	if r.cursor, err = r.steady.RoleFeed().Cursor("", r.steady.View().Revision()); err != nil {
		r.t.Fatal(err)
	}
}

// A role goes to the first eligible candidate, has one holder at a time, and its tokens only grow. A session that
// ends releases what it owns and nothing else. A role is required as its last campaign said. Watchers get every event
// once and in order. All of that also holds across snapshots, installs and restores, and before RolesVersion.
func TestRolesAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := &roleRun{
			t: t, m: newRoleModel(), steady: New(Options{}), moved: New(Options{}), ids: map[string]string{},
			tokens: map[string]uint64{},
		}
		r.follow()
		if rapid.Bool().Draw(t, "upgraded") {
			r.m.upgraded = true
			r.apply(rolesVersion())
		}
		if rapid.Bool().Draw(t, "sessions") {
			for i := range 5 {
				r.begin(fmt.Sprint("s", i))
			}
		}
		r.before = r.steady.View()
		r.print = r.before.Fingerprint()
		for range rapid.IntRange(40, 90).Draw(t, "steps") {
			r.step(t)
			if rapid.IntRange(0, 30).Draw(t, "restore") == 13 { // rapid prefers small numbers
				r.restore()
			}
			r.check()
		}
	})
}
