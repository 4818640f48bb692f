package state

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"time"
	"unicode/utf8"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"northstar/cluster"
)

// Limits of sessions.
const (
	MaxSessions     = 200_000
	MinSessionTTL   = 500 * time.Millisecond
	MaxSessionTTL   = 24 * time.Hour
	MaxSessionName  = 256  // bytes
	MaxSessionMeta  = 4096 // bytes of all names and values
	MaxSessionsEnd  = 1000 // sessions that one command ends
	minSessionNonce = 8    // bytes
	maxSessionNonce = 32
)

// Session is a client's liveness. It holds roles, keys and registered nodes,
// which go with it. When it has not been renewed for its TTL is for the leader's
// clock to say: the state only knows that it lives.
type Session struct {
	ID        string
	Name      string // for people; the ID where none was given
	TTL       time.Duration
	Meta      map[string]string // must not be changed
	CreatedAt int64             // Unix nanoseconds
}

// Renewed is what became of renewals of sessions.
type Renewed struct {
	Alive   []*Session   // renewed
	Ended   []string     // IDs of those that do not live
	Revoked []Revocation // live, and were not renewed: see View.Parted
}

// Revocation is a tenure that was taken from a session by an operator.
type Revocation struct {
	Session, Role string
	Token         uint64
}

// Cause is why a tenure or a session ended.
type Cause string

// The causes. A loss is involuntary when the session expired or its connection
// broke: only then does a takeover delay apply.
const (
	CauseExpired      Cause = "expired"       // its session was not renewed for its TTL
	CauseDisconnected Cause = "disconnected"  // the connection that its session was attached by has ended
	CauseSessionEnded Cause = "session_ended" // its session was ended by a client
	CauseResigned     Cause = "resigned"
	CauseEvicted      Cause = "evicted"
	CauseTransferred  Cause = "transferred"
	CauseRestored     Cause = "restored"  // a backup was restored
	CauseRecovered    Cause = "recovered" // a lost quorum was recovered
)

func (c Cause) involuntary() bool { return c == CauseExpired || c == CauseDisconnected }

// SessionCreate starts a session. Result.Session is it. Its ID begins with the
// revision that it was made at, so that IDs sort by age and no two are the same.
type SessionCreate struct {
	Nonce string // random, of a-z and 0-9: what makes the ID hard to guess
	Name  string
	TTL   time.Duration // whole milliseconds
	Meta  map[string]string
}

// SessionEnd ends sessions and frees all that they hold. It is CodeSessionEnded
// when none of them lives.
type SessionEnd struct {
	IDs   []string // 1 to MaxSessionsEnd
	Cause Cause    // CauseExpired, CauseDisconnected or CauseSessionEnded
}

// Session gives a session that lives.
func (v *View) Session(id string) (*Session, bool) { return v.sessions.Get([]byte(id)) }

// Sessions counts the sessions that live.
func (v *View) Sessions() int { return v.sessions.Len() }

// SessionsAfter yields the sessions with an ID greater than after, the oldest
// first.
func (v *View) SessionsAfter(after string) iter.Seq[*Session] { return valuesAfter(v.sessions, after) }

func (p *SessionCreate) check() *cluster.Error {
	nonce := len(p.Nonce) >= minSessionNonce && len(p.Nonce) <= maxSessionNonce
	for _, b := range []byte(p.Nonce) {
		nonce = nonce && (b >= 'a' && b <= 'z' || b >= '0' && b <= '9')
	}
	if !nonce {
		return cluster.Errorf(cluster.CodeBadRequest, "nonce: want %d to %d of a-z and 0-9", minSessionNonce, maxSessionNonce)
	}
	if len(p.Name) > MaxSessionName || !utf8.ValidString(p.Name) {
		return cluster.Errorf(cluster.CodeBadRequest, "name: want at most %d bytes of UTF-8, got %d bytes", MaxSessionName, len(p.Name))
	}
	if p.TTL < MinSessionTTL || p.TTL > MaxSessionTTL || p.TTL%time.Millisecond != 0 {
		return cluster.Errorf(cluster.CodeBadRequest, "ttl_ms: want %d to %d, got %d", MinSessionTTL.Milliseconds(), MaxSessionTTL.Milliseconds(), p.TTL.Milliseconds())
	}
	return checkMeta(p.Meta)
}

func checkMeta(meta map[string]string) *cluster.Error {
	size := 0
	for _, name := range sortedKeys(meta) {
		if name == "" || !utf8.ValidString(name) || !utf8.ValidString(meta[name]) {
			return cluster.Errorf(cluster.CodeBadRequest, "meta: %q: want UTF-8, and a name that is not empty", name)
		}
		size += len(name) + len(meta[name])
	}
	if size > MaxSessionMeta {
		return cluster.Errorf(cluster.CodeBadRequest, "meta: want at most %d bytes in all, got %d", MaxSessionMeta, size)
	}
	return nil
}

func (p *SessionEnd) check() *cluster.Error {
	if n := len(p.IDs); n < 1 || n > MaxSessionsEnd {
		return cluster.Errorf(cluster.CodeBadRequest, "session_ids: want 1 to %d, got %d", MaxSessionsEnd, n)
	}
	for _, id := range p.IDs {
		if err := CheckSession("session_ids", id); err != nil {
			return err
		}
	}
	switch p.Cause {
	case CauseExpired, CauseDisconnected, CauseSessionEnded:
		return nil
	}
	return cluster.Errorf(cluster.CodeBadRequest, "cause: %q is none of a session's end", p.Cause)
}

