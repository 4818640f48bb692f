package state

import (
	"bytes"
	"fmt"
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
	Alive  []*Session // renewed
	Ended  []string   // IDs of those that do not live
	Parted []Parting  // live, and were not renewed: see View.Parted
}

// Parting is a tenure that was taken from a session by an operator.
type Parting struct {
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
func (v *View) SessionsAfter(after string) func(yield func(*Session) bool) {
	return func(yield func(*Session) bool) {
		it := v.sessions.Root().Iterator()
		it.SeekLowerBound([]byte(after))
		for _, s, ok := it.Next(); ok; _, s, ok = it.Next() {
			if s.ID != after && !yield(s) {
				return
			}
		}
	}
}

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

func (p *SessionCreate) apply(w *work) Result {
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
func (p *SessionEnd) apply(w *work) Result {
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
		w.withdrawAll(s.ID)
	}
	for _, s := range ended {
		w.freeAll(s.ID, p.Cause)
	}
	return Result{Revision: w.revision}
}

// withdrawAll takes a session out of every queue that it stands in.
func (w *work) withdrawAll(id string) {
	for _, role := range w.held(id, holdsCandidacy) {
		w.withdraw(role, id)
	}
}

// freeAll frees what an ended session holds.
func (w *work) freeAll(id string, cause Cause) {
	for _, role := range w.held(id, holdsRole) {
		w.vacate(role, cause)
	}
	for _, role := range w.held(id, holdsParting) {
		w.letParted(role)
	}
	for _, key := range w.held(id, holdsKey) {
		w.deleteKey([]byte(key))
	}
	for _, node := range w.held(id, holdsNode) {
		w.bury(node)
	}
}

func sessionEnded(id string) *cluster.Error {
	return cluster.Errorf(cluster.CodeSessionEnded, "session %q does not exist: it has ended, or never began", id)
}

// livingSession refuses a session that does not live.
func (w *work) livingSession(id string) (*Session, *cluster.Error) {
	s, ok := w.writeSessions().Get([]byte(id))
	if !ok {
		return nil, sessionEnded(id)
	}
	return s, nil
}

// writeSessions opens the batch's transaction on the sessions.
func (w *work) writeSessions() *iradix.Txn[*Session] {
	if w.sessionsTxn == nil {
		w.sessionsTxn = w.sessions.Txn()
	}
	return w.sessionsTxn
}

// A session's holdings are index entries: its ID, a NUL, what kind of thing and
// its name. Nothing else says what a session holds, so that a session may hold
// any number of keys, and it is never written to a snapshot: it follows from
// keys and roles.
type holding byte

const (
	holdsCandidacy holding = 'c'
	holdsKey       holding = 'k'
	holdsNode      holding = 'n'
	holdsParting   holding = 'p' // a role that was taken from it
	holdsRole      holding = 'r'
)

func holdingKey(session string, h holding, name string) []byte {
	b := make([]byte, 0, len(session)+2+len(name))
	b = append(b, session...)
	return append(append(b, 0, byte(h)), name...)
}

func splitHolding(k []byte) (session string, h holding, name string) {
	at := bytes.IndexByte(k, 0)
	return string(k[:at]), holding(k[at+1]), string(k[at+2:])
}

func (w *work) writeHoldings() *iradix.Txn[struct{}] {
	if w.holdingsTxn == nil {
		w.holdingsTxn = w.holdings.Txn()
	}
	return w.holdingsTxn
}

func (w *work) hold(session string, h holding, name string) {
	w.writeHoldings().Insert(holdingKey(session, h, name), struct{}{})
}

func (w *work) letGo(session string, h holding, name string) {
	w.writeHoldings().Delete(holdingKey(session, h, name))
}

// held lists what a session holds, in order of names.
func (w *work) held(session string, h holding) []string {
	return holdingNames(w.writeHoldings().Root(), session, h)
}

// Held lists the names of the roles, keys and nodes that a session holds.
func (v *View) Held(session string) (roles, keys, nodes []string) {
	root := v.holdings.Root()
	return holdingNames(root, session, holdsRole), holdingNames(root, session, holdsKey), holdingNames(root, session, holdsNode)
}

// Parted lists the tenures that were taken from a session and that it has not said
// to know of: until it has it must not be renewed.
func (v *View) Parted(session string) []Parting {
	var list []Parting
	for _, name := range holdingNames(v.holdings.Root(), session, holdsParting) {
		if r, ok := v.Role(name); ok {
			list = append(list, Parting{Session: session, Role: name, Token: r.tokenOf(session)})
		}
	}
	return list
}

func holdingNames(root *iradix.Node[struct{}], session string, h holding) []string {
	prefix := holdingKey(session, h, "")
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
