package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
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

// credentialInterval is how often the token file and the trusted authorities are read. A change of the file takes
// effect within 5 s, one of the authorities within 10 s.
const credentialInterval = 2 * time.Second

// authenticator identifies callers. Its methods may be called by any goroutine.
type authenticator struct {
	read     func() ([]byte, error)
	insecure bool
	cluster  string                    // cluster name, in certificates
	host     string                    // advertised
	member   func(cluster.NodeID) bool // reports whether a node is a member, or joins
	metrics  *telemetry.Metrics
	logger   hclog.Logger

	readRoots    func() *x509.CertPool         // nil: no TLS
	roots        atomic.Pointer[x509.CertPool] // trusted authorities of clients
	rootsChanged func()                        // called after a change of the TLS files
	// of calls of other protocols; nil: roots counts
	readCallRoots func() *x509.CertPool
	callRoots     atomic.Pointer[x509.CertPool]
	open          streams
	tokens        atomic.Pointer[token.Set] // nil: no token file
	current       []byte                    // content of tokens; only New and run use it
	tokenFileErr  atomic.Pointer[string]    // error of the current file; nil: none
	authFailures  *keyLimiter[netip.Prefix]
}

func newAuthenticator(d Deps, logger hclog.Logger) (*authenticator, error) {
	member := func(id cluster.NodeID) bool {
		if m, ok := d.Reads.View().Member(id); ok && !m.Removed {
			return true
		}
		_, ok := cluster.FindServer(d.Reads.Status().Servers, id) // before the first records
		return ok
	}
	host, _, _ := net.SplitHostPort(d.Node.HTTPAddress)
	a := &authenticator{
		read:         d.Tokens,
		insecure:     d.Insecure,
		cluster:      d.Node.ClusterName,
		host:         cmp.Or(host, "localhost"),
		member:       member,
		readRoots:    d.ClientRoots,
		metrics:      d.Metrics,
		logger:       logger,
		authFailures: newKeyLimiter[netip.Prefix](failureBurst, failureRefill),

		readCallRoots: d.CallRoots,
	}
	if a.readCallRoots != nil {
		a.callRoots.Store(a.readCallRoots())
	}
	if a.readRoots != nil {
		a.roots.Store(a.readRoots())
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
	tick := time.NewTicker(credentialInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.reload()
			a.endRevoked(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// refreshRoots loads the authorities that TLS handshakes trust now.
func (a *authenticator) refreshRoots() {
	if a.readCallRoots != nil {
		a.callRoots.Store(a.readCallRoots())
	}
	if a.readRoots == nil {
		return
	}
	if roots := a.readRoots(); a.roots.Swap(roots) != roots {
		a.rootsChanged()
	}
}

// reload loads changed files. A repeated error is logged once.
func (a *authenticator) reload() {
	a.refreshRoots()
	if a.read == nil {
		return
	}
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

// authorize identifies the caller first: a request without an identity is only counted, however it is refused.
func (c *request) authorize() error {
	a := c.s.auth
	if conn := connOf(c.r.Context()); conn != nil {
		switch member := a.fromMember(c.r); {
		case member && !conn.peer:
			c.s.conns.addPeer(conn)
		case conn.peer && !member: // it was removed
			c.s.conns.removePeer(conn)
		}
	}
	need := c.route.Role
	if c.route.Sensitive && c.s.deps.PrivateViews {
		need = token.Observer
	}
	if need == token.None {
		return nil
	}
	who, via, err := a.identify(c.r)
	if err != nil {
		if c.r.TLS != nil && len(c.r.TLS.VerifiedChains) > 0 { // the client has to connect with a valid certificate
			c.Header()["Connection"] = []string{"close"}
			a.endCallConn(c.r)
		}
		a.metrics.AuthFailure()
		return err
	}
	c.caller, c.from, c.via = who, callerAddress(c.r, via != ""), via
	if conn := connOf(c.r.Context()); conn != nil {
		c.s.conns.identified(conn)
	}
	if c.write && !c.memberPage {
		// A page of another origin in a local browser must not use the trust in loopback.
		if err := crossOrigin.Check(c.r); err != nil {
			return cluster.Errorf(cluster.CodeForbidden, "cross-origin request rejected: %w", err)
		}
	}
	switch {
	case who.role.Allows(need), c.route.Sensitive && who.node != "":
		return nil
	case c.route.Role == token.Node:
		if a.isPeer(c.r, who) {
			return nil
		}
	case who.node != "" && c.route.AllowNode:
		return nil
	}
	return cluster.Errorf(cluster.CodeForbidden, "%s is not allowed: %s %s requires role %s", who.describe(),
		c.r.Method, c.route.Pattern, need)
}

func (i identity) describe() string {
	if i.node != "" {
		return fmt.Sprintf("node %s", i.node)
	}
	return fmt.Sprintf("%s, whose role is %s,", i.name, i.role)
}

// identify returns the caller's identity, or CodeUnauthenticated, or CodeBusy with status 429 after too many bad
// tokens. via is the trusted node that has asserted the identity, "" if none has.
func (a *authenticator) identify(r *http.Request) (who identity, via string, err error) {
	direct, err := a.identifyDirect(r)
	said, by := firstValue(r.Header, apiv1.HeaderIdentity), firstValue(r.Header, apiv1.HeaderForwardedBy)
	if said == "" || by == "" || !a.trustsForwardedIdentity(r, direct) {
		return direct, "", err
	}
	who, ok := makeIdentity(strings.Cut(said, " "))
	if !ok {
		return who, "", cluster.Errorf(cluster.CodeUnauthenticated, "%s: cannot be read", apiv1.HeaderIdentity)
	}
	if direct.node != "" {
		by = string(direct.node)
	}
	id, err := cluster.ParseNodeID(by)
	if err != nil {
		return who, "", cluster.Errorf(cluster.CodeUnauthenticated, "%s: %w", apiv1.HeaderForwardedBy, err)
	}
	return who, string(id), nil
}

// trustsForwardedIdentity reports whether the caller may assert another caller's identity. It may as a current member,
// in insecure mode, and from this machine without TLS if every local caller is an operator. If tokens separate the
// users of a machine, no local caller may: nodes then forward the token (forward.Caller.Authorization).
func (a *authenticator) trustsForwardedIdentity(r *http.Request, direct identity) bool {
	return a.insecure || direct.node != "" && a.member(direct.node) || a.trustsLoopback(r) && r.TLS == nil
}

// isPeer reports whether a call between nodes may come from this caller. A member proves itself by its certificate.
// Without TLS only this machine reaches a node, and its processes are not told apart: with tokens, the peer has that of
// the client for whom it calls, and gets no further than that client.
func (a *authenticator) isPeer(r *http.Request, who identity) bool {
	if who.node != "" || a.insecure {
		return a.insecure || a.member(who.node)
	}
	return r.TLS == nil && fromThisMachine(r) && firstValue(r.Header, apiv1.HeaderForwardedBy) != "" &&
		who.role.Allows(token.Client)
}

// fromMember reports whether a member sent the request, also to a route that needs no identity. Without TLS it may be
// any process that could assert identities.
func (a *authenticator) fromMember(r *http.Request) bool {
	if firstValue(r.Header, apiv1.HeaderForwardedBy) == "" { // members always send it
		return false
	}
	direct, _ := a.certified(r)
	return a.trustsForwardedIdentity(r, direct)
}

// trustsLoopback reports whether the origin alone makes the caller an operator.
func (a *authenticator) trustsLoopback(r *http.Request) bool {
	return a.tokens.Load() == nil && fromThisMachine(r) && (r.Host == "" || a.localHost(r.Host))
}

func (a *authenticator) identifyDirect(r *http.Request) (identity, error) {
	if who, ok := a.certified(r); ok {
		return who, nil
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
		if ok, _ := a.authFailures.allow(addressGroup(r.RemoteAddr), time.Now()); !ok {
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
			"no tokens are configured (auth.tokens): use a client certificate, or connect from this machine to localhost or an IP address")
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
	return err == nil || strings.EqualFold(host, "localhost") || strings.EqualFold(host, a.host)
}

func bearer(r *http.Request) (string, bool) {
	h := firstValue(r.Header, "Authorization")
	const scheme = "Bearer "
	if len(h) < len(scheme) || !strings.EqualFold(h[:len(scheme)], scheme) {
		return "", false
	}
	return strings.TrimSpace(h[len(scheme):]), true
}

// scheme is that of the URIs in certificates.
const scheme = "northstar"

// certificateIdentity reads northstar://<cluster-name>/<role>/<name>, where the role may also be node.
func certificateIdentity(uri *url.URL, clusterName string) (identity, bool) {
	if uri.Scheme != scheme || uri.Host != clusterName {
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

// callerAddress returns the origin of a call: as a trusted forwarding node reports it, or of the connection.
func callerAddress(r *http.Request, believed bool) string {
	if said := firstValue(r.Header, apiv1.HeaderCaller); said != "" && believed {
		if addr, err := netip.ParseAddrPort(said); err == nil {
			return addr.String()
		}
	}
	return r.RemoteAddr
}

// addressGroup returns an address, or for IPv6 the network of one client. Unreadable addresses share a group.
func addressGroup(remote string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	return cluster.AddressGroup(ap.Addr())
}
