package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"northstar/client"
)

// caFile returns the path of the CA certificate; ca may be its directory.
func caFile(ca string) string {
	if st, err := os.Stat(ca); err == nil && st.IsDir() {
		return filepath.Join(ca, "ca.crt")
	}
	return ca
}

// bearer returns the token. A list of processes shows flags, but not files. NORTHSTAR_TOKEN comes before a file. What
// it has read from a pipe stays in Token: a pipe has no second content.
func (a *globals) bearer() (string, error) {
	if a.Token != "" || a.TokenFile == "" {
		return a.Token, nil
	}
	data, err := os.ReadFile(a.TokenFile)
	if err != nil {
		return "", usagef("--token-file: %v", err)
	}
	token := strings.TrimSpace(string(data))
	if info, err := os.Stat(a.TokenFile); err != nil || !info.Mode().IsRegular() {
		a.Token = token
	}
	return token, nil
}

// connect returns a client of the cluster that the flags and the context name. The caller closes it.
func (a *app) connect() (*client.Client, error) {
	if err := a.applyContext(); err != nil {
		return nil, err
	}
	c, err := a.globals.connect(a.reach.dial)
	if err == nil {
		a.reach.setEndpoints(len(c.Endpoints()))
	}
	return c, err
}

// connect returns a client of the cluster that the flags name. dial nil: TCP. The caller closes it.
func (a *globals) connect(dial func(ctx context.Context, network, address string) (net.Conn, error)) (
	*client.Client, error,
) {
	if a.Timeout <= 0 {
		return nil, usagef("--timeout: must be more than 0")
	}
	bearer, err := a.bearer()
	if err != nil {
		return nil, err
	}
	cfg := client.Config{
		Endpoints: a.Endpoints, Token: bearer, Timeout: a.Timeout, UserAgent: "northstarctl/" + version,
		Dial: dial,
	}
	if a.Token == "" {
		cfg.TokenFile = a.TokenFile
	}
	if a.CA != "" || a.Cert != "" || a.Key != "" {
		tls, err := client.LoadTLS(caFile(a.CA), a.Cert, a.Key)
		if err != nil {
			return nil, &usageError{err}
		}
		cfg.TLS = tls
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, &usageError{err}
	}
	return c, nil
}

const dialTimeout = 2 * time.Second

// reachability ends the commands of which no endpoint accepts a connection: without it the client tries until its
// timeout. As soon as one connection was made, it has no effect.
type reachability struct {
	giveUp context.CancelCauseFunc // ends the command

	mu        sync.Mutex
	endpoints int  // configured ones
	reached   bool // some connection was made
	failed    map[string]error
}

func (r *reachability) setEndpoints(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endpoints = n
}

// dial opens a connection.
func (r *reachability) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext(ctx, network, address)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.reached = true
	case errors.Is(err, context.Canceled):
	case r.failed == nil:
		r.failed = map[string]error{address: err}
	default:
		r.failed[address] = err
	}
	if err := r.unreachableLocked(); err != nil && len(r.failed) >= r.endpoints && allRefused(r.failed) {
		r.giveUp(err)
	}
	return conn, err
}

// unreachable returns an error if connections were attempted and none was made.
func (r *reachability) unreachable() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unreachableLocked()
}

func (r *reachability) unreachableLocked() error {
	if r.reached || len(r.failed) == 0 {
		return nil
	}
	e := &unreachableError{}
	for _, address := range slices.Sorted(maps.Keys(r.failed)) {
		e.causes = append(e.causes, r.failed[address])
	}
	return e
}

// allRefused reports whether another attempt within a second would hardly have another result.
func allRefused(failed map[string]error) bool {
	for _, err := range failed {
		var dns *net.DNSError
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EHOSTUNREACH) &&
			!errors.Is(err, syscall.ENETUNREACH) && (!errors.As(err, &dns) || !dns.IsNotFound) {
			return false
		}
	}
	return true
}

// unreachableError: no endpoint accepted a connection.
type unreachableError struct{ causes []error }

func (e *unreachableError) Error() string {
	return fmt.Sprintf("no endpoint is reachable: %v (name running nodes with --endpoints, NORTHSTAR_ENDPOINTS or "+
		"--context)", errors.Join(e.causes...))
}

// explainUnreachable returns the error to report for err.
func (a *app) explainUnreachable(err error) error {
	var ended *commandError
	interrupted := errors.Is(context.Cause(a.ctx), context.Canceled)
	if err == nil || interrupted || errors.As(err, &ended) {
		return err
	}
	if unreachable := a.reach.unreachable(); unreachable != nil {
		return unreachable
	}
	return err
}
