package node

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/election"
	"northstar/state"
	"northstar/tracing"
)

// Limits that Validate checks.
const (
	minTimeout       = 10 * time.Millisecond // with less, a busy machine has constant elections
	maxTimeout       = time.Minute
	minDead, maxDead = 10 * time.Second, 365 * 24 * time.Hour
	minTakeover      = 100 * time.Millisecond
	maxTakeover      = 24 * time.Hour
	minTrailingLogs  = 1000 // with fewer, Raft installs a snapshot older than the applied state
	minReserve       = Size(1 << 20)
	maxLeaseDrift    = Percent(50)
	minWatch         = 100 * time.Millisecond // a shorter interval costs more than it shows
	maxWatch         = time.Minute
	minProgress      = 100 * time.Millisecond
	maxProgress      = 24 * time.Hour
	maxTransfer      = apiv1.MaxTimeoutMS * time.Millisecond
	maxHold          = apiv1.MaxTimeoutMS * time.Millisecond
	minRetention     = time.Minute
	maxRetention     = 365 * 24 * time.Hour
	maxZones         = 64
)

// Validate returns every problem, joined; each is a *Problem. It reads the certificate and token files, checks
// the certificate's dates against now, and changes nothing.
func (c *Config) Validate(now time.Time) error {
	v := validator{cfg: c, now: now}
	v.identity()
	v.addresses()
	v.startWays()
	v.placement()
	v.timing()
	v.storage()
	v.security()
	v.logging()
	return errors.Join(v.problems...)
}

type validator struct {
	cfg      *Config
	now      time.Time
	problems []error
}

func (v *validator) problem(key string, value any, format string, args ...any) {
	if v.cfg.invalidKeys[key] {
		return // already reported; the field has its default
	}
	text := ""
	if value != nil {
		text = fmt.Sprint(value)
	}
	for _, k := range Keys() {
		if k.Name == key && value != nil {
			text = k.show(text)
		}
	}
	err := fmt.Errorf(format, args...)
	v.problems = append(v.problems, &Problem{
		Key: key, Value: text, Source: v.cfg.sources[key],
		Message: err.Error(), cause: errors.Unwrap(err),
	})
}

// require adds a problem unless ok.
func (v *validator) require(ok bool, key string, value any, format string, args ...any) {
	if !ok {
		v.problem(key, value, format, args...)
	}
}

func (v *validator) identity() {
	c := v.cfg
	if _, err := cluster.ParseNodeID(string(c.ID)); err != nil {
		v.problem("id", c.ID, "must be 1 to 63 characters of a-z, 0-9, '.', '_' and '-', and start with a letter or digit")
	}
	v.require(c.DataDir != "", "data-dir", nil, "required")
	// Without TLS there are no certificates, and the name is only shown.
	name := c.ClusterName
	shown := !c.TLS.Enabled() && name != "" && len(name) <= cluster.MaxClusterNameBytes && url.PathEscape(name) == name
	if err := cluster.CheckClusterName(name); err != nil && !shown {
		v.problem("cluster-name", name, "%v", err)
	}
}

func (v *validator) addresses() {
	c := v.cfg
	v.address("http-addr", c.HTTPAddr, "http-advertise", c.HTTPAdvertise)
	v.address("raft-addr", c.RaftAddr, "raft-advertise", c.RaftAdvertise)
	if _, port, err := net.SplitHostPort(c.RaftAddr); err == nil && c.RaftAddr == c.HTTPAddr && port != "0" {
		v.problem("raft-addr", c.RaftAddr, "is the same as http-addr: each needs its own port")
	}
	v.etcd()
	v.diagnostics()
}

// diagnostics checks what is for finding faults. Profiles show the memory of the process, keys and tokens included, so
// no other machine may reach them, with TLS either.
func (v *validator) diagnostics() {
	c := v.cfg
	if c.DebugAddr != "" {
		if err := checkListen(c.DebugAddr); err != nil {
			v.problem("debug-addr", c.DebugAddr, "%v", err)
		} else {
			v.require(loopback(c.DebugAddr), "debug-addr", c.DebugAddr,
				"not a loopback address: profiles have no authentication and show the memory of this process; use 127.0.0.1 "+
					"and a tunnel")
			_, port, _ := net.SplitHostPort(c.DebugAddr)
			free := c.DebugAddr != c.HTTPAddr && c.DebugAddr != c.RaftAddr && c.DebugAddr != c.EtcdAddr
			v.require(port == "0" || free, "debug-addr", c.DebugAddr,
				"is the same as another address of this node: each needs its own port")
		}
	}
	if c.Tracing.OTLP != "" {
		if err := tracing.CheckEndpoint(c.Tracing.OTLP); err != nil {
			v.problem("tracing.otlp", c.Tracing.OTLP, "%v", err)
		}
	}
	v.require(c.Tracing.Sample >= 0 && c.Tracing.Sample <= 100, "tracing.sample", c.Tracing.Sample,
		"must be 0%% to 100%%")
}

