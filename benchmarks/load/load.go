// Package load is a closed-loop HTTP load generator: each client keeps exactly one request outstanding. It shares the
// machine with the servers it measures, so it speaks HTTP/1.1 by hand over one connection a client: a request is one
// prepared write, an answer one small parse.
package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Op makes the n-th request of one client.
type Op struct {
	Method string
	Path   func(client, n int) string
	Body   []byte
}

// Result is what one run measured.
type Result struct {
	Done     int           // answers with the wanted status
	Failed   int           // other answers, and broken connections
	Elapsed  time.Duration // of the measured part
	P50, P99 time.Duration
}

// PerSecond is the rate of good answers.
func (r Result) PerSecond() float64 { return float64(r.Done) / r.Elapsed.Seconds() }

// Run sends op from so many clients to addr for the duration, after a warm-up of a fifth of it that does not count.
func Run(ctx context.Context, addr string, clients int, d time.Duration, op Op) (Result, error) {
	start := time.Now().Add(d / 5)
	end := start.Add(d)
	conns := make([]*Conn, clients)
	for i := range conns {
		var err error
		if conns[i], err = Dial(ctx, addr); err != nil {
			return Result{}, err
		}
		defer conns[i].Close()
	}
	took := make([][]time.Duration, clients)
	var failed atomic.Int64
	var running errgroup.Group
	for i, conn := range conns {
		running.Go(func() error {
			latencies := make([]time.Duration, 0, 1<<16)
			defer func() { took[i] = latencies }()
			for n := 0; ctx.Err() == nil; n++ {
				sent := time.Now()
				if sent.After(end) {
					return nil
				}
				status, err := conn.Do(op.Method, op.Path(i, n), op.Body)
				switch latency := time.Since(sent); {
				case err != nil:
					return fmt.Errorf("client stopped: %w", err)
				case sent.Before(start):
				case status/100 == 2:
					latencies = append(latencies, latency)
				default:
					failed.Add(1)
				}
			}
			return nil
		})
	}
	err := running.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	res := Result{Done: len(all), Failed: int(failed.Load()), Elapsed: d}
	res.P50, res.P99 = Quantile(all, 0.50), Quantile(all, 0.99)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no request of %d succeeded", res.Failed)
	}
	return res, errors.Join(err, ctx.Err())
}

// Quantile of sorted durations.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Conn is one keep-alive connection with one request outstanding at most.
type Conn struct {
	c    net.Conn
	r    *bufio.Reader
	host string
	buf  []byte

	limit time.Duration // of one request
}

// doLimit bounds a request unless Limit says otherwise.
const doLimit = 10 * time.Second

// Dial connects to host:port.
func Dial(ctx context.Context, addr string) (*Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Conn{c: c, r: bufio.NewReaderSize(c, 8<<10), host: addr, limit: doLimit}, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.c.Close() }

// Limit bounds the time of each request from now on; it is 10 s before.
func (c *Conn) Limit(d time.Duration) { c.limit = d }

// Do sends one request and reads its answer whole, within the limit.
func (c *Conn) Do(method, path string, body []byte) (status int, err error) {
	_ = c.c.SetDeadline(time.Now().Add(c.limit))
	b := append(c.buf[:0], method...)
	b = append(b, ' ')
	b = append(b, path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, c.host...)
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	b = append(b, body...)
	c.buf = b
	if _, err := c.c.Write(b); err != nil {
		return 0, err
	}
	return c.readAnswer()
}

var (
	contentLength = []byte("content-length:")
	chunked       = []byte("transfer-encoding:")
)

func (c *Conn) readAnswer() (status int, err error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 12 {
		return 0, fmt.Errorf("bad status line %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, fmt.Errorf("bad status line %q", line)
	}
	length := 0
	for {
		line, err = c.r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if v, ok := headerValue(line, contentLength); ok {
			if length, err = strconv.Atoi(v); err != nil {
				return 0, fmt.Errorf("bad header %q", line)
			}
		} else if v, ok := headerValue(line, chunked); ok {
			return 0, fmt.Errorf("answer with transfer-encoding %s", v)
		}
	}
	_, err = io.CopyN(io.Discard, c.r, int64(length))
	return status, err
}

func headerValue(line, name []byte) (string, bool) {
	if len(line) < len(name) || !bytes.EqualFold(line[:len(name)], name) {
		return "", false
	}
	return string(bytes.TrimSpace(line[len(name):])), true
}
