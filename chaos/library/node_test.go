package library

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// bubble runs f in virtual time. What the library still waits for after its
// shutdown ends in the minute after it.
func bubble(t *testing.T, f func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) })
		f(t)
	})
}

// node is one bare Raft. The other end of its wire is held by the test, which
// speaks for its peers, or leads to other nodes.
type node struct {
	*raft.Raft
	wire *wire
	disk *disk
	fsm  *words
}

// start makes a node of what is on a disk. Its ID is its address.
func start(t *testing.T, id string, d *disk, tune ...func(*raft.Config)) *node {
	t.Helper()
	n := &node{wire: newWire(id), disk: d, fsm: &words{}}
	n.startWith(t, d, d.snaps, n.wire, tune...)
	return n
}

func (n *node) startWith(t *testing.T, logs raft.LogStore, snaps raft.SnapshotStore, trans raft.Transport,
	tune ...func(*raft.Config),
) {
	t.Helper()
	var err error
	if n.Raft, err = raft.NewRaft(config(string(n.wire.addr), tune...), n.fsm, logs, n.disk, snaps, trans); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.stop)
}

func config(id string, tune ...func(*raft.Config)) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(id)
	conf.Logger = hclog.NewNullLogger()
	for _, f := range tune {
		f(conf)
	}
	return conf
}

// quick elects soon: for tests in real time.
func quick(c *raft.Config) {
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = 20*time.Millisecond, 20*time.Millisecond,
		20*time.Millisecond
}

// patient starts no election by itself.
func patient(c *raft.Config) { c.HeartbeatTimeout, c.ElectionTimeout = time.Hour, time.Hour }

func (n *node) stop() {
	n.wire.close()
	_ = n.Shutdown().Error()
}

// say delivers a message to the node and waits for the answer.
func (n *node) say(cmd any, data io.Reader) (any, error) {
	rpc := raft.RPC{Command: cmd, Reader: data}
	answer := make(chan raft.RPCResponse, 1)
	rpc.RespChan = answer
	late := time.After(5 * time.Second)
	select {
	case n.wire.in <- rpc:
	case <-late:
		return nil, errors.New("not taken")
	}
	select {
	case a := <-answer:
		return a.Response, a.Error
	case <-late:
		return nil, errors.New("not answered")
	}
}

// hear delivers a message to the node and requires an answer of type R.
func hear[R any](t *testing.T, n *node, cmd any) *R {
	t.Helper()
	got, err := n.say(cmd, nil)
	if err != nil {
		t.Fatalf("%T: %v", cmd, err)
	}
	return got.(*R)
}

// await waits for a condition: in a bubble virtual time passes.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// lead makes a node the leader, by peers that agree to everything.
func (n *node) lead(t *testing.T) {
	t.Helper()
	n.wire.set(agree)
	await(t, "it leads", func() bool { return n.State() == raft.Leader })
	if err := n.Barrier(5 * time.Second).Error(); err != nil {
		t.Fatal(err)
	}
}

// disk is a log, a vote and snapshots in memory.
type disk struct {
	*raft.InmemStore
	snaps   *raft.InmemSnapshotStore
	mu      sync.Mutex
	onStore func() error           // before entries are written
	onSet   func(key string) error // before a value is written
}

// newDisk is that of a node in a term, with the first configuration, as BootstrapCluster
// writes it, and entries. Of the servers those in capitals have no vote.
func newDisk(term uint64, servers string, entries ...*raft.Log) *disk {
	d := &disk{InmemStore: raft.NewInmemStore(), snaps: raft.NewInmemSnapshotStore()}
	_ = d.InmemStore.StoreLogs(append([]*raft.Log{configuration(1, 1, servers)}, entries...))
	_ = d.InmemStore.SetUint64([]byte("CurrentTerm"), term)
	return d
}

func servers(ids string) (c raft.Configuration) {
	for id := range strings.SplitSeq(ids, "") {
		s := raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)}
		if id == strings.ToUpper(id) {
			s.Suffrage = raft.Nonvoter
		}
		c.Servers = append(c.Servers, s)
	}
	return c
}

func configuration(index, term uint64, ids string) *raft.Log {
	return &raft.Log{
		Index: index, Term: term, Type: raft.LogConfiguration,
		Data: raft.EncodeConfiguration(servers(ids)),
	}
}

func entry(index, term uint64, word string) *raft.Log {
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: []byte(word)}
}

func (d *disk) hooks() (func() error, func(string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.onStore, d.onSet
}

func (d *disk) set(onStore func() error, onSet func(string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onStore, d.onSet = onStore, onSet
}

func (d *disk) StoreLog(l *raft.Log) error { return d.StoreLogs([]*raft.Log{l}) }

func (d *disk) StoreLogs(logs []*raft.Log) error {
	if f, _ := d.hooks(); f != nil {
		if err := f(); err != nil {
			return err
		}
	}
	return d.InmemStore.StoreLogs(logs)
}

func (d *disk) Set(key, val []byte) error {
	if _, f := d.hooks(); f != nil {
		if err := f(string(key)); err != nil {
			return err
		}
	}
	return d.InmemStore.Set(key, val)
}

func (d *disk) SetUint64(key []byte, val uint64) error {
	if _, f := d.hooks(); f != nil {
		if err := f(string(key)); err != nil {
			return err
		}
	}
	return d.InmemStore.SetUint64(key, val)
}

// words is a state machine: all words so far.
type words struct {
	mu        sync.Mutex
	said      []string
	onRestore func()
}

func (w *words) Apply(l *raft.Log) any {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, string(l.Data))
	return nil
}

func (w *words) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.said, " ")
}

func (w *words) Snapshot() (raft.FSMSnapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return shot(slices.Clone(w.said)), nil
}

func (w *words) Restore(from io.ReadCloser) error {
	if w.onRestore != nil {
		w.onRestore()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = nil
	return json.NewDecoder(from).Decode(&w.said)
}

type shot []string

func (s shot) bytes() []byte {
	b, _ := json.Marshal([]string(s))
	return b
}

func (s shot) Persist(to raft.SnapshotSink) error {
	if _, err := to.Write(s.bytes()); err != nil {
		return err
	}
	return to.Close()
}

func (shot) Release() {}
