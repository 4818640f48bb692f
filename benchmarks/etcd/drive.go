package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// driver does what it is notified, one thing at a time.
type driver struct {
	endpoints []string
	attach    bool             // leases of holders that are killed end with their connections
	client    *clientv3.Client // for watches, requests and measurements
	roles     *roles
	lost      atomic.Int64 // leases that have ended
	watchers  watchers
	writer    writer
	endings   []func()
}

// drive reads one command a line and answers each with one line: "ok" and what
// was measured, durations in ns, or "error" and the reason. It ends with its input.
func drive(ctx context.Context, endpoints []string, attach bool, in io.Reader, out io.Writer) error {
	d := &driver{endpoints: endpoints, attach: attach}
	defer d.close()
	var err error
	if d.client, err = d.dial(); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		answer, err := d.do(ctx, strings.Fields(lines.Text()))
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		} else {
			answer = strings.TrimSpace("ok " + answer)
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (d *driver) do(ctx context.Context, args []string) (string, error) {
	if len(args) == 0 {
		return "", errors.New("empty command")
	}
	switch args[0] {
	case "leader":
		return d.leader(ctx)
	case "write": // once, at these endpoints
		if len(args) != 2 {
			return "", errors.New("write: endpoints are required")
		}
		return d.writer.write(ctx, args[1])
	case "campaign", "resign", "killed":
		if err := d.openRoles(); err != nil {
			return "", err
		}
		took, err := d.roles.round(ctx, args[0])
		return strconv.FormatInt(int64(took), 10), err
	}
	numbers := make([]int, 4)
	for i, a := range args[1:] {
		n, err := strconv.Atoi(a)
		if err != nil || i >= len(numbers) {
			return "", fmt.Errorf("%s: must be at most %d whole numbers (got %q)", args[0], len(numbers), args[1:])
		}
		numbers[i] = n
	}
	ttl := time.Duration(numbers[1]) * time.Millisecond
	switch args[0] {
	case "keep": // N leases of TTL ms, on few streams
		return "", d.keep(ctx, keepStreams, numbers[0], ttl)
	case "connect": // N clients with a lease of TTL ms each, kept over their own connection, at the leader
		return "", d.keep(ctx, numbers[0], numbers[0], ttl)
	case "lost":
		return strconv.Itoa(int(d.lost.Load())), nil
	case "renew": // with N clients for so many ms
		return d.renew(ctx, numbers[0], ttl)
	case "put", "range": // with N clients for so many ms, over so many connections, the first to this node after the leader
		endpoints, err := d.fromLeader(ctx, numbers[3])
		if err != nil {
			return "", err
		}
		return d.load(ctx, args[0] == "put", numbers[0], ttl, endpoints, numbers[2])
	case "watch": // N watchers
		return "", d.watch(ctx, numbers[0])
	case "events": // so many a second, for so many ms
		return d.events(ctx, numbers[0], ttl)
	}
	return "", fmt.Errorf("unknown command %q", args[0])
}

// config is of a client that says nothing on its own. With attach, its leases end with its connections, on NorthStar.
func config(endpoints []string, attach bool) clientv3.Config {
	c := clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second, Logger: zap.NewNop()}
	if attach {
		c.DialOptions = append(c.DialOptions, grpc.WithChainStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
			opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return open(metadata.AppendToOutgoingContext(ctx, "northstar-attach", "1"), desc, cc, method, opts...)
		}))
	}
	return c
}

// dial connects to endpoints, all unless some are given.
func (d *driver) dial(endpoints ...string) (*clientv3.Client, error) {
	if len(endpoints) == 0 {
		endpoints = d.endpoints
	}
	c, err := clientv3.New(config(endpoints, false))
	if err != nil {
		return nil, err
	}
	d.endings = append(d.endings, func() { _ = c.Close() })
	return c, nil
}

func (d *driver) close() {
	d.writer.close()
	for _, end := range slices.Backward(d.endings) {
		end()
	}
}

// leader waits until a member says that it leads, and returns its address.
func (d *driver) leader(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	last := errors.New("no node leads")
	for {
		for _, e := range d.endpoints {
			ask, done := context.WithTimeout(ctx, time.Second)
			st, err := d.client.Status(ask, e)
			done()
			switch {
			case err != nil:
				last = err
			case st.Leader != 0 && st.Leader == st.Header.MemberId:
				return e, nil
			}
		}
		if wait(ctx, 20*time.Millisecond) != nil {
			return "", fmt.Errorf("no leader: %w", last)
		}
	}
}
