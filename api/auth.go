package api

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/telemetry"
)

type identity struct {
	name string // name in the token or certificate, "loopback" or "insecure"
	role token.Role
	node cluster.NodeID // of a node certificate, which has no role
}

// tokenReloadInterval is how often the token file is read. A change takes effect within 5 s.
const tokenReloadInterval = 2 * time.Second

// authenticator identifies callers. Its methods may be called by any goroutine.
type authenticator struct {
	read     func() ([]byte, error)
	insecure bool
	cluster  string // cluster name, in certificates
	host     string // advertised
	metrics  *telemetry.Metrics
	logger   hclog.Logger

	tokens       atomic.Pointer[token.Set] // nil: no token file
	current      []byte                    // content of tokens; only New and run use it
	tokenFileErr atomic.Pointer[string]    // error of the current file; nil: none
	authFailures *authFailureLimiter
}

func newAuthenticator(d Deps, logger hclog.Logger) (*authenticator, error) {
	host, _, _ := net.SplitHostPort(d.Node.HTTPAddress)
	a := &authenticator{
		read:         d.Tokens,
		insecure:     d.Insecure,
		cluster:      d.Node.ClusterName,
		host:         cmp.Or(host, "localhost"),
		metrics:      d.Metrics,
		logger:       logger,
		authFailures: newAuthFailureLimiter(),
	}
	if d.Tokens != nil {
		if _, err := a.load(); err != nil {
			return nil, fmt.Errorf("auth.tokens: %w", err)
		}
	}
	return a, nil
}

// load reads the token file and reports whether it has changed. An invalid file changes nothing: a file that is being
// written, or is empty, must not lock out all callers.
func (a *authenticator) load() (changed bool, err error) {
	data, err := a.read()
	if err != nil || a.tokens.Load() != nil && bytes.Equal(data, a.current) {
		return false, err
	}
	set, err := token.ParseFile(data)
	if err != nil {
		return false, err
	}
	a.current = data
	a.tokens.Store(set)
	return true, nil
}

func (a *authenticator) run(ctx context.Context) {
	if a.read == nil {
		return
	}
	tick := time.NewTicker(tokenReloadInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.reload()
		case <-ctx.Done():
			return
		}
	}
}

// reload loads a changed file. A repeated error is logged once.
func (a *authenticator) reload() {
	changed, err := a.load()
	if err != nil {
		what := err.Error()
		if before := a.tokenFileErr.Swap(&what); before == nil || *before != what {
			a.logger.Error("cannot load token file, keeping previous tokens", "error", err)
		}
		return
	}
	a.tokenFileErr.Store(nil)
	if changed {
		a.logger.Info("token file reloaded", "tokens", a.tokens.Load().Len())
	}
}

// TokenProblem returns why the current token file cannot be used, so that the previous tokens remain active. It
// returns "" if the file is valid or there is none. It may be called by any goroutine.
func (s *Server) TokenProblem() string {
	if what := s.auth.tokenFileErr.Load(); what != nil {
		return *what
	}
	return ""
}

func (c *request) authorize() error {
	a := c.s.auth
	if c.write {
		// A page of another origin in a local browser must not use the trust in loopback.
		if err := crossOrigin.Check(c.r); err != nil {
			return cluster.Errorf(cluster.CodeForbidden, "cross-origin request rejected: %w", err)
		}
	}
	if c.route.Role == token.None {
		return nil
	}
	who, passed, err := a.identify(c.r)
	if err != nil {
		a.metrics.AuthFailure()
		return err
	}
	c.caller, c.from = who, callerAddress(c.r, passed)
	if passed {
		c.via = c.r.Header.Get(apiv1.HeaderForwardedBy)
	}
	if who.role.Allows(c.route.Role) || who.node != "" && c.route.AllowNode {
		return nil
	}
	return cluster.Errorf(cluster.CodeForbidden, "%s is not allowed: %s %s requires role %s", who.describe(),
		c.r.Method, c.route.Pattern, c.route.Role)
}

func (i identity) describe() string {
	if i.node != "" {
		return fmt.Sprintf("node %s", i.node)
	}
	return fmt.Sprintf("%s, whose role is %s,", i.name, i.role)
}

// identify returns the caller's identity, or CodeUnauthenticated, or CodeBusy with status 429 after too many bad
// tokens. passed reports that a trusted forwarding node has asserted the identity.
func (a *authenticator) identify(r *http.Request) (who identity, passed bool, err error) {
	direct, err := a.identifyDirect(r)
	said := r.Header.Get(apiv1.HeaderIdentity)
	if said == "" || r.Header.Get(apiv1.HeaderForwardedBy) == "" || !a.trustsForwardedIdentity(r, direct) {
		return direct, false, err
	}
	who, ok := makeIdentity(strings.Cut(said, " "))
	if !ok {
		return who, false, cluster.Errorf(cluster.CodeUnauthenticated, "%s: cannot be read", apiv1.HeaderIdentity)
	}
	return who, true, nil
}

// trustsForwardedIdentity reports whether the caller may assert another caller's identity. It may as a node, in
// insecure mode, and from this machine without TLS if every local caller is an operator. If tokens separate the users
// of a machine, no local caller may: nodes then forward the token (forward.Caller.Authorization).
func (a *authenticator) trustsForwardedIdentity(r *http.Request, direct identity) bool {
	return a.insecure || direct.node != "" || a.trustsLoopback(r) && r.TLS == nil
}

// trustsLoopback reports whether the origin alone makes the caller an operator.
func (a *authenticator) trustsLoopback(r *http.Request) bool {
	return a.tokens.Load() == nil && fromLoopback(r) && a.localHost(r.Host)
}

