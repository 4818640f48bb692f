package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/api/apiv1"
)

// Intervals and limits of join requests.
const (
	joinAttemptTimeout = 10 * time.Second // for one address
	minJoinBackoff     = 200 * time.Millisecond
	maxJoinBackoff     = 5 * time.Second
	joinRepeatInterval = 10 * time.Second // between an accepted request and its repetition
	joinPollInterval   = 50 * time.Millisecond
)

// joiner asks a running cluster to add this node.
type joiner struct {
	self      apiv1.MemberAdd
	addresses []string
	discovery *discovery // nil: none
	resolver  Resolver
	client    *http.Client
	scheme    string // http or https
	token     string
	joined    func() bool // reports whether this node belongs to a cluster
	log       hclog.Logger

	lastError string // the error logged last; only a new one is logged
}

// run asks every address in turn until this node belongs to a cluster, which may start later than this node.
func (j *joiner) run(ctx context.Context) error {
	wait := minJoinBackoff
	for ctx.Err() == nil && !j.joined() {
		if j.ask(ctx) {
			wait = minJoinBackoff
			if j.waitJoined(ctx) {
				break
			}
			continue
		}
		// Jitter keeps many new nodes from asking at the same moment.
		sleep(ctx, wait/2+rand.N(wait))
		wait = min(2*wait, maxJoinBackoff)
	}
	return nil
}

// ask reports whether one of the addresses accepted this node.
func (j *joiner) ask(ctx context.Context) bool {
	addresses, err := j.find(ctx)
	troubles := []error{err}
	for _, addr := range addresses {
		err := j.post(ctx, addr)
		if err == nil {
			j.log.Info("join request accepted", "asked", addr)
			j.lastError = ""
			return true
		}
		troubles = append(troubles, fmt.Errorf("%s: %w", addr, err))
	}
	if err := errors.Join(troubles...); err != nil && ctx.Err() == nil && err.Error() != j.lastError {
		j.lastError = err.Error()
		j.log.Warn("join failed, retrying", "error", err)
	}
	return false
}

// find returns the addresses to ask: the configured ones and the result of a look-up.
func (j *joiner) find(ctx context.Context) ([]string, error) {
	addresses := slices.Clone(j.addresses)
	if j.discovery == nil {
		return addresses, nil
	}
	found, err := j.discovery.lookUp(ctx, j.resolver)
	for _, addr := range found {
		if addr != j.self.HTTPAddress && !slices.Contains(addresses, addr) {
			addresses = append(addresses, addr)
		}
	}
	switch {
	case err != nil:
		err = fmt.Errorf("discover: %w", err)
	case len(addresses) == 0:
		err = fmt.Errorf("discover: %s resolves only to this node", j.discovery.name)
	}
	return addresses, err
}

// post sends the join request to one address.
func (j *joiner) post(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, joinAttemptTimeout)
	defer cancel()
	body, err := json.Marshal(j.self)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, j.scheme+"://"+addr+"/admin/members",
		bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if j.token != "" {
		req.Header.Set("Authorization", "Bearer "+j.token)
	}
	resp, err := j.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if resp.StatusCode/100 == 2 {
		return nil
	}
	var p apiv1.Problem
	if json.Unmarshal(answer, &p) != nil || p.Detail == "" {
		return errors.New(resp.Status)
	}
	return fmt.Errorf("%s: %s", resp.Status, p.Detail)
}

// waitJoined waits until the leader has added this node, at most joinRepeatInterval.
func (j *joiner) waitJoined(ctx context.Context) bool {
	for deadline := time.Now().Add(joinRepeatInterval); time.Now().Before(deadline) &&
		ctx.Err() == nil; sleep(ctx, joinPollInterval) {
		if j.joined() {
			return true
		}
	}
	return false
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Resolver looks up names. *net.Resolver is one.
type Resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// maxDiscovered limits the addresses of one look-up.
const maxDiscovered = 64

// discovery is a DNS name that has the HTTP addresses of a running cluster.
type discovery struct {
	name string
	port string // "" with SRV records, which name the port
}

// parseDiscover reads dns://NAME[:PORT] and dns+srv://NAME. The default port is this node's HTTP port.
func parseDiscover(s, ownHTTP string) (discovery, error) {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
		return discovery{}, errors.New("must be dns://NAME[:PORT] or dns+srv://NAME")
	}
	switch u.Scheme {
	case "dns":
		port := u.Port()
		if port == "" {
			_, port, _ = net.SplitHostPort(ownHTTP)
		}
		return discovery{name: u.Hostname(), port: port}, nil
	case "dns+srv":
		if u.Port() != "" {
			return discovery{}, errors.New("the port comes from the SRV records: leave it out")
		}
		return discovery{name: u.Hostname()}, nil
	}
	return discovery{}, fmt.Errorf("scheme must be dns or dns+srv (got %q)", u.Scheme)
}

// lookUp returns the addresses that DNS has now.
func (d discovery) lookUp(ctx context.Context, r Resolver) ([]string, error) {
	var addresses []string
	if d.port != "" {
		hosts, err := r.LookupHost(ctx, d.name)
		if err != nil {
			return nil, err
		}
		for _, h := range hosts {
			addresses = append(addresses, net.JoinHostPort(h, d.port))
		}
	} else {
		_, records, err := r.LookupSRV(ctx, "", "", d.name)
		if err != nil {
			return nil, err
		}
		for _, rec := range records {
			addresses = append(addresses, net.JoinHostPort(strings.TrimSuffix(rec.Target, "."),
				strconv.Itoa(int(rec.Port))))
		}
	}
	return addresses[:min(len(addresses), maxDiscovered)], nil
}
