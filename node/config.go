package node

import (
	"cmp"
	"net"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"northstar/cluster"
)

// Config is everything that can be set on a node. Flags, environment variables, the TOML file, `check-config` and the
// documentation are derived from it (Keys). A key is the field's name tag, behind the section's name and a dot.
//
// Load reads one; a Config made in Go starts from Default.
type Config struct {
	ID             cluster.NodeID `name:"id" default:"${hostname}" help:"Node ID, unique in the cluster for the life of its data: 1 to 63 of a-z, 0-9, '.', '_' and '-'. Default: the host name in lower case."`
	DataDir        string         `name:"data-dir" placeholder:"DIR" help:"Directory of the log, snapshots and identity. Required; locked against a second process."`
	HTTPAddr       string         `name:"http-addr" default:"127.0.0.1:7701" placeholder:"HOST:PORT" help:"Listen address of the API, the dashboard and the metrics. Port 0 picks a free port."`
	HTTPAdvertise  string         `name:"http-advertise" placeholder:"HOST:PORT" help:"HTTP address advertised to other nodes and clients. Default: http-addr."`
	RaftAddr       string         `name:"raft-addr" default:"127.0.0.1:7700" placeholder:"HOST:PORT" help:"Listen address for peer (Raft) traffic. Port 0 picks a free port."`
	RaftAdvertise  string         `name:"raft-advertise" placeholder:"HOST:PORT" help:"Raft address advertised to other nodes; host names are resolved for each connection. Default: raft-addr."`
	EtcdAddr       string         `name:"etcd-addr" placeholder:"HOST:PORT" help:"Listen address of the etcd v3 API (gRPC and JSON). Without it, the API is off. Port 0 picks a free port."`
	EtcdAdvertise  string         `name:"etcd-advertise" placeholder:"HOST:PORT" help:"etcd address that etcd clients are told. Default: etcd-addr."`
	DebugAddr      string         `name:"debug-addr" placeholder:"HOST:PORT" help:"Listen address of Go's profiles (/debug/pprof/); loopback only. Without it, there are none. Port 0 picks a free port."`
	ClusterName    string         `name:"cluster-name" default:"northstar" help:"Cluster name, part of certificate names. Do not change it once certificates are issued."`
	InitialCluster InitialCluster `name:"initial-cluster" placeholder:"ID=RAFT@HTTP,..." help:"Bootstrap members. Must be identical on all bootstrap nodes; ignored when the data directory is not empty."`
	Join           []string       `name:"join" placeholder:"HOST:PORT" help:"HTTP addresses of a running cluster to join. The node joins as a non-voter and is promoted once caught up and stable."`
	JoinToken      string         `name:"join-token" placeholder:"TOKEN" help:"Operator token for the join request, if the cluster uses tokens. Prefer the environment to a flag."`
	Discover       string         `name:"discover" placeholder:"URL" help:"dns://NAME[:PORT] (default port: that of http-addr) or dns+srv://NAME: HTTP addresses to join, resolved at start and retried until found."`
	Priority       int            `name:"priority" default:"100" help:"0 to 255; higher is preferred as leader, 0 never leads. First value only: later changes go through the API."`
	Eligible       bool           `name:"eligible" default:"true" negatable:"" help:"Whether this node may lead; if not, it votes, and leads only as a last resort, to transfer leadership. First value only."`
	Zone           string         `name:"zone" help:"Where this node is, at most 256 bytes of printable text; failover.zones and transfer --to-zone use it. First value only."`

	Election struct {
		TimeoutMin time.Duration `name:"timeout-min" default:"150ms" help:"Minimum election timeout: a follower starts an election after a random time between this and timeout-max without a heartbeat."`
		TimeoutMax time.Duration `name:"timeout-max" default:"300ms" help:"Maximum election timeout. Must be twice timeout-min: the Raft library uses that range."`
		Lease      bool          `name:"lease" help:"Clock-bounded leader lease: the leader answers reads with consistency=lease without a round trip."`
		LeaseDrift Percent       `name:"lease-drift" default:"10%" help:"Maximum clock drift assumed for leases, 0% to 50%."`
	} `embed:"" prefix:"election-"`
	Failover struct {
		Auto bool `name:"auto" default:"true" negatable:"" help:"Whether the cluster elects a new leader automatically. First value only, set by the first leader; later changes go through the API."`
		Fast bool `name:"fast" default:"true" negatable:"" help:"Fast failover: elect a new leader once a majority agrees that the leader is dead or silent, before election timeouts."`

		Silence       Silence       `name:"silence" default:"auto" help:"How long the leader may be silent before the survivors ask each other: 20ms to election.timeout-min, or auto: measured from how regularly the leader is heard. Needs failover.fast."`
		TakeoverDelay time.Duration `name:"takeover-delay" default:"5s" help:"How long a node with a higher priority than the leader must be healthy and caught up before leadership is transferred to it."`
		ExternalLock  string        `name:"external-lock" placeholder:"URL" help:"postgres://... of a PostgreSQL server (14 or later): the leader serves writes only while it also holds a lock there. Use the same value on every node; prefer the environment to a flag."`
		Hold          time.Duration `name:"hold" default:"0s" help:"How long a node holds a request while it knows no leader, before it refuses it (4002); at most 1m. 0s stands for twice election.timeout-max."`
		Zones         []string      `name:"zones" placeholder:"ZONE,..." help:"Zones in the order in which they are preferred for the leader, among members of the same priority. Use the same value on every node."`
	} `embed:"" prefix:"failover-"`
	Members struct {
		DeadAfter time.Duration `name:"dead-after" default:"0s" help:"Remove a voter after this time without contact, if at least three voters and a reachable majority remain; 10s to 8760h. Use the same value on all nodes; 0s disables it."`
	} `embed:"" prefix:"members-"`
	Nodes struct {
		Retention time.Duration `name:"retention" default:"1h" help:"How long a dead application node stays in the registry, 1m to 8760h. The leader's value counts; use the same value on every node."`
	} `embed:"" prefix:"nodes-"`
	Transfer struct {
		Timeout time.Duration `name:"timeout" default:"30s" help:"Maximum duration of a planned leadership transfer."`
	} `embed:"" prefix:"transfer-"`
	SplitBrain struct {
		Interval time.Duration `name:"interval" default:"1s" help:"Interval of split-brain checks with every peer, which find a second leader or another cluster: 100ms to 1m."`
	} `embed:"" prefix:"splitbrain-"`
	Snapshot struct {
		Threshold    uint64        `name:"threshold" default:"8192" help:"Take a snapshot after this many log entries."`
		Interval     time.Duration `name:"interval" default:"120s" help:"Snapshot check interval, up to twice as long; a start that replays snapshot.threshold entries checks, too."`
		TrailingLogs uint64        `name:"trailing-logs" default:"10240" help:"Log entries kept after a snapshot for lagging followers; at least 1000."`
	} `embed:"" prefix:"snapshot-"`
	Disk struct {
		Reserve Size `name:"reserve" default:"64MiB" help:"Preallocated reserve of disk space. Without it, the node is read-only until space is free again."`
	} `embed:"" prefix:"disk-"`
	Etcd struct {
		LeaseGrace       time.Duration `name:"lease-grace" default:"500ms" help:"How much longer than its TTL a lease lives at least: etcd's clients count the TTL from the answer to a keep-alive. 0s to 1m, the same on all nodes: the leader ends leases by its value, and each node answers by its own."`
		LeaseConnection  bool          `name:"lease-connection" help:"Whether a lease ends one second after the connection of its keep-alives is closed by the client's machine, as when its process dies. A stream with the metadata northstar-attach: 1 does so without it, and immediately."`
		CertRole         string        `name:"cert-role" placeholder:"ROLE" help:"Role of an etcd client whose certificate has no NorthStar URI, or is of etcd.tls.ca: observer, client or operator. Without it such a certificate is refused."`
		TLS              EtcdTLSConfig `embed:"" prefix:"tls-"`
		ProgressInterval time.Duration `name:"progress-interval" default:"10m" help:"Time after which a watch of the etcd API that asked for it, and had no event, is told how far it is: 100ms to 24h. Kubernetes works best with 5s."`
	} `embed:"" prefix:"etcd-"`
	Limits struct {
		StateBytes            Size   `name:"state-bytes" default:"1GiB" help:"Limit of the replicated state: keys and values, sessions, roles and application nodes. Beyond it, what grows the state is refused (4020). The leader's value counts; use the same value on every node."`
		SessionsPerIdentity   uint64 `name:"sessions-per-identity" default:"20000" help:"Limit of live sessions of one token or client certificate, 1 to 200000. The leader's value counts; use the same value on every node."`
		ConnectionsPerAddress int    `name:"connections-per-address" default:"1024" help:"Limit of open connections to http-addr from one address (IPv6: one /64), 16 to 1000000. Loopback has none if the node has no auth.tokens."`
	} `embed:"" prefix:"limits-"`
	Tracing struct {
		OTLP   string  `name:"otlp" placeholder:"URL" help:"http://HOST:PORT or https://HOST:PORT of an OpenTelemetry collector (OTLP over gRPC). Writes and failovers are sent to it as traces. Without it, there are none."`
		Sample Percent `name:"sample" default:"100%" help:"Share of the writes that are traced, 0% to 100%. Writes that belong to a client's trace follow that; failovers are always traced."`
	} `embed:"" prefix:"tracing-"`
	TLS  TLSConfig `embed:"" prefix:"tls-"`
	Auth struct {
		Tokens string `name:"tokens" placeholder:"FILE" help:"TOML file of [[token]] name, role, hash. Reloaded when it changes."`
		Public bool   `name:"public" default:"true" help:"Serve /status, /v1/cluster and /metrics without authentication. False: they need an observer."`
	} `embed:"" prefix:"auth-"`

	Insecure     bool          `name:"insecure" help:"Allow a non-loopback address without TLS: every client then has operator rights."`
	DrainTimeout time.Duration `name:"drain-timeout" default:"30s" help:"Maximum wait after SIGTERM for the leadership transfer and for requests in flight."`
	Log          LogConfig     `embed:"" prefix:"log-"`

	// sources has the place where the value of a key was set: "--priority", "NORTHSTAR_PRIORITY" or
	// "northstar.toml line 3". It does not have defaults.
	sources     map[string]string
	invalidKeys map[string]bool // keys whose value could not be read: Validate is silent about them
}

