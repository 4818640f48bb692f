package hostile

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// requestTimeout bounds a request of an attacker that waits for its answer.
const requestTimeout = 30 * time.Second

// head returns the header of a request, without the empty line that ends it.
func (a *attacker) head(i int, method, path, more string) string {
	return method + " " + path + " HTTP/1.1\r\nHost: " + a.HTTP + "\r\n" + a.authorization(i) + more
}

// ask makes a request on the worker's connection and reads the answer.
func (a *attacker) ask(ctx context.Context, w *worker, caller int, head, body string) error {
	if w.conn == nil {
		conn, err := a.dial(ctx, caller)
		if err != nil {
			return err
		}
		w.conn, w.read = conn, bufio.NewReader(conn)
	}
	_ = w.conn.SetDeadline(time.Now().Add(requestTimeout))
	text := head + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
	if _, err := io.WriteString(w.conn, text); err != nil {
		return err
	}
	resp, err := http.ReadResponse(w.read, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	a.count(resp.StatusCode)
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.Close {
		return errClosing
	}
	return nil
}

// unread makes the receive buffer of a connection small, so that the node has to keep what is not read.
func unread(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4 << 10)
	}
}

// sent sends text on a new connection of which nothing is read, and holds it.
func (a *attacker) sent(ctx context.Context, i int, placed func(), text string) error {
	conn, err := a.dial(ctx, i)
	if err != nil {
		return err
	}
	defer conn.Close()
	unread(conn)
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	placed()
	a.keep(ctx, conn, func() error { return nil })
	return nil
}

func doNothing(ctx context.Context, a *attacker) error {
	a.ready()
	<-ctx.Done()
	return nil
}

const bigPrefix = "hostile/big/"

func unreadList(ctx context.Context, a *attacker, i int, placed func()) error {
	return a.sent(ctx, i, placed, a.head(i, "GET", "/v1/kv?timeout_ms=60000&prefix="+bigPrefix, "\r\n"))
}

// unreadWatches holds watches, and changes what they show: 5 MB a second, which each of them would have to get.
func unreadWatches(ctx context.Context, a *attacker) error {
	changes, stop := context.WithCancel(ctx)
	defer stop()
	if a.First == 0 {
		go a.changeValues(changes) // ends with ctx, as the process does
	}
	return held(func(ctx context.Context, a *attacker, i int, placed func()) error {
		return a.sent(ctx, i, placed, a.head(i, "GET", "/v1/watch?prefix="+bigPrefix, "\r\n"))
	})(ctx, a)
}

func (a *attacker) changeValues(ctx context.Context) {
	w := &worker{}
	defer w.close()
	value := randomText(256 << 10)
	for i := 0; ctx.Err() == nil; i++ {
		head := a.head(0, "PUT", "/v1/kv/"+bigPrefix+strconv.Itoa(i%4), "")
		if err := a.ask(ctx, w, 0, head, value); err != nil {
			w.close()
		}
		wait(ctx, 50*time.Millisecond)
	}
}

// idle holds a connection of a caller without an identity: every second one has made a request before.
func idle(ctx context.Context, a *attacker, i int, placed func()) error {
	conn, err := a.dial(ctx, i)
	if err != nil {
		return err
	}
	defer conn.Close()
	if i%2 == 0 {
		w := &worker{conn: conn, read: bufio.NewReaderSize(conn, 512)}
		if err := a.ask(ctx, w, i, "GET /livez HTTP/1.1\r\nHost: "+a.HTTP+"\r\n", ""); err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Time{})
	}
	placed()
	return a.stay(ctx, conn)
}

// stay counts an open connection until it or ctx ends. It discards what the node sends.
func (a *attacker) stay(ctx context.Context, conn net.Conn) error {
	a.open.Add(1)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_, err := io.Copy(io.Discard, conn)
	if ctx.Err() == nil {
		a.open.Add(-1)
	}
	return err
}

// slowHeader sends a line of a header each second.
func slowHeader(ctx context.Context, a *attacker, i int, placed func()) error {
	return a.drip(ctx, i, placed, a.head(i, "GET", "/v1/kv/x", ""), "X-A: a\r\n")
}

