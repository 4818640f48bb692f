package api

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"northstar/api/apiv1"
)

// lossyConn is a connection that breaks instead of returning the response to a report of connections, while losing is
// set.
type lossyConn struct {
	net.Conn
	losing *atomic.Bool
	lost   *atomic.Int64
}

func (c lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.losing.Load() && bytes.Contains(b[:max(n, 0)], []byte(`"kept"`)) {
		c.lost.Add(1)
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// TestAttach_AnswerIsLost: the leader records a connection of another node, and its answer is lost. When the client
// leaves, its node reports that to the leader, and so the session ends with its only connection.
func TestAttach_AnswerIsLost(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var losing atomic.Bool
		var lost atomic.Int64
		leader, follower := attachedPair(t, func(d *Deps) {
			d.Node.BootID = "boot-" + string(d.Node.ID)
			dial := d.Dial
			d.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := dial(ctx, addr)
				return lossyConn{conn, &losing, &lost}, err
			}
		})
		id := follower.sessionOf(60_000)
		losing.Store(true)
		ctx, hangUp := context.WithCancel(t.Context())
		r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/v1/sessions/"+id+"/attach", nil).WithContext(ctx)
		r.RemoteAddr = "127.0.0.1:1"
		over := make(chan struct{})
		go func() {
			defer close(over)
			follower.ServeHTTP(httptest.NewRecorder(), r)
		}()
		eventually(t, func() bool { return lost.Load() > 0 })
		hangUp()
		<-over
		losing.Store(false)
		time.Sleep(2 * time.Second) // the follower asks the leader again
		if !leader.lives(id) {
			t.Fatal("the session has ended, and its client was never told that it depends on a connection")
		}
		if s := leader.stream("/v1/sessions/" + id + "/attach"); s.alive() != (apiv1.KeepAlive{TTLMS: 60_000}) {
			t.Error("it is not renewed")
		} else {
			s.resp.Body.Close()
		}
		leader.endsNow(id)
	})
}
