package state

import (
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"

	"northstar/cluster"
)

// Limits of sessions.
const (
	MaxSessions    = 200_000
	MinSessionTTL  = 500 * time.Millisecond
	MaxSessionTTL  = 24 * time.Hour
	MaxSessionName = 256  // bytes
	MaxSessionMeta = 4096 // bytes of all names and values
	MaxOwner       = 256  // bytes of Session.Owner
	MaxSessionsEnd = 1000 // sessions that one command ends

	// SessionRevisionDigits is the number of hexadecimal digits at the start of a session's ID: the revision of its
	// creation.
	SessionRevisionDigits = 14
)

// Session represents a live client. It owns roles, keys and registered nodes, which end with it. The state does not
// know when a session expires: the leader measures the TTL with its own clock.
type Session struct {
	ID        string
	Name      string // human-readable; by default the ID
	TTL       time.Duration
	Meta      map[string]string // must not be changed
	CreatedAt int64             // Unix nanoseconds
	// Owner is the identity that made the session, such as "client alice". "": unknown, made before ownerVersion.
	Owner string
	// Lease is the number of a lease, 0 if the session is none.
	Lease int64
}

// Renewed is the outcome of renewing sessions.
type Renewed struct {
	Alive   []*Session   // renewed
	Ended   []string     // IDs of sessions that no longer exist
	Revoked []Revocation // live but not renewed: see View.Revocations
}

// Revocation is a tenure that an operator took from a session.
type Revocation struct {
	Session, Role string
	Token         uint64
}

// Cause is why a tenure or a session ended.
type Cause string

// The causes. A takeover delay applies only after an involuntary end: the session expired or its connection broke.
const (
	CauseExpired      Cause = "expired"       // the session was not renewed for its TTL
	CauseDisconnected Cause = "disconnected"  // the connection to which the session was attached closed
	CauseSessionEnded Cause = "session_ended" // a client ended the session
	CauseResigned     Cause = "resigned"
	CauseEvicted      Cause = "evicted"
	CauseTransferred  Cause = "transferred"
	CauseRestored     Cause = "restored"  // a backup was restored
	CauseRecovered    Cause = "recovered" // the cluster recovered from a lost quorum
)

func (c Cause) involuntary() bool { return c == CauseExpired || c == CauseDisconnected }

// SessionCreate starts a session. Its ID begins with the revision of its creation: unique, and sorted by age.
type SessionCreate struct {
	Nonce string // random, of a-z and 0-9; makes the ID hard to guess
	Name  string
	TTL   time.Duration // whole milliseconds
	Meta  map[string]string
	Owner string // Session.Owner
}

// SessionEnd ends sessions and releases all that they own. It is CodeSessionEnded if none of them exists. A proposer of
// several sessions keeps the sum of their View.OwnedKeys within MaxTxnChanges.
type SessionEnd struct {
	IDs   []string // 1 to MaxSessionsEnd
	Cause Cause    // CauseExpired, CauseDisconnected or CauseSessionEnded
}

// Session returns a live session.
func (v *View) Session(id string) (*Session, bool) { return v.sessions.get(id) }

// Sessions returns the number of live sessions.
func (v *View) Sessions() int { return v.sessions.len() }

// SessionsAfter yields the sessions with an ID greater than after, oldest first.
func (v *View) SessionsAfter(after string) iter.Seq[*Session] {
	return v.sessions.after(after)
}

const nonceForm = `[a-z0-9]{8,32}`

var noncePattern = regexp.MustCompile("^" + nonceForm + "$")

func (p *SessionCreate) check() *cluster.Error {
	if !noncePattern.MatchString(p.Nonce) {
		return badRequest("nonce: must be 8 to 32 of a-z and 0-9")
	}
	return firstError(checkUTF8("name", p.Name, MaxSessionName),
		checkMillis("ttl_ms", p.TTL, MinSessionTTL, MaxSessionTTL), checkMeta(p.Meta),
		checkUTF8("owner", p.Owner, MaxOwner))
}

// checkMillis checks a duration of whole milliseconds.
func checkMillis(field string, d, least, most time.Duration) *cluster.Error {
	if d < least || d > most || d%time.Millisecond != 0 {
		return badRequest("%s: must be %d to %d (got %d)", field, least.Milliseconds(), most.Milliseconds(),
			d.Milliseconds())
	}
	return nil
}

func checkMeta(meta map[string]string) *cluster.Error {
	size := 0
	for _, name := range sortedKeys(meta) {
		if name == "" || !utf8.ValidString(name) || !utf8.ValidString(meta[name]) {
			return badRequest("meta: %q: must be UTF-8, with a name that is not empty", name)
		}
		size += len(name) + len(meta[name])
	}
	if size > MaxSessionMeta {
		return badRequest("meta: must be at most %d bytes in all (got %d)", MaxSessionMeta, size)
	}
	return nil
}

