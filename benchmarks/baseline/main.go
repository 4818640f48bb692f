// Command baseline is the yardstick: hashicorp/raft with raft-boltdb and the library's default options behind the
// smallest HTTP handler that can be measured. It has none of NorthStar's guards.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

type fsm struct {
	mu   sync.RWMutex
	data map[string][]byte
}

// Apply stores an entry of the form key, NUL, value.
func (f *fsm) Apply(l *raft.Log) any {
	key, value, ok := bytes.Cut(l.Data, []byte{0})
	if !ok {
		return errors.New("bad entry")
	}
	f.mu.Lock()
	f.data[string(key)] = value
	f.mu.Unlock()
	return nil
}

// The measured runs end before a snapshot is due.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.New("not measured") }
func (f *fsm) Restore(io.ReadCloser) error         { return errors.New("not measured") }

func main() {
	id := flag.String("id", "", "node ID")
	dir := flag.String("data-dir", "", "data directory")
	raftAddr := flag.String("raft-addr", "", "raft address")
	httpAddr := flag.String("http-addr", "", "HTTP address")
	cluster := flag.String("initial-cluster", "", "n1=RAFT@HTTP,…")
	timeout := flag.Duration("timeout-min", 0, "heartbeat and election timeout; 0: the library's default")
	flag.Parse()
	if err := serve(*id, *dir, *raftAddr, *httpAddr, *cluster, *timeout); err != nil {
		log.Fatal(err)
	}
}

func serve(id, dir, raftAddr, httpAddr, cluster string, timeout time.Duration) error {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(id)
	conf.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Error, Output: os.Stderr})
	if timeout > 0 {
		conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = timeout, timeout, timeout
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	store, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft.db"))
	if err != nil {
		return err
	}
	trans, err := raft.NewTCPTransport(raftAddr, nil, 3, 10*time.Second, io.Discard)
	if err != nil {
		return err
	}
	f := &fsm{data: map[string][]byte{}}
	r, err := raft.NewRaft(conf, f, store, store, raft.NewDiscardSnapshotStore(), trans)
	if err != nil {
		return err
	}
	var servers []raft.Server
	for part := range strings.SplitSeq(cluster, ",") {
		name, rest, _ := strings.Cut(part, "=")
		peer, _, _ := strings.Cut(rest, "@")
		servers = append(servers, raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(peer)})
	}
	if err := r.BootstrapCluster(raft.Configuration{Servers: servers}).Error(); err != nil &&
		!errors.Is(err, raft.ErrCantBootstrap) {
		return err
	}
	return http.ListenAndServe(httpAddr, handler(r, f))
}

func handler(r *raft.Raft, f *fsm) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /leader", func(w http.ResponseWriter, _ *http.Request) {
		_, id := r.LeaderWithID()
		if id == "" {
			http.Error(w, "no leader", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"leader_id":%q}`, id)
	})
	mux.HandleFunc("POST /transfer/{id}/{addr}", func(w http.ResponseWriter, req *http.Request) {
		if err := r.LeadershipTransferToServer(raft.ServerID(req.PathValue("id")),
			raft.ServerAddress(req.PathValue("addr"))).Error(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("PUT /v1/kv/{key}", func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(io.LimitReader(req.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		entry := append(append([]byte(req.PathValue("key")), 0), body...)
		if err := r.Apply(entry, 5*time.Second).Error(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /v1/kv/{key}", func(w http.ResponseWriter, req *http.Request) {
		if err := r.VerifyLeader().Error(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		f.mu.RLock()
		v, ok := f.data[req.PathValue("key")]
		f.mu.RUnlock()
		if !ok {
			http.NotFound(w, req)
			return
		}
		_, _ = w.Write(v)
	})
	return mux
}
