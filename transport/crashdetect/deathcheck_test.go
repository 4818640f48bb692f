package crashdetect

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
)

// hello is what one try of a check meets.
type hello struct {
	bootID string
	err    error // errSilent: nothing until the try ends
}

var (
	errSilent = errors.New("silent")
	errFar    = errors.New("far away")
)

const (
	farRoundTrip = 80 * time.Millisecond
	far          = 300 * time.Millisecond
)

// A process that is about to die takes connections and says nothing on them: one try must not wait for it, and the
// whole check is bounded.
func TestDeathCheck(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	here, there := net.Pipe()
	defer there.Close()
	for _, tt := range []struct {
		name        string
		crashSocket error // of its dial; nil: not known
		hellos      []hello
		handshake   time.Duration
		want        cluster.Liveness
		took        time.Duration
	}{
		{"alive", nil, []hello{{bootID: "b1"}}, 0, cluster.LivenessAlive, 0},
		{"another process", nil, []hello{{bootID: "b2"}}, 0, cluster.LivenessRestarted, 0},
		{"nobody listens", nil, []hello{{err: refused}}, 0, cluster.LivenessDead, 0},
		{"a listener that dies", nil, []hello{{err: errSilent}, {err: refused}}, 0, cluster.LivenessDead, minTry},
		{"a far one", nil, []hello{{err: errSilent}, {err: refused}}, 5 * minTry, cluster.LivenessDead, 15 * minTry},
		{"a very far one", nil, []hello{{err: errFar}}, 160 * time.Millisecond, cluster.LivenessDead, farRoundTrip},
		{"a far and silent one", nil, []hello{{err: errSilent}}, 160 * time.Millisecond, cluster.LivenessUnclear, far},
		{"a silent one", nil, []hello{{err: errSilent}}, 0, cluster.LivenessUnclear, maxCheck},
		{"no crash socket any more", refused, nil, 0, cluster.LivenessDead, 0},
		{"a crash socket that lives", errConnected, []hello{{bootID: "b1"}}, 0, cluster.LivenessAlive, 0},
		{"a crash socket behind a firewall", errSilent, []hello{{bootID: "b1"}}, 0, cluster.LivenessAlive, minTry},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				check := DeathCheck{BootID: "b1", Handshake: tt.handshake, Far: far}
				tries := 0
				check.Hello = func(ctx context.Context) (string, error) {
					h := tt.hellos[min(tries, len(tt.hellos)-1)]
					tries++
					switch h.err {
					case errSilent:
						<-ctx.Done()
					case errFar: // refused, after a round trip
						select {
						case <-time.After(farRoundTrip):
							return "", refused
						case <-ctx.Done():
						}
					}
					return h.bootID, h.err
				}
				if tt.crashSocket != nil {
					check.CrashSocket = "there"
					check.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
						switch tt.crashSocket {
						case errConnected:
							return here, nil
						case errSilent:
							<-ctx.Done()
						}
						return nil, tt.crashSocket
					}
				}
				start := time.Now()
				if got := check.Run(t.Context()); got != tt.want || time.Since(start) != tt.took {
					t.Errorf("%s after %v, want %s after %v", got, time.Since(start), tt.want, tt.took)
				}
			})
		})
	}
}

var errConnected = errors.New("connected")