// TLSConfig holds the files of this node's certificate; all three or none.
type TLSConfig struct {
	Cert string `name:"cert" placeholder:"FILE" help:"Certificate of this node, PEM, with the URI northstar://CLUSTER-NAME/node/ID. Reloaded when it changes."`
	Key  string `name:"key" placeholder:"FILE" help:"Private key of the certificate, PEM."`
	CA   string `name:"ca" placeholder:"FILE" help:"Certificate authorities of nodes and clients, PEM."`
}

// EtcdTLSConfig holds the files of the etcd port's certificate; all three or none.
type EtcdTLSConfig struct {
	Cert string `name:"cert" placeholder:"FILE" help:"Certificate of the etcd port, PEM, if it is not tls.cert. Reloaded when it changes."`
	Key  string `name:"key" placeholder:"FILE" help:"Private key of the etcd port's certificate, PEM."`
	CA   string `name:"ca" placeholder:"FILE" help:"Certificate authorities of etcd clients, PEM, in place of tls.ca. Their certificates have etcd.cert-role, also those with a NorthStar URI."`
}

// Enabled reports whether the etcd port has a certificate of its own.
func (t EtcdTLSConfig) Enabled() bool { return t != EtcdTLSConfig{} }

// LogConfig is what is logged, to stderr.
type LogConfig struct {
	Level  string `name:"level" default:"info" help:"Log level: trace, debug, info, warn, error or off."`
	Format string `name:"format" default:"text" help:"Log format: text or json."`
}

