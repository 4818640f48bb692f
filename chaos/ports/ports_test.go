package ports

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// No port is returned twice, concurrently or later. The caller can listen on it,
// close the listener and listen again.
func TestReserve_NoDuplicates(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				addrs, err := Reserve(2)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, a := range addrs {
					if seen[a] {
						t.Errorf("%s was given twice", a)
					}
					seen[a] = true
				}
				mu.Unlock()
				for range 2 {
					if err := listen(addrs[0]); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
}

// A port that one process has reserved is not free in another, even without a listener.
func TestNotInAnotherProcess(t *testing.T) {
	if port, err := strconv.Atoi(os.Getenv("NORTHSTAR_PORTS_TAKEN")); err == nil {
		if addrs, _ := take(port, 1); addrs != nil {
			t.Errorf("%s was given to two processes", addrs[0])
		}
		return
	}
	addrs, err := Reserve(3)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range addrs {
		_, port, _ := net.SplitHostPort(a)
		if _, before, _ := net.SplitHostPort(addrs[0]); i > 0 && atoi(t, port) != atoi(t, before)+i {
			t.Errorf("%v are not in a row", addrs)
		}
		c := exec.Command(os.Args[0], "-test.run=^TestNotInAnotherProcess$")
		c.Env = append(os.Environ(), "NORTHSTAR_PORTS_TAKEN="+port)
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// A range with one port in use is not returned, and no port of it stays reserved.
func TestInUse(t *testing.T) {
	addrs, err := Reserve(2)
	if err != nil {
		t.Fatal(err)
	}
	held.Lock()
	for _, m := range held.all[len(held.all)-2:] {
		m.Close()
	}
	held.all = held.all[:len(held.all)-2]
	held.Unlock()
	l, err := net.Listen("tcp", addrs[1])
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(addrs[0])
	if got, _ := take(atoi(t, port), 2); got != nil {
		t.Errorf("%v were given while somebody listens on the second", got)
	}
	got, marks := take(atoi(t, port), 1)
	if got == nil {
		t.Fatal("the first was kept")
	}
	marks[0].Close()
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