func (v *validator) etcd() {
	c := v.cfg
	p := c.Etcd.ProgressInterval
	v.require(p >= minProgress && p <= maxProgress, "etcd.progress-interval", p, "must be %v to %v", minProgress,
		maxProgress)
	if r := c.Etcd.CertRole; r != "" {
		_, err := token.ParseRole(r)
		v.require(err == nil, "etcd.cert-role", r, "must be observer, client or operator")
	}
	g := c.Etcd.LeaseGrace
	v.require(g >= 0 && g <= time.Minute, "etcd.lease-grace", g, "must be 0s to 1m")
	v.require(c.EtcdAddr != "" || c.EtcdAdvertise == "", "etcd-advertise", c.EtcdAdvertise, "requires etcd-addr")
	if c.EtcdAddr == "" {
		return
	}
	v.address("etcd-addr", c.EtcdAddr, "etcd-advertise", c.EtcdAdvertise)
	v.etcdTLS()
	_, port, err := net.SplitHostPort(c.EtcdAddr)
	free := c.EtcdAddr != c.HTTPAddr && c.EtcdAddr != c.RaftAddr
	v.require(err != nil || port == "0" || free, "etcd-addr", c.EtcdAddr, "is the same as another address of this node: each needs its own port")
}

func (v *validator) address(listenKey, listen, advertiseKey, advertise string) {
	if err := checkListen(listen); err != nil {
		v.problem(listenKey, listen, "%v", err)
		return
	}
	if advertise != "" {
		if err := checkAdvertise(advertise); err != nil {
			v.problem(advertiseKey, advertise, "%v", err)
		}
		return
	}
	host, _, _ := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		v.problem(advertiseKey, nil,
			"required, since %s = %q listens on all addresses: others need one that they can dial",
			listenKey, listen)
	}
}

// startWays checks how an empty data directory gets a cluster, if there is any way.
func (v *validator) startWays() {
	c := v.cfg
	if len(c.InitialCluster) > 0 {
		v.initialCluster()
		v.require(len(c.Join) == 0, "join", strings.Join(c.Join, ","),
			"cannot be combined with initial-cluster: bootstrap nodes do not join an existing cluster")
		v.require(c.Discover == "", "discover", c.Discover,
			"cannot be combined with initial-cluster: bootstrap nodes do not join an existing cluster")
	}
	for _, addr := range c.Join {
		if err := checkAdvertise(addr); err != nil {
			v.problem("join", strings.Join(c.Join, ","), "%v", err)
		}
	}
	if c.Discover != "" {
		if _, err := parseDiscover(c.Discover, c.HTTPAddr); err != nil {
			v.problem("discover", c.Discover, "%v", err)
		}
	}
	v.require(c.JoinToken == "" || len(c.Join) > 0 || c.Discover != "", "join-token", c.JoinToken,
		"requires join or discover")
}

func (v *validator) initialCluster() {
	c := v.cfg
	if err := c.InitialCluster.check(); err != nil {
		v.problem("initial-cluster", c.InitialCluster, "%v", err)
	}
	self, ok := c.InitialCluster.find(c.ID)
	if !ok {
		v.problem("initial-cluster", c.InitialCluster, "does not name this node: its id is %q", c.ID)
		return
	}
	v.require(self.RaftAddress == c.AdvertisedRaft(), "initial-cluster", c.InitialCluster,
		"says that this node's raft address is %s, but it advertises %s", self.RaftAddress, c.AdvertisedRaft())
	v.require(self.HTTPAddress == c.AdvertisedHTTP(), "initial-cluster", c.InitialCluster,
		"says that this node's HTTP address is %s, but it advertises %s", self.HTTPAddress, c.AdvertisedHTTP())
}

func (v *validator) placement() {
	p := v.cfg.Priority
	v.require(p >= 0 && p <= cluster.MaxPriority, "priority", p, "must be 0 to %d", cluster.MaxPriority)
	if err := cluster.CheckZone(v.cfg.Zone); err != nil {
		v.problem("zone", v.cfg.Zone, "%v", err)
	}
	zones := v.cfg.Failover.Zones
	v.require(len(zones) <= maxZones, "failover.zones", len(zones), "must be at most %d zones", maxZones)
	for i, zone := range zones {
		v.require(zone != "" && !slices.Contains(zones[:i], zone), "failover.zones", strings.Join(zones, ","),
			"must name each zone once, and no empty one")
		if err := cluster.CheckZone(zone); err != nil {
			v.problem("failover.zones", strings.Join(zones, ","), "%v", err)
		}
	}
}