func (a *authenticator) identifyDirect(r *http.Request) (identity, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		for _, uri := range r.TLS.PeerCertificates[0].URIs {
			if who, ok := certificateIdentity(uri, a.cluster); ok {
				return who, nil
			}
		}
	}
	tokens := a.tokens.Load()
	if sent, ok := bearer(r); ok && tokens != nil {
		if e, ok := tokens.Find(sent); ok {
			if a.insecure {
				e.Role = token.Operator
			}
			return identity{name: e.Name, role: e.Role}, nil
		}
		if a.insecure {
			a.metrics.AuthFailure()
			return identity{name: "insecure", role: token.Operator}, nil
		}
		if !a.authFailures.allow(r.RemoteAddr, time.Now()) {
			err := cluster.Errorf(cluster.CodeBusy, "too many failed authentication attempts from this address")
			err.Status, err.RetryAfter = http.StatusTooManyRequests, 10*time.Second
			return identity{}, err
		}
		return identity{}, cluster.Errorf(cluster.CodeUnauthenticated, "Authorization: unknown token")
	}
	switch {
	case a.insecure:
		return identity{name: "insecure", role: token.Operator}, nil
	case a.trustsLoopback(r):
		return identity{name: "loopback", role: token.Operator}, nil
	case tokens == nil:
		return identity{}, cluster.Errorf(cluster.CodeUnauthenticated,
			"this node has no auth.tokens: a client certificate is needed, or a request from this machine to its IP address or localhost")
	}
	return identity{}, cluster.Errorf(cluster.CodeUnauthenticated,
		"Authorization: a bearer token or a client certificate is needed")
}

// localHost reports whether a Host header names this machine in a way that a foreign domain cannot. A page that
// rebinds its own name to 127.0.0.1 sends that name. Browsers always send a Host header; HTTP/1.0 clients may not.
func (a *authenticator) localHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	_, err = netip.ParseAddr(strings.Trim(host, "[]"))
	return hostport == "" || err == nil || strings.EqualFold(host, "localhost") || strings.EqualFold(host, a.host)
}

func bearer(r *http.Request) (string, bool) {
	h := r.Header.Get("Authorization")
	const scheme = "Bearer "
	if len(h) < len(scheme) || !strings.EqualFold(h[:len(scheme)], scheme) {
		return "", false
	}
	return strings.TrimSpace(h[len(scheme):]), true
}

// certificateIdentity reads northstar://<cluster-name>/<role>/<name>, where the role may also be node.
func certificateIdentity(uri *url.URL, clusterName string) (identity, bool) {
	if uri.Scheme != "northstar" || uri.Host != clusterName {
		return identity{}, false
	}
	return makeIdentity(strings.Cut(strings.TrimPrefix(uri.Path, "/"), "/"))
}

// header returns the form in which an identity travels between nodes.
func (i identity) header() string {
	if i.node != "" {
		return "node " + string(i.node)
	}
	return string(i.role) + " " + i.name
}

// makeIdentity returns the identity for a role or "node", and a name, as strings.Cut returned them.
func makeIdentity(kind, name string, found bool) (identity, bool) {
	if kind == "node" {
		id, err := cluster.ParseNodeID(name)
		return identity{name: name, role: token.None, node: id}, found && err == nil
	}
	role, err := token.ParseRole(kind)
	return identity{name: name, role: role}, found && err == nil && token.CheckName(name) == nil
}

func fromLoopback(r *http.Request) bool {
	addr, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && addr.Addr().Unmap().IsLoopback()
}

// callerAddress returns the origin of a call: as a trusted forwarding node reports it, or of the connection.
func callerAddress(r *http.Request, believed bool) string {
	if said := r.Header.Get(apiv1.HeaderCaller); said != "" && believed {
		if addr, err := netip.ParseAddrPort(said); err == nil {
			return addr.String()
		}
	}
	return r.RemoteAddr
}

// Bad tokens of one address: a burst, then one a second.
const (
	failureBurst  = 20
	failureRefill = time.Second
	maxAddresses  = 4096 // remembered; beyond it, the address closest to a full burst is evicted
)

// authFailureLimiter limits bad tokens by address. Requests with a valid token do not use it.
type authFailureLimiter struct {
	mu   sync.Mutex
	seen map[netip.Prefix]time.Time // time at which the address has its full burst again
}

func newAuthFailureLimiter() *authFailureLimiter {
	return &authFailureLimiter{seen: make(map[netip.Prefix]time.Time)}
}

// allow counts one bad token and reports whether it may be answered as unauthenticated.
func (f *authFailureLimiter) allow(remote string, now time.Time) bool {
	key := addressGroup(remote)
	f.mu.Lock()
	defer f.mu.Unlock()
	full, known := f.seen[key]
	if !known || full.Before(now) {
		full = now
	}
	full = full.Add(failureRefill)
	if full.Sub(now) > failureBurst*failureRefill {
		return false
	}
	if !known && len(f.seen) >= maxAddresses {
		f.evict(now)
	}
	f.seen[key] = full
	return true
}

// evict removes all addresses with a full burst, or else the address closest to one.
func (f *authFailureLimiter) evict(now time.Time) {
	var best netip.Prefix
	var at time.Time
	for k, full := range f.seen {
		if !full.After(now) {
			delete(f.seen, k)
			continue
		}
		if at.IsZero() || full.Before(at) {
			best, at = k, full
		}
	}
	if len(f.seen) >= maxAddresses {
		delete(f.seen, best)
	}
}

// addressGroup returns an address, or for IPv6 the network of one client. Unreadable addresses share a group.
func addressGroup(remote string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	addr := ap.Addr().Unmap().WithZone("")
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits) // valid for every address
	return p
}
