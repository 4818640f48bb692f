package storage

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// writeDirEnv names the data directory that this test binary, started as
// another process, writes to until it is killed.
const writeDirEnv = "NORTHSTAR_TEST_WRITE_DIR"

// writeDir appends, rewrites and compacts without end. It says "keep N"
// before it deletes what follows entry N, "cut N" before it deletes what
// precedes N, and "done N T" once entry N is stored with term T.
func writeDir(dir string) {
	d, err := Open(Options{Dir: dir, Reserve: 1 << 20, Logger: hclog.NewNullLogger()})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	g := Guard(d, GuardConfig{
		StallMin: time.Second, StallMax: time.Second, OnFatal: func(err error) { fmt.Println("error:", err) },
		Logger: hclog.NewNullLogger(),
	})
	first, _ := g.Log().FirstIndex()
	last, _ := g.Log().LastIndex()
	term, _ := g.Stable().GetUint64([]byte(keyCurrentTerm))
	snapshot := uint64(0)
	if metas, _ := g.Snapshots().List(); len(metas) > 0 {
		snapshot = metas[0].Index
	}
	for {
		term++
		if err := g.Stable().SetUint64([]byte(keyCurrentTerm), term); err != nil {
			return
		}
		for range rand.IntN(8) {
			n := 1 + rand.IntN(30)
			if g.Log().StoreLogs(entries(last+1, n, term, rand.IntN(1000))) != nil {
				return
			}
			for range n {
				last++
				fmt.Println("done", last, term)
			}
		}
		if last < snapshot+50 {
			continue
		}
		if rand.IntN(2) == 0 {
			fmt.Println("keep", last-10)
			if g.Log().DeleteRange(last-9, last) != nil {
				return
			}
			last -= 10
			continue
		}
		snapshot = last - 20
		if err := writeSnapshot(g, snapshot); err != nil {
			fmt.Println("error:", err)
			return
		}
		fmt.Println("cut", snapshot-10)
		if from := max(first, 1); from < snapshot-10 && g.Log().DeleteRange(from, snapshot-11) != nil {
			return
		}
		first = snapshot - 10
	}
}

func writeSnapshot(g *Guarded, index uint64) error {
	var e raft.Log
	if err := g.Log().GetLog(index, &e); err != nil {
		return err
	}
	_, trans := raft.NewInmemTransport("a:1")
	sink, err := g.Snapshots().Create(1, index, e.Term, raft.Configuration{}, 1, trans)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(sink, "state at ", index)
	return errors.Join(err, sink.Close())
}

// TestKilledWriter kills a writing process many times. Every acknowledged write is there afterwards, and the
// directory always opens.
func TestKilledWriter(t *testing.T) {
	rounds := 8
	if exhaustive() {
		rounds = 200
	}
	dir := t.TempDir()
	acked, first := map[uint64]uint64{}, uint64(1)
	for round := range rounds {
		first = max(first, runWriter(t, dir, acked))
		d, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		g, f := guardOver(d)
		for index, term := range acked {
			var e raft.Log
			if index < first {
				continue
			}
			if err := d.Log().GetLog(index, &e); err != nil || e.Term != term {
				t.Fatalf("round %d: entry %d of term %d: %v, term %d", round, index, term, err, e.Term)
			}
		}
		if err := g.Close(); err != nil || len(f.all()) > 0 {
			t.Fatal(err, f.all())
		}
	}
}

// runWriter runs the writer for a while, updates acked, and returns the first entry that must remain.
func runWriter(t *testing.T, dir string, acked map[uint64]uint64) (first uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writeDirEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines, stopAfter := 0, 20+rand.IntN(1500)
	for r := bufio.NewReader(out); ; lines++ {
		if lines == stopAfter {
			_ = cmd.Process.Kill()
		}
		line, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break // half a line has no meaning
		}
		if err != nil || strings.HasPrefix(line, "error") {
			t.Fatal(line, err)
		}
		var index, term uint64
		switch _, _ = fmt.Sscanf(line[4:], "%d %d", &index, &term); line[:4] {
		case "done":
			acked[index] = term
		case "keep":
			for i := range acked {
				if i > index {
					delete(acked, i)
				}
			}
		case "cut ":
			first = index
		default:
			t.Fatalf("the writer says %q", line)
		}
	}
	_ = cmd.Wait()
	return first
}