func (v *validator) timing() {
	e := v.cfg.Election
	v.require(e.TimeoutMin >= minTimeout && e.TimeoutMin <= maxTimeout, "election.timeout-min", e.TimeoutMin,
		"must be %v to %v", minTimeout, maxTimeout)
	v.require(e.TimeoutMax == 2*e.TimeoutMin, "election.timeout-max", e.TimeoutMax,
		"must be twice election.timeout-min, which is %v", e.TimeoutMin)
	v.require(!e.Lease || hasBootClock, "election.lease", e.Lease,
		"needs a clock that runs on while the machine is suspended, which this operating system does not offer")
	v.require(e.LeaseDrift >= 0 && e.LeaseDrift <= maxLeaseDrift, "election.lease-drift", e.LeaseDrift,
		"must be 0%% to %v", maxLeaseDrift)
	f := v.cfg.Failover.TakeoverDelay
	v.require(f >= minTakeover && f <= maxTakeover, "failover.takeover-delay", f, "must be %v to %v", minTakeover,
		maxTakeover)
	h := v.cfg.Failover.Hold
	v.require(h >= 0 && h <= maxHold, "failover.hold", h, "must be 0s to %v", maxHold)
	r := v.cfg.Nodes.Retention
	v.require(r >= minRetention && r <= maxRetention, "nodes.retention", r, "must be %v to %v", minRetention,
		maxRetention)
	s := time.Duration(v.cfg.Failover.Silence)
	v.require(s == 0 || s >= election.MinSilence && s <= e.TimeoutMin, "failover.silence", s,
		"must be auto, or %v to election.timeout-min, which is %v", election.MinSilence, e.TimeoutMin)
	d := v.cfg.Members.DeadAfter
	v.require(d == 0 || d >= minDead && d <= maxDead, "members.dead-after", d, "must be 0s, or %v to %v", minDead,
		maxDead)
	if lock := v.cfg.Failover.ExternalLock; lock != "" {
		if _, err := newExternalElector(v.cfg, "check"); err != nil {
			v.problem(keyExternalLock, lock, "%v", err)
		}
	}
	t := v.cfg.Transfer.Timeout
	v.require(t >= time.Millisecond && t <= maxTransfer, "transfer.timeout", t, "must be 1ms to %v", maxTransfer)
	w := v.cfg.SplitBrain.Interval
	v.require(w >= minWatch && w <= maxWatch, "splitbrain.interval", w, "must be %v to %v", minWatch, maxWatch)
	v.require(v.cfg.DrainTimeout >= 0, "drain-timeout", v.cfg.DrainTimeout, "must not be negative")
}

func (v *validator) storage() {
	s := v.cfg.Snapshot
	v.require(s.Threshold > 0, "snapshot.threshold", s.Threshold, "must be more than 0")
	v.require(s.Interval >= 5*time.Millisecond, "snapshot.interval", s.Interval, "must be at least 5ms")
	v.require(s.TrailingLogs >= minTrailingLogs, "snapshot.trailing-logs", s.TrailingLogs, "must be at least %d",
		minTrailingLogs)
	v.require(v.cfg.Disk.Reserve >= minReserve, "disk.reserve", v.cfg.Disk.Reserve, "must be at least %v", minReserve)
	l := v.cfg.Limits
	v.require(l.StateBytes >= state.MinStateBytes && l.StateBytes <= state.MaxStateBytes, "limits.state-bytes",
		l.StateBytes, "must be %v to %v", Size(state.MinStateBytes), Size(state.MaxStateBytes))
	v.require(l.SessionsPerIdentity >= 1 && l.SessionsPerIdentity <= state.MaxSessions, "limits.sessions-per-identity",
		l.SessionsPerIdentity, "must be 1 to %d", state.MaxSessions)
}

func (v *validator) security() {
	per := v.cfg.Limits.ConnectionsPerAddress
	v.require(per >= 16 && per <= 1_000_000, "limits.connections-per-address", per, "must be 16 to 1000000")
	c := v.cfg
	if c.TLS != (TLSConfig{}) && v.files("tls", c.TLS) {
		if key, err := checkCertificate(c.TLS, c.ClusterName, c.ID, v.now); err != nil {
			v.problem(key, map[string]string{"tls.cert": c.TLS.Cert, "tls.ca": c.TLS.CA}[key], "%w", err)
		}
	}
	if c.Auth.Tokens != "" {
		if err := checkTokens(c.Auth.Tokens); err != nil {
			v.problem("auth.tokens", c.Auth.Tokens, "%w", err)
		}
	}
	if c.Insecure || c.TLS.Enabled() {
		return // with a CA, client certificates are accepted in addition to tokens
	}
	for _, a := range []struct{ key, addr string }{
		{"http-addr", c.HTTPAddr}, {"raft-addr", c.RaftAddr}, {"etcd-addr", c.EtcdAddr},
	} {
		v.require(a.key == "etcd-addr" && a.addr == "" || checkListen(a.addr) != nil || loopback(a.addr), a.key, a.addr,
			"not a loopback address: set tls.cert, tls.key and tls.ca, or insecure=true (no authentication)")
	}
}

func (v *validator) logging() {
	l := v.cfg.Log
	v.require(hclog.LevelFromString(l.Level) != hclog.NoLevel, "log.level", l.Level,
		"must be trace, debug, info, warn, error or off")
	v.require(l.Format == "text" || l.Format == "json", "log.format", l.Format, "must be text or json")
}

// checkTokens reads the token file as the API will.
func checkTokens(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	_, err = token.ParseFile(data)
	return err
}