// Enabled reports whether this node has a certificate.
func (t TLSConfig) Enabled() bool { return t.Cert != "" && t.Key != "" && t.CA != "" }

// AdvertisedHTTP is the HTTP address that others are told. The node puts the bound port in place of port 0.
func (c *Config) AdvertisedHTTP() string { return cmp.Or(c.HTTPAdvertise, c.HTTPAddr) }

// AdvertisedRaft is AdvertisedHTTP for peer traffic.
func (c *Config) AdvertisedRaft() string { return cmp.Or(c.RaftAdvertise, c.RaftAddr) }

// AdvertisedEtcd is AdvertisedHTTP for the etcd API.
func (c *Config) AdvertisedEtcd() string { return cmp.Or(c.EtcdAdvertise, c.EtcdAddr) }

// loopback reports whether only this machine can reach the host of addr. No name but localhost is resolved.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Key is one key of Config with its names in file, environment and flags.
type Key struct {
	Name    string // in the file: section.key
	Flag    string // without the dashes
	Env     string
	Default string // "" when there is none
	Help    string
	kind    reflect.Kind // of the field, in the file: Bool, Int, Slice, or String for all text forms
	secret  bool
}

// Keys returns all keys in the order of Config's fields.
var Keys = sync.OnceValue(func() []Key { return collectKeys(reflect.TypeFor[Config](), "") })

func collectKeys(t reflect.Type, section string) []Key {
	var all []Key
	for i := range t.NumField() {
		f := t.Field(i)
		if prefix, ok := f.Tag.Lookup("prefix"); ok {
			inner := strings.TrimSuffix(prefix, "-")
			if section != "" {
				inner = section + "." + inner
			}
			all = append(all, collectKeys(f.Type, inner)...)
			continue
		}
		name, ok := f.Tag.Lookup("name")
		if !ok {
			continue
		}
		if section != "" {
			name = section + "." + name
		}
		key := Key{
			Name: name, Default: f.Tag.Get("default"), Help: f.Tag.Get("help"), kind: fileKind(f.Type),
			secret: strings.HasSuffix(name, "token") || name == keyExternalLock,
		}
		key.Flag = strings.ReplaceAll(name, ".", "-")
		key.Env = "NORTHSTAR_" + strings.ToUpper(strings.ReplaceAll(key.Flag, "-", "_"))
		if key.kind == reflect.Bool && key.Default == "" {
			key.Default = "false"
		}
		all = append(all, key)
	}
	return all
}

// fileKind returns how the file writes a field: durations, sizes and other values with a unit are text.
func fileKind(t reflect.Type) reflect.Kind {
	switch {
	case t.PkgPath() != "" && t.Kind() != reflect.Slice:
		return reflect.String
	case t.Kind() == reflect.Int, t.Kind() == reflect.Uint64:
		return reflect.Int
	}
	return t.Kind()
}

func keyOfFlag(flag string) (Key, bool) {
	for _, k := range Keys() {
		if k.Flag == flag {
			return k, true
		}
	}
	return Key{}, false
}

// show returns a value as it may be printed.
func (k Key) show(value string) string {
	switch {
	case k.secret && value != "":
		return "(secret)"
	case k.kind == reflect.Int, k.kind == reflect.Bool:
		return value
	}
	return strconv.Quote(value)
}
