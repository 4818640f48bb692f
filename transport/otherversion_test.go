package transport

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"

	"northstar/cluster"
)

// answerHello answers the hello on a connection as a node of another protocol version. It reads the rest.
func answerHello(t *testing.T, conn net.Conn, id cluster.NodeID) {
	t.Helper()
	defer conn.Close()
	b, err := hello{version: protocolVersion + 1, purpose: purposeRaft, peer: peerOf(id)}.encode()
	if err != nil {
		t.Error(err)
		return
	}
	_, _ = conn.Write(b)
	theirs, err := readHello(conn)
	if err != nil {
		return // it was closed
	}
	reply, err := helloReply{Refusal: cluster.RefusedProtocol, Nonce: theirs.nonce}.encode()
	if err != nil {
		t.Error(err)
		return
	}
	_, _ = conn.Write(reply)
	_, _ = io.Copy(io.Discard, conn)
}

// A node that connects with another protocol version must not make this node believe that others refuse it: a node
// that all others refuse starts no election.
func TestOtherVersionNamesAnother(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	n9 := ca.load(t, "northstar://test/node/n9")
	for name, tt := range map[string]struct {
		claims  cluster.NodeID
		withTLS bool
		reason  string
	}{
		"another node":           {"n2", true, "identity"},
		"itself":                 {"n9", true, "protocol_version"},
		"no valid ID":            {"N\n9", true, "protocol_version"},
		"any node, without TLS":  {"n2", false, "protocol_version"},
		"no valid ID, no TLS":    {"N\n9", false, "protocol_version"},
		"nothing, and has a key": {"", true, "protocol_version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var opts []option
			if tt.withTLS {
				opts = append(opts, withTLS(ca.load(t, "northstar://test/node/n1")))
			}
			n1 := newEnd(t, "n1", opts...)
			conn, err := net.Dial("tcp", n1.addr)
			if err != nil {
				t.Fatal(err)
			}
			if tt.withTLS {
				cfg := n9.peerConfig()
				cfg.NextProtos = []string{peerProtocol}
				conn = tls.Client(conn, cfg)
			}
			answerHello(t, conn, tt.claims)
			eventually(t, "it is counted", func() bool { return n1.rejected("connection/"+tt.reason) == 1 })
			if r := n1.refusals(); len(r) > 0 {
				t.Errorf("n1 counts as refused: %v", r)
			}
		})
	}
}

// A dialled node of another protocol version refuses this one, unless it names another node.
func TestDialledOtherVersion(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			answerHello(t, conn, "n2")
		}
	}()
	n1 := newEnd(t, "n1")
	dial := func(want cluster.NodeID) error {
		conn, x, err := n1.tr.open(t.Context(), ln.Addr().String(), purposeProbe, want)
		if err != nil {
			return err
		}
		_ = conn.Close()
		return x.refused()
	}
	if err := dial("n3"); !errors.Is(err, errIdentity) {
		t.Errorf("n2 in place of n3: %v", err)
	}
	if r := n1.refusals(); len(r) > 0 {
		t.Errorf("another node's hello refuses: %v", r)
	}
	for _, want := range []cluster.NodeID{"", "n2"} {
		var refused *RefusedError
		if err := dial(want); !errors.As(err, &refused) || refused.Refusal != cluster.RefusedProtocol {
			t.Errorf("dialled %q: %v", want, err)
		}
	}
	if r := n1.refusals(); len(r) != 2 {
		t.Errorf("told of %v", r)
	}
}

// Of a later protocol version only the node's ID is read: other fields may have another form.
func TestNodeNamed(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]cluster.NodeID{
		`{"node_id":"n2","generation":"later"}`: "n2", `{"node_id":"N 2"}`: "", `{"node_id":7}`: "", `{}`: "", ``: "", `[`: "",
	} {
		if got := nodeNamed([]byte(body)); got != want {
			t.Errorf("%q: %q, want %q", body, got, want)
		}
	}
}
