package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"net"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"

	"northstar/consensus/storage"
	"northstar/telemetry"
	"northstar/transport"
)

// Env holds what a node uses of the operating system. The zero value of a field selects the real implementation.
type Env struct {
	// Listen opens the listeners for peers and for HTTP.
	Listen func(addr string) (net.Listener, error)
	// Dial opens connections to other nodes, for peer traffic and HTTP. It resolves host names each time.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// OpenStorage opens the data directory.
	OpenStorage func(storage.Options) (storage.Storage, error)
	// LeaseClock includes the time for which the machine is suspended.
	LeaseClock func() time.Duration
	// Entropy is the source of cluster IDs, incarnations and boot IDs.
	Entropy io.Reader
	// Resolver looks up the names of discover.
	Resolver Resolver
	// Notify sends the state of this process to the service manager, like sd_notify.
	Notify func(state string)
	// WatchdogInterval is the period of WATCHDOG=1. 0: as the service manager says; negative: no watchdog.
	WatchdogInterval time.Duration
	// Faults is the hook of chaos tests in peer traffic.
	Faults transport.Faults
	// RaftMetrics collects the metrics of the Raft library: one for the whole process. May be nil.
	RaftMetrics *telemetry.RaftSink
	// Logger is the root logger. The default discards everything.
	Logger hclog.Logger
}

func (e Env) withDefaults() Env {
	if e.Listen == nil {
		e.Listen = func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }
	}
	if e.Dial == nil {
		e.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	if e.OpenStorage == nil {
		e.OpenStorage = func(o storage.Options) (storage.Storage, error) { return storage.Open(o) }
	}
	if e.LeaseClock == nil {
		e.LeaseClock = sinceBoot
	}
	e.Entropy = cmp.Or(e.Entropy, rand.Reader)
	e.Resolver = cmp.Or[Resolver](e.Resolver, net.DefaultResolver)
	e.Logger = cmp.Or(e.Logger, hclog.NewNullLogger())
	if e.Notify == nil {
		// without a service manager there is nothing to do
		e.Notify = func(state string) { _, _ = daemon.SdNotify(false, state) }
	}
	if e.WatchdogInterval == 0 {
		e.WatchdogInterval = -1
		if every, err := daemon.SdWatchdogEnabled(false); err == nil && every > 0 {
			e.WatchdogInterval = every / 3
		}
	}
	return e
}