// CheckSession checks the form of a session ID in a field of that name.
func CheckSession(field, id string) *cluster.Error {
	if len(id) < 1 || len(id) > MaxSession {
		return cluster.Errorf(cluster.CodeBadRequest, "%s: want 1 to %d bytes, got %d", field, MaxSession, len(id))
	}
	return nil
}

func (p *SessionCreate) apply(w *txn) Result {
	if w.sessions.Len()+w.newSessions >= MaxSessions {
		return Result{Err: cluster.Errorf(cluster.CodeBusy, "there are %d sessions already", MaxSessions)}
	}
	w.revision++
	s := &Session{ID: fmt.Sprintf("%014x%s", w.revision, p.Nonce), Name: p.Name, TTL: p.TTL, Meta: maps.Clone(p.Meta), CreatedAt: w.now}
	if s.Name == "" {
		s.Name = s.ID
	}
	w.writeSessions().Insert([]byte(s.ID), s)
	w.newSessions++
	return Result{Revision: w.revision, Created: true, Session: s}
}

// apply ends all sessions of the command before it frees anything, so that none
// of them is elected in the place of another.
func (p *SessionEnd) apply(w *txn) Result {
	var ended []*Session
	for _, id := range p.IDs {
		if s, lived := w.writeSessions().Delete([]byte(id)); lived {
			ended = append(ended, s)
			w.newSessions--
		}
	}
	if len(ended) == 0 {
		return Result{Err: sessionEnded(p.IDs[0])}
	}
	for _, s := range ended {
		w.leaveQueues(s.ID)
	}
	for _, s := range ended {
		w.releaseAll(s.ID, p.Cause)
	}
	return Result{Revision: w.revision}
}

// leaveQueues takes a session out of every queue that it stands in.
func (w *txn) leaveQueues(id string) {
	for _, role := range w.ownedBy(id, ownedCandidacy) {
		w.withdraw(role, id)
	}
}

// releaseAll frees what an ended session holds.
func (w *txn) releaseAll(id string, cause Cause) {
	for _, role := range w.ownedBy(id, ownedRole) {
		w.vacate(role, cause)
	}
	for _, role := range w.ownedBy(id, ownedRevocation) {
		w.acknowledgeRevocation(role)
	}
	for _, key := range w.ownedBy(id, ownedKey) {
		w.deleteKey([]byte(key))
	}
	for _, node := range w.ownedBy(id, ownedNode) {
		w.markNodeDead(node)
	}
}

func sessionEnded(id string) *cluster.Error {
	return cluster.Errorf(cluster.CodeSessionEnded, "session %q does not exist: it has ended, or never began", id)
}

// liveSession refuses a session that does not live.
func (w *txn) liveSession(id string) (*Session, *cluster.Error) {
	s, ok := w.writeSessions().Get([]byte(id))
	if !ok {
		return nil, sessionEnded(id)
	}
	return s, nil
}

func (w *txn) writeSessions() *iradix.Txn[*Session] { return open(&w.sessionsTxn, w.sessions) }

// A session's holdings are index entries: its ID, a NUL, what kind of thing and
// its name. Nothing else says what a session holds, so that a session may hold
// any number of keys, and it is never written to a snapshot: it follows from
// keys and roles.
type ownedKind byte

const (
	ownedCandidacy  ownedKind = 'c'
	ownedKey        ownedKind = 'k'
	ownedNode       ownedKind = 'n'
	ownedRevocation ownedKind = 'p' // a role that was taken from it
	ownedRole       ownedKind = 'r'
)

func ownershipKey(session string, h ownedKind, name string) []byte {
	b := make([]byte, 0, len(session)+2+len(name))
	b = append(b, session...)
	return append(append(b, 0, byte(h)), name...)
}

func splitOwnershipKey(k []byte) (session string, h ownedKind, name string) {
	at := bytes.IndexByte(k, 0)
	return string(k[:at]), ownedKind(k[at+1]), string(k[at+2:])
}

func (w *txn) writeOwnership() *iradix.Txn[struct{}] { return open(&w.ownershipTxn, w.ownership) }

func (w *txn) link(session string, h ownedKind, name string) {
	w.writeOwnership().Insert(ownershipKey(session, h, name), struct{}{})
}

func (w *txn) unlink(session string, h ownedKind, name string) {
	w.writeOwnership().Delete(ownershipKey(session, h, name))
}

// ownedBy lists what a session holds, in order of names.
func (w *txn) ownedBy(session string, h ownedKind) []string {
	return ownedNames(w.writeOwnership().Root(), session, h)
}

// OwnedBy lists the names of the roles, keys and nodes that a session holds.
func (v *View) OwnedBy(session string) (roles, keys, nodes []string) {
	root := v.ownership.Root()
	return ownedNames(root, session, ownedRole), ownedNames(root, session, ownedKey), ownedNames(root, session, ownedNode)
}

// RevokedFrom lists the tenures that were taken from a session and that it has not said
// to know of: until it has it must not be renewed.
func (v *View) Revocations(session string) []Revocation {
	var list []Revocation
	for _, name := range ownedNames(v.ownership.Root(), session, ownedRevocation) {
		if r, ok := v.Role(name); ok {
			list = append(list, Revocation{Session: session, Role: name, Token: r.tokenOf(session)})
		}
	}
	return list
}

func ownedNames(root *iradix.Node[struct{}], session string, h ownedKind) []string {
	prefix := ownershipKey(session, h, "")
	var names []string
	root.WalkPrefix(prefix, func(k []byte, _ struct{}) bool {
		names = append(names, string(k[len(prefix):]))
		return false
	})
	return names
}

// notFound is a bad request with status 404.
func notFound(format string, args ...any) *cluster.Error {
	err := cluster.Errorf(cluster.CodeBadRequest, format, args...)
	err.Status = http.StatusNotFound
	return err
}
