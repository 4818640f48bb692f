package proc

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Garbage, half-open floods and oversized frames on both ports cause no crash and no election, and memory stays
// bounded.
func TestHostileInput(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, patient...)
	n := start(t, c)
	before := mustStatus(t, n)
	mustPut(t, c, "k", "v")
	usage, err := n.Usage()
	if err != nil {
		t.Fatal(err)
	}

	// One text of each kind for all connections: a collection of 500 MB holds up the tests beside this one for seconds.
	short, long := randomBytes(64<<10), randomBytes(4<<20)
	header := []byte("GET / HTTP/1.1\r\nX: " + strings.Repeat("a", len(long)))
	body := append([]byte("PUT /v1/kv/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1099511627776\r\n\r\n"), long...)
	attacks := map[string]func(addr string){
		"random bytes":    func(addr string) { send(addr, short) },
		"huge frame":      func(addr string) { send(addr, hugeFrame()) },
		"half open":       holdOpen,
		"endless header":  func(addr string) { send(addr, header) },
		"huge body":       func(addr string) { send(addr, body) },
		"plain HTTP":      func(addr string) { send(addr, []byte("GET /leader HTTP/1.1\r\nHost: x\r\n\r\n")) },
		"one byte, close": func(addr string) { send(addr, []byte{0}) },
	}
	for name, attack := range attacks {
		var wg sync.WaitGroup
		for _, addr := range []string{n.Raft, n.HTTP} {
			for range 40 {
				wg.Go(func() { attack(addr) })
			}
		}
		wg.Wait()
		if a, err := put(t.Context(), n, "k", name); err != nil || a.Status != 200 {
			t.Fatalf("after %s: write answered %d %s %v", name, a.Status, a.Body, err)
		}
	}

	after := mustStatus(t, n)
	if after.Term != before.Term || after.LeaderID != before.LeaderID {
		t.Errorf("an election: term %d to %d, leader %s to %s", before.Term, after.Term, before.LeaderID,
			after.LeaderID)
	}
	now, err := n.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if grown := now.RSS - usage.RSS; grown > 200<<20 {
		t.Errorf("RSS grew by %d MB", grown>>20)
	}
	for _, node := range c.Nodes {
		if strings.Contains(c.Log(node), "panic") {
			t.Errorf("%s panicked", node.ID)
		}
		if lines := strings.Count(c.Log(node), "\n"); lines > 200 {
			t.Errorf("%s logged %d lines", node.ID, lines)
		}
	}
}

func send(addr string, data []byte) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	_, _ = conn.Write(data)
	_, _ = conn.Read(make([]byte, 512))
}

func holdOpen(addr string) {
	var conns []net.Conn
	for range 25 {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			break
		}
		conns = append(conns, conn)
	}
	pause(200 * time.Millisecond)
	for _, conn := range conns {
		_ = conn.Close()
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// hugeFrame announces 4 GiB in several encodings of a length.
func hugeFrame() []byte {
	b := []byte("NSTR")
	b = binary.BigEndian.AppendUint32(b, 1<<32-1)
	b = append(b, 0, 0xc6, 0xff, 0xff, 0xff, 0xff)
	return append(b, randomBytes(1<<10)...)
}

// A node of another cluster at a member's address, or with a member's ID, causes no vote and no term change.
func TestForeignCluster(t *testing.T) {
	t.Parallel()
	a, b := newCluster(t, 3, calm...), newCluster(t, 3, calm...)
	start(t, a)
	start(t, b)
	for _, n := range append(slices.Clone(a.Nodes), b.Nodes...) {
		eventually(t, soon, func() error {
			s, err := nodeStatus(t.Context(), n)
			if err == nil && s.ClusterID == "" {
				err = fmt.Errorf("%s has no cluster ID yet", n.ID)
			}
			return err
		})
	}
	mustPut(t, a, "k", "a")
	mustPut(t, b, "k", "b")
	wantTerm := mustStatus(t, a.Nodes[0]).Term

	// b's third node returns with the addresses of cluster a.
	stray := b.Nodes[2]
	stray.Kill()
	c3 := a.Nodes[2]
	c3.Kill()
	leader(t, a)
	wantTerm = max(wantTerm, mustStatus(t, a.Nodes[0]).Term)
	imposter := &Node{ID: c3.ID, Raft: c3.Raft, HTTP: c3.HTTP}
	a2 := &Cluster{Kind: a.Kind, Nodes: a.Nodes, Dir: b.Dir, Extra: a.Extra, Bin: a.Bin}
	a2.argv = func(n *Node, initial string) []string {
		argv := a.argv(n, initial)
		for i, arg := range argv {
			argv[i] = strings.Replace(arg, a.Dir, b.Dir, 1)
		}
		return argv
	}
	if err := a2.StartNode(imposter); err != nil {
		t.Fatal(err)
	}
	defer imposter.Kill()

	eventually(t, soon, func() error {
		s, err := nodeStatus(t.Context(), imposter)
		if err != nil {
			return err
		}
		if s.Lifecycle != "dead" {
			return fmt.Errorf("lifecycle %s", s.Lifecycle)
		}
		return nil
	})
	if s := mustStatus(t, a.Nodes[0]); s.Term != wantTerm {
		t.Errorf("term went from %d to %d", wantTerm, s.Term)
	}
	if got := mustGet(t, &Cluster{Nodes: a.Nodes[:2]}, "k"); string(got.Body) != "a" {
		t.Errorf("read %q", got.Body)
	}
}