// slowBody sends a body a byte a second: of a session, or of a value.
func slowBody(ctx context.Context, a *attacker, i int, placed func()) error {
	if i%2 == 0 {
		head := a.head(i, "POST", "/v1/sessions", "Content-Type: application/json\r\nContent-Length: 4096\r\n\r\n{")
		return a.drip(ctx, i, placed, head, " ")
	}
	path := fmt.Sprintf("/v1/kv/hostile/slow/%d?timeout_ms=60000", i)
	return a.drip(ctx, i, placed, a.head(i, "PUT", path, "Content-Length: 1048576\r\n\r\n"), "x")
}

// drip sends head, then more each second, until the node closes the connection or answers.
func (a *attacker) drip(ctx context.Context, i int, placed func(), head, more string) error {
	conn, err := a.dial(ctx, i)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, head); err != nil {
		return err
	}
	placed()
	a.keep(ctx, conn, func() error {
		_, err := io.WriteString(conn, more)
		return err
	})
	return nil
}

// raftConnection does one of four things with a connection to the raft port: it says nothing, sends garbage, sends
// half of a hello, or resets it.
func raftConnection(ctx context.Context, a *attacker, _ *worker, i int) error {
	conn, err := a.dialTo(ctx, a.Raft, i)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetLinger(0) // as many ports as connections would be in TIME_WAIT otherwise
	_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
	switch i % 4 {
	case 0:
	case 1:
		_, _ = io.WriteString(conn, randomText(4<<10))
	case 2:
		hello := binary.BigEndian.AppendUint32(append([]byte{'N', 'S', 'T', 0xf1, 1, 1}, make([]byte, 16)...), 8<<10)
		_, _ = conn.Write(append(hello, '{'))
	case 3:
		return nil
	}
	if i%16 < 4 { // others are not patient
		_, _ = conn.Read(make([]byte, 1))
	}
	return nil
}

func tokenlessPut(ctx context.Context, a *attacker, w *worker, i int) error {
	head := "PUT /v1/kv/hostile/x HTTP/1.1\r\nHost: " + a.HTTP + "\r\n"
	switch i % 3 {
	case 1:
		head += "Sec-Fetch-Site: cross-site\r\nOrigin: https://example.org\r\n"
	case 2:
		head += "Authorization: Bearer guess" + strconv.Itoa(i) + "\r\n"
	}
	return a.ask(ctx, w, w.number, head, "x")
}

// auditedCall makes a call that is recorded: a forbidden one, or one that finds nothing.
func auditedCall(ctx context.Context, a *attacker, w *worker, i int) error {
	head := a.head(w.number, "DELETE", "/v1/sessions/none-"+strconv.Itoa(i), "")
	if i%2 == 0 {
		head = a.head(w.number, "DELETE", "/admin/members/none", "")
	}
	return a.ask(ctx, w, w.number, head, "")
}

func fill(ctx context.Context, a *attacker, w *worker, i int) error {
	if i%4 == 0 {
		head := a.head(0, "PUT", fmt.Sprintf("/v1/kv/hostile/fill/%d", i), "")
		return a.ask(ctx, w, 0, head, randomText(256<<10))
	}
	body := fmt.Sprintf(`{"name":"fill","ttl_ms":86400000,"meta":{"text":%q}}`, randomText(3800))
	return a.ask(ctx, w, 0, a.head(0, "POST", "/v1/sessions", "Content-Type: application/json\r\n"), body)
}

// resetStream opens a stream, reads its first bytes, and resets the connection.
func resetStream(ctx context.Context, a *attacker, w *worker, i int) error {
	paths := []string{"/v1/watch?prefix=bystander/", "/v1/events", "/v1/roles/none/watch"}
	conn, err := a.dial(ctx, w.number)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.SetDeadline(time.Now().Add(requestTimeout))
	head := a.head(w.number, "GET", paths[i%len(paths)], "Accept: text/event-stream\r\n\r\n")
	if _, err := io.WriteString(conn, head); err != nil {
		return err
	}
	if resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 512), nil); err == nil {
		a.count(resp.StatusCode)
	}
	return nil
}

// randomText returns n bytes of text.
func randomText(n int) string { return strings.Repeat(rand.Text(), n/26+1)[:n] }
