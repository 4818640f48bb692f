package pg

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"northstar/chaos/ports"
)

// ErrNoPatroni: this machine has no Patroni that can use etcd.
var ErrNoPatroni = errors.New("no Patroni here (Debian: apt-get install patroni python3-etcd)")

// Timing of Patroni's own: a primary that is gone is replaced after PatroniTTL + PatroniLoop at the latest.
const (
	PatroniTTL  = 20 * time.Second
	PatroniLoop = 2 * time.Second

	patroniRetry = 8 * time.Second // for a request to etcd with its repetitions
)

// The interpreter and the program of the distribution's package.
const (
	python  = "/usr/bin/python3"
	patroni = "/usr/bin/patroni"
)

// Patroni is one PostgreSQL server under Patroni, which keeps the cluster's state in etcd.
type Patroni struct {
	*Server
	name, rest string
	ended      chan struct{} // closed when Patroni has ended
	patroni    *exec.Cmd
}

// StartPatroni starts Patroni, and with it a server, as a member of a cluster. The first member makes the database,
// the others copy it. etcd has the addresses of the etcd cluster, as host:port.
func StartPatroni(ctx context.Context, name string, etcd []string) (*Patroni, error) {
	if out, err := exec.CommandContext(ctx, python, "-c", "import patroni.dcs.etcd3, patroni.psycopg").
		CombinedOutput(); err != nil {
		lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
		return nil, fmt.Errorf("%w: %w: %s", ErrNoPatroni, err, lines[len(lines)-1])
	}
	server, err := prepare()
	if err != nil {
		return nil, err
	}
	rest, err := ports.Reserve(1)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(server.dir))
	}
	p := &Patroni{Server: server, name: name, rest: rest[0], ended: make(chan struct{})}
	if err := p.run(ctx, etcd); err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.dir))
	}
	return p, nil
}

func (p *Patroni) run(ctx context.Context, etcd []string) error {
	text, err := json.MarshalIndent(p.config(etcd), "", "  ") // JSON is YAML
	if err != nil {
		return err
	}
	file := filepath.Join(p.dir, "patroni.yml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // Patroni has its own copy
	p.patroni = p.command(context.WithoutCancel(ctx), "", file)
	p.patroni.Path, p.patroni.Args[0] = patroni, patroni
	p.patroni.Stdout, p.patroni.Stderr = log, log
	endWithParent(p.patroni.SysProcAttr, syscall.SIGTERM) // then it stops the server
	started := make(chan error, 1)
	go keep(p.patroni, started, p.ended)
	return <-started
}

// config is Patroni's configuration. Connections need no password.
func (p *Patroni) config(etcd []string) map[string]any {
	type m = map[string]any
	return m{
		"scope": "test", "name": p.name,
		"restapi": m{"listen": p.rest, "connect_address": p.rest},
		"etcd3":   m{"hosts": etcd},
		"bootstrap": m{
			"dcs": m{
				"ttl": PatroniTTL.Seconds(), "loop_wait": PatroniLoop.Seconds(),
				"retry_timeout": patroniRetry.Seconds(),
			},
			"initdb": []any{m{"encoding": "UTF8"}, m{"locale": "C"}, m{"auth": "trust"}, "no-sync"},
		},
		"postgresql": m{
			"listen": p.Address(), "connect_address": p.Address(), "data_dir": p.data(), "bin_dir": p.bin,
			"pgpass":         filepath.Join(p.dir, "pgpass"),
			"authentication": m{"superuser": m{"username": "postgres"}, "replication": m{"username": "replicator"}},
			"pg_hba":         []string{"host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"},
			"parameters": m{
				"unix_socket_directories": "", "fsync": "off", "shared_buffers": "16MB", "max_connections": 20,
				"dynamic_shared_memory_type": "mmap",
			},
		},
	}
}

// Primary reports whether Patroni says that its server is the primary, with the lock in etcd.
func (p *Patroni) Primary(ctx context.Context) bool { return p.is(ctx, "primary") }

// Replica reports whether Patroni says that its server is a running replica.
func (p *Patroni) Replica(ctx context.Context) bool { return p.is(ctx, "replica") }

func (p *Patroni) is(ctx context.Context, role string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.rest+"/"+role, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Log returns what Patroni and its server have logged.
func (p *Patroni) Log() string {
	text, _ := os.ReadFile(p.log()) // before its start there is none
	return string(text)
}

// Crash ends Patroni and its server with SIGKILL, as the loss of their machine does. It needs Linux.
func (p *Patroni) Crash() error {
	if err := syscall.Kill(-p.patroni.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	<-p.ended
	return p.endProcesses()
}

// Stop ends Patroni and its server, and removes the database.
func (p *Patroni) Stop() error {
	return errors.Join(p.Crash(), p.remove())
}
