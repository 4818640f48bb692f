package storage

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestWriteErrorIsFatal: each kind of failed write ends the use of the storage, once. Operations whose error
// would make the library panic do not return.
func TestWriteErrorIsFatal(t *testing.T) {
	broken := errors.New("broken disk")
	for _, test := range []struct {
		op    string
		write func(g *Guarded) error
		parks bool
	}{
		{"StoreLogs", func(g *Guarded) error { return g.Log().StoreLogs(entries(3, 2, 1, 10)) }, false},
		{"DeleteRange", func(g *Guarded) error { return g.Log().DeleteRange(1, 1) }, false},
		{"SetUint64", func(g *Guarded) error { return g.Stable().SetUint64([]byte(keyCurrentTerm), 1) }, true},
		{"GetLog", func(g *Guarded) error {
			g.cache.clear()
			return g.Log().GetLog(1, new(raft.Log))
		}, true},
	} {
		t.Run(test.op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemStorage()
				g, f := guardOver(m)
				mustStore(t, g.Log(), entries(1, 2, 1, 10))
				m.setHook(func(op string) error {
					if op == test.op {
						return broken
					}
					return nil
				})
				returned, ended := make(chan error, 1), make(chan struct{})
				go func() {
					defer close(ended)
					returned <- test.write(g)
				}()
				synctest.Wait()
				select {
				case err := <-returned:
					if test.parks || !errors.Is(err, broken) {
						t.Errorf("returned %v", err)
					}
				default:
					if !test.parks {
						t.Error("does not return")
					}
				}
				m.setHook(nil)
				if err := g.Log().StoreLogs(entries(3, 1, 1, 10)); !errors.Is(err, broken) {
					t.Errorf("a later write: %v", err)
				}
				if errs := f.all(); len(errs) != 1 || !errors.Is(errs[0], broken) {
					t.Errorf("fatal: %v", errs)
				}
				if err := g.Close(); err != nil {
					t.Error(err)
				}
				<-ended
			})
		})
	}
}

// TestParkedCallReturnsInTheEnd: a blocked caller gets its error eventually if the storage is never closed.
func TestParkedCallReturnsInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemStorage()
		g, _ := guardOver(m)
		m.setHook(func(string) error { return io.ErrUnexpectedEOF })
		if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 1); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v", err)
		}
	})
}

func TestSaveErrorIsNotFatal(t *testing.T) {
	m := newMemStorage()
	g, f := guardOver(m)
	m.setHook(func(string) error { return io.ErrUnexpectedEOF })
	if err := g.Save("identity.json", nil); !errors.Is(err, io.ErrUnexpectedEOF) || len(f.all()) != 0 {
		t.Errorf("got %v, fatal %v", err, f.all())
	}
}

// TestAfterClose: after Close no error is fatal, and no caller gets an error that makes the library panic.
func TestAfterClose(t *testing.T) {
	g, f := guardOver(openDir(t, t.TempDir()))
	mustStore(t, g.Log(), entries(1, 4, 1, 10))
	g.cache.clear()
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := g.Log().StoreLogs(entries(5, 1, 1, 10)); !errors.Is(err, ErrClosed) {
		t.Errorf("StoreLogs: %v", err)
	}
	if _, err := g.Snapshots().Create(1, 1, 1, raft.Configuration{}, 1, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Create: %v", err)
	}
	for name, call := range map[string]func() error{
		"GetLog":    func() error { return g.Log().GetLog(1, new(raft.Log)) },
		"SetUint64": func() error { return g.Stable().SetUint64([]byte(keyCurrentTerm), 2) },
	} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			t.Errorf("%s returned %v", name, call())
		}()
		<-ended
	}
	if errs := f.all(); len(errs) > 0 {
		t.Errorf("fatal: %v", errs)
	}
}

// TestCloseOfAHungStorage: a process whose disk hangs can still end.
func TestCloseOfAHungStorage(t *testing.T) {
	for fatal, limit := range map[bool]time.Duration{true: joinTimeout, false: maxBlock} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemStorage()
			g, _ := guardOver(m)
			free := make(chan struct{})
			m.setHook(func(op string) error { <-free; return nil })
			if fatal {
				g.fail(errors.New("the disk hangs"))
			}
			start := time.Now()
			if err := g.Close(); err == nil || time.Since(start) != limit {
				t.Errorf("fatal %v: after %v: %v", fatal, time.Since(start), err)
			}
			close(free)
		})
	}
}

// TestPauseIsNoHungDisk: a process is stopped while an operation is outstanding. The time of the pause does not count.
func TestPauseIsNoHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemStorage()
		g, _ := guardOver(m)
		free := make(chan struct{})
		m.setHook(func(op string) error { <-free; return nil })
		saved := make(chan error, 1)
		go func() { saved <- g.Save("file", nil) }()
		synctest.Wait()
		g.checkHung()
		for range 3 {
			time.Sleep(exitAfter + time.Second) // nothing runs
			g.checkHung()
			if err := g.Err(); err != nil {
				t.Fatalf("after a pause: %v", err)
			}
		}
		ran := time.Duration(0)
		for ; g.Err() == nil && ran <= 2*exitAfter; ran += hangCheckEvery {
			time.Sleep(hangCheckEvery)
			g.checkHung()
		}
		if want := exitAfter + hangCheckEvery; ran != want {
			t.Errorf("hung after %v without a pause, want %v", ran, want)
		}
		close(free)
		<-saved
	})
}

func TestSnapshotProgress(t *testing.T) {
	g := guardDir(t, t.TempDir())
	makeSnapshot(t, g, 5, 1)
	if g.Progress() != 3000 {
		t.Errorf("progress %d after writing", g.Progress())
	}
	metas, err := g.Snapshots().List()
	if err != nil || len(metas) != 1 {
		t.Fatal(metas, err)
	}
	_, r, err := g.Snapshots().Open(metas[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r); err != nil || g.Progress() != 6000 {
		t.Errorf("progress %d after reading, %v", g.Progress(), err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