func (p *SessionEnd) check() *cluster.Error {
	err := firstError(
		checkRange("session_ids", len(p.IDs), 1, MaxSessionsEnd),
		checkEach(p.IDs, func(id string) *cluster.Error { return CheckSession("session_ids", id) }))
	if err != nil {
		return err
	}
	switch p.Cause {
	case CauseExpired, CauseDisconnected, CauseSessionEnded:
		return nil
	}
	return badRequest("cause: %q does not end a session", p.Cause)
}

func (p *SessionCreate) apply(w *txn) Result {
	s := &Session{
		ID:   fmt.Sprintf("%0*x%s", SessionRevisionDigits, w.revision+1, p.Nonce),
		Name: p.Name, TTL: p.TTL, Meta: maps.Clone(p.Meta),
		CreatedAt: w.now, Owner: p.Owner,
	}
	if s.Name == "" {
		s.Name = s.ID
	}
	if err := w.addSession(s); err != nil {
		return Result{Err: err}
	}
	w.revision++
	return Result{Revision: w.revision, Created: true, Session: s}
}

// addSession adds a session if the limits allow it.
func (w *txn) addSession(s *Session) *cluster.Error {
	if w.write.sessions.len() >= MaxSessions {
		return cluster.Errorf(cluster.CodeBusy, "there are %d sessions already", MaxSessions)
	}
	err := firstError(
		w.shareLeft(s.Owner, "sessions", w.limits.SessionsPerIdentity, func(n share) int { return n.sessions }),
		w.room(s.footprint()))
	if err != nil {
		return err
	}
	w.stateBytes += s.footprint()
	w.addShare(s.Owner, share{sessions: 1})
	w.write.sessions.put(s.ID, s)
	return nil
}

// apply ends all sessions, and removes them from all queues, before it releases anything: none of them may be elected
// to a role of another.
func (p *SessionEnd) apply(w *txn) Result {
	var ended []string
	for _, id := range p.IDs {
		if s, existed := w.write.sessions.remove(id); existed {
			w.stateBytes -= s.footprint()
			w.addShare(s.Owner, share{sessions: -1})
			w.write.keyCounts.remove(id)
			if s.Lease != 0 {
				w.write.leases.remove(leaseKey(s.Lease))
			}
			ended = append(ended, id)
		}
	}
	if len(ended) == 0 {
		return Result{Err: sessionEnded(p.IDs[0])}
	}
	w.withdrawEnded(ended)
	for _, id := range ended {
		w.releaseAll(id, p.Cause)
	}
	return Result{Revision: w.revision}
}

// withdrawEnded removes ended sessions from all queues. A role elects its next candidate when all of them have left its
// queue. Before RolesVersion it did so after each of them. So it could elect one that ended too, and that election
// ended the wait for a takeover delay.
func (w *txn) withdrawEnded(ended []string) {
	var roles []string
	for _, id := range ended {
		for _, role := range w.ownedBy(id, ownedCandidacy) {
			if w.version >= RolesVersion {
				roles = append(roles, role)
			} else {
				w.withdraw(role, id)
			}
		}
	}
	slices.Sort(roles)
	for _, name := range slices.Compact(roles) {
		r := w.role(name)
		r.Queue = slices.DeleteFunc(slices.Clone(r.Queue), func(c Candidate) bool {
			_, lives := w.write.sessions.get(c.Session)
			if !lives {
				w.unlink(c.Session, ownedCandidacy, name)
			}
			return !lives
		})
		w.setRole(r, false)
	}
}

// releaseAll releases what an ended session owns.
func (w *txn) releaseAll(id string, cause Cause) {
	for _, role := range w.ownedBy(id, ownedRole) {
		w.vacate(role, cause)
	}
	for _, role := range w.ownedBy(id, ownedRevocation) {
		w.acknowledgeRevocation(role)
	}
	if keys := w.ownedBy(id, ownedKey); LeaseOf(id) != 0 {
		w.deleteKeys(keys)
	} else {
		for _, key := range keys {
			w.deleteKey(key)
		}
	}
	for _, node := range w.ownedBy(id, ownedNode) {
		w.markNodeDead(node)
	}
}

func sessionEnded(id string) *cluster.Error {
	return cluster.Errorf(cluster.CodeSessionEnded, "session %q does not exist: it has ended, or never began", id)
}

// liveSession returns CodeSessionEnded for a session that does not exist.
func (w *txn) liveSession(id string) (*Session, *cluster.Error) {
	s, ok := w.write.sessions.get(id)
	if !ok {
		return nil, sessionEnded(id)
	}
	return s, nil
}
