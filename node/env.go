package node

import (
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

// Env is the world that a node lives in. The zero value of each field is the
// real one; a simulation brings its own.
type Env struct {
	// Listen opens the listeners for peers and for HTTP.
	Listen func(addr string) (net.Listener, error)
	// Dial opens connections to other nodes, for peer traffic and HTTP alike.
	// It resolves host names each time.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// OpenStorage opens the data directory.
	OpenStorage func(storage.Options) (storage.Storage, error)
	// LeaseClock runs on while the machine is suspended.
	LeaseClock func() time.Duration
	// Entropy is where cluster IDs, incarnations and boot IDs come from.
	Entropy io.Reader
	// Resolver looks up the names of discover.
	Resolver Resolver
	// Notify tells the service manager about the state of this process, as
	// sd_notify does.
	Notify func(state string)
	// WatchdogInterval is how often the service manager wants WATCHDOG=1; 0 asks it,
	// less than 0 means never.
	WatchdogInterval time.Duration
	// Faults is the hook of chaos tests into peer traffic.
	Faults transport.Faults
	// RaftMetrics is where the Raft library reports to, if it does: one for the
	// whole process.
	RaftMetrics *telemetry.RaftSink
	// Logger is where everything is logged; by default nowhere.
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
	if e.Entropy == nil {
		e.Entropy = rand.Reader
	}
	if e.Resolver == nil {
		e.Resolver = net.DefaultResolver
	}
	if e.Notify == nil {
		e.Notify = func(state string) { _, _ = daemon.SdNotify(false, state) } // no service manager: nothing to tell
	}
	if e.WatchdogInterval == 0 {
		e.WatchdogInterval = -1
		if every, err := daemon.SdWatchdogEnabled(false); err == nil && every > 0 {
			e.WatchdogInterval = every / 3
		}
	}
	if e.Logger == nil {
		e.Logger = hclog.NewNullLogger()
	}
	return e
}
