package proc

import (
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A round trip between two nodes takes twice the delay; from this process it takes none. A cut holds for delayed
// packets, too.
func TestNetworkDelay(t *testing.T) {
	t.Parallel()
	const oneWay = 40 * time.Millisecond
	w, err := NewNetwork()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	c := &Cluster{Nodes: []*Node{{ID: "n1"}, {ID: "n2"}}}
	if err := w.Attach(c); err != nil {
		t.Fatal(err)
	}
	if err := w.Delay(oneWay); err != nil {
		t.Skip(err)
	}
	// No process listens: the answer to a dial is a refusal, after one round trip.
	refused := func(inside []string) (bool, time.Duration) {
		host, port, _ := net.SplitHostPort(c.Nodes[1].HTTP)
		argv := append(inside, "timeout", "5", "bash", "-c", ": </dev/tcp/"+host+"/"+port)
		at := time.Now()
		out, _ := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		return strings.Contains(string(out), "refused"), time.Since(at)
	}
	if ok, took := refused(w.inside(0)); !ok || took < 2*oneWay {
		t.Errorf("between nodes: refused %v after %v, want %v", ok, took, 2*oneWay)
	}
	fastest := time.Hour // a busy machine delays most dials, but not each of them
	for range 20 {
		at := time.Now()
		if _, err := net.Dial("tcp", c.Nodes[1].HTTP); err == nil {
			t.Fatal("from outside: somebody listens")
		}
		fastest = min(fastest, time.Since(at))
	}
	if fastest >= 2*oneWay {
		t.Errorf("from outside: refused after %v at best", fastest)
	}
	if err := w.Cut(c.Nodes[0], c.Nodes[1]); err != nil {
		t.Fatal(err)
	}
	if ok, took := refused(append(w.inside(0), "timeout", "0.5")); ok {
		t.Errorf("a dial through a cut was answered after %v", took)
	}
	if err := w.Heal(); err != nil {
		t.Fatal(err)
	}
	if ok, _ := refused(w.inside(0)); !ok {
		t.Error("no answer after the cut")
	}
}
