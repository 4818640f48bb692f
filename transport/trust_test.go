package transport

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
)

// trustOnly makes the authorities the only ones that a node trusts, immediately.
func (m *TLS) trustOnly(t *testing.T, all ...*authority) {
	t.Helper()
	var file []byte
	for _, a := range all {
		file = append(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})...)
	}
	if err := os.WriteFile(m.files.CA, file, 0o600); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	m.checkedAt = time.Time{}
	m.mu.Unlock()
	m.Roots()
}

// load2 returns the material of a node with a certificate of a, which trusts both authorities.
func load2(t *testing.T, a, b *authority, uri string) *TLS {
	t.Helper()
	m, err := LoadTLS(a.issue(t, t.TempDir(), 2, uri), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	m.trustOnly(t, a, b)
	return m
}

// Connections do not outlive the authority of their certificate: a stolen key is of no use once its authority was
// taken out. Those of other authorities continue, and nothing is lost on them.
func TestConnectionsEndWithTheirAuthority(t *testing.T) {
	t.Parallel()
	old, next := newAuthority(t), newAuthority(t)
	trusted := load2(t, next, old, "northstar://test/node/n1")
	served := make(chan cluster.NodeID, 64)
	n1 := newEnd(t, "n1", withTLS(trusted), func(_ *Config, e *end) {
		e.called = func(_ context.Context, from cluster.NodeID, _ []byte) []byte {
			served <- from
			return []byte("done")
		}
	})
	got := n1.bind()
	stolen := newEnd(t, "n2", withTLS(load2(t, old, next, "northstar://test/node/n2")))
	member := newEnd(t, "n3", withTLS(load2(t, next, old, "northstar://test/node/n3")))
	knows(stolen, n1)
	knows(member, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	use := func(e *end) (called, sent error) {
		_, called = e.tr.Call(ctx, "n1", []byte("x"))
		_, sent = e.append(n1, nil)
		return called, sent
	}
	for _, e := range []*end{stolen, member} {
		var called, sent error
		for ok := false; !ok; ok = called == nil && sent == nil { // a handshake may be late on a busy machine
			if called, sent = use(e); ctx.Err() != nil {
				t.Fatalf("%s: call %v, message %v", e.id, called, sent)
			}
		}
	}
	trusted.trustOnly(t, next)
	reached(got) // forgets them
	calls := len(served)
	for range 3 { // on the connections from before, and on new ones
		if called, sent := use(stolen); called == nil || sent == nil {
			t.Errorf("without its authority: call %v, message %v", called, sent)
		}
	}
	if n := reached(got); n != 0 || len(served) != calls {
		t.Errorf("%d messages reached raft, %d calls were served", n, len(served)-calls)
	}
	if called, sent := use(member); called != nil || sent != nil { // on its connection from before
		t.Errorf("of the other authority: call %v, message %v", called, sent)
	}
}

// A monitor connection, which the node with the lower ID dials, ends as well: what its node claims counts in
// elections. Its process is not taken for dead.
func TestMonitorsEndWithTheirAuthority(t *testing.T) {
	t.Parallel()
	old, next := newAuthority(t), newAuthority(t)
	trusted := load2(t, next, old, "northstar://test/node/n3")
	n3 := newEnd(t, "n3", withTLS(trusted))
	stolen := newEnd(t, "n1", withTLS(load2(t, old, next, "northstar://test/node/n1")))
	member := newEnd(t, "n2", withTLS(load2(t, next, old, "northstar://test/node/n2")))
	for _, e := range []*end{stolen, member} {
		knows(e, n3)
	}
	connected := func(id cluster.NodeID) bool { return n3.tr.Claims()[id].Connected }
	eventually(t, "both are connected", func() bool { return connected("n1") && connected("n2") })
	trusted.trustOnly(t, next)
	eventually(t, "one is not any more", func() bool { return !connected("n1") })
	if !connected("n2") {
		t.Error("the connection of the other authority has ended, too")
	}
	n3.mu.Lock()
	defer n3.mu.Unlock()
	if len(n3.losses) > 0 {
		t.Errorf("taken for the end of a process: %+v", n3.losses)
	}
}

// So do the connections that this node has dialled: responses and claims count as well.
func TestDialledConnectionsEndWithTheirAuthority(t *testing.T) {
	t.Parallel()
	old, next := newAuthority(t), newAuthority(t)
	trusted := load2(t, next, old, "northstar://test/node/n1")
	n1 := newEnd(t, "n1", withTLS(trusted))
	served := func(_ *Config, e *end) {
		e.called = func(context.Context, cluster.NodeID, []byte) []byte { return []byte("done") }
	}
	stolen := newEnd(t, "n2", withTLS(load2(t, old, next, "northstar://test/node/n2")), served)
	member := newEnd(t, "n3", withTLS(load2(t, next, old, "northstar://test/node/n3")), served)
	stolen.bind()
	member.bind()
	knows(n1, stolen, member)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	use := func(e *end) (called, sent error) {
		_, called = n1.tr.Call(ctx, e.id, []byte("x"))
		_, sent = n1.append(e, nil)
		return called, sent
	}
	connected := func(e *end) bool { return n1.tr.Claims()[e.id].Connected }
	for _, e := range []*end{stolen, member} {
		if called, sent := use(e); called != nil || sent != nil {
			t.Fatalf("%s: call %v, message %v", e.id, called, sent)
		}
		eventually(t, "it is connected", func() bool { return connected(e) })
	}
	trusted.trustOnly(t, next)
	for range 3 {
		if called, sent := use(stolen); called == nil || sent == nil {
			t.Errorf("without its authority: call %v, message %v", called, sent)
		}
	}
	eventually(t, "its claims count no longer", func() bool { return !connected(stolen) })
	if called, sent := use(member); called != nil || sent != nil || !connected(member) {
		t.Errorf("of the other authority: call %v, message %v, connected: %v", called, sent, connected(member))
	}
}

// An authority's certificate that was renewed is younger than the open connections. They continue.
func TestRenewedAuthority(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	m := ca.load(t, "northstar://test/node/n1")
	renewed := &authority{key: ca.key}
	tmpl := *ca.cert
	tmpl.NotBefore = time.Now().Add(-time.Minute)
	renewed.cert = renewed.sign(t, &tmpl, &tmpl, renewed.key)
	leaf, err := x509.ParseCertificate(m.now.cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	trust := &peerTrust{
		files: m, usage: x509.ExtKeyUsageClientAuth, certs: []*x509.Certificate{leaf},
		since: time.Now().Add(-time.Hour / 2),
	}
	if !trust.valid() {
		t.Fatal("it is not trusted")
	}
	m.trustOnly(t, renewed)
	if !trust.hasAuthority() || !trust.valid() {
		t.Error("not trusted after the renewal")
	}
	m.trustOnly(t, newAuthority(t))
	if trust.hasAuthority() || trust.valid() {
		t.Error("trusted without its authority")
	}
}
