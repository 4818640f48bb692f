package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// etcdAttacks returns the attacks on the etcd API.
//
// Large because it is a table.
func etcdAttacks() []Attack {
	return []Attack{
		{
			Name: "etcd-garbage", Unit: "calls and connections with malformed frames, messages and JSON", Full: 20000,
			Short: 800, Callers: 4, Etcd: true, Quiet: true, run: flood(32, garbage),
		},
		{
			Name: "etcd-idle", Unit: "idle connections of gRPC, of 20 addresses", Full: 20000, Short: 1500, Callers: 20,
			Etcd: true, Held: true, run: held(idleEtcd),
		},
		{
			Name: "etcd-streams", Unit: "open calls: watches, keep-alives, and messages that never end", Full: 10000,
			Short: 4000, Callers: 4, Etcd: true, Held: true, PerConn: 1000, run: heldCalls(patient, openCall),
		},
		{
			Name: "etcd-watches", Unit: "watches on one stream", Full: 100000, Short: 30000, Callers: 1, Etcd: true,
			Held: true, PerConn: 100000, run: heldCalls(patient, oneStream),
		},
		{
			Name: "etcd-unread-watches", Unit: "watches that no client reads, while 256 KiB values change", Full: 400,
			Short: 40, Callers: 4, Etcd: true, Held: true, prepare: fillHistory,
			run: changing(heldCalls(grpcLimits{}, watchBig)),
		},
		{
			Name: "etcd-unread-lists", Unit: "lists of 4 MiB that no client reads", Full: 400, Short: 60, Callers: 4,
			Etcd: true, Held: true, PerConn: 4, prepare: fillLists, run: heldCalls(grpcLimits{}, listBig),
		},
		{
			Name: "etcd-unread-gzip", Unit: "lists of 4 MiB that clients with gzip do not read", Full: 400, Short: 60,
			Callers: 4, Etcd: true, Held: true, PerConn: 4, prepare: fillLists, run: heldCalls(grpcLimits{}, listGzip),
		},
		{
			Name: "etcd-unread-values", Unit: "values of 60 KiB that no client reads", Full: 40000, Short: 6000,
			Callers: 4, Etcd: true, Held: true, PerConn: 500, prepare: fillSmall,
			run: heldCalls(grpcLimits{}, readSmall),
		},
		{
			Name: "etcd-unread-leaders", Unit: "values of 1 MiB of leaders that no client reads", Full: 400, Short: 60,
			Callers: 4, Etcd: true, Held: true, PerConn: 4, prepare: fillLists, run: heldCalls(grpcLimits{}, leaderBig),
		},
		{
			Name: "etcd-full-streams", Unit: "streams full of messages that neither side reads", Full: 10000, Short: 1500,
			Callers: 4, Etcd: true, Held: true, PerConn: 500, run: heldCalls(wanting, fullStream),
		},
		{
			Name: "etcd-history", Unit: "watches from the first of 1,200 revisions that no client reads", Full: 5000,
			Short: 2000, Callers: 4, Etcd: true, Held: true, PerConn: 500, prepare: fillRevisions,
			run: heldCalls(wanting, watchFirst),
		},
		{
			Name: "etcd-long-names", Unit: "streams of elections with names of 1.5 MiB", Full: 1000, Short: 60, Callers: 4,
			Etcd: true, Held: true, PerConn: 20, run: heldCalls(patient, longName),
		},
		{
			Name: "etcd-slow-bodies", Unit: "messages of 1.5 MiB whose last byte never comes", Full: 4000, Short: 200,
			Callers: 4, Etcd: true, Held: true, PerConn: 50, run: heldCalls(patient, slowMessage),
		},
		{
			Name: "etcd-slow-json", Unit: "JSON bodies of 4 MiB that never end", Full: 1000, Short: 100, Callers: 4,
			Etcd: true, Held: true, run: held(slowJSON),
		},
		{
			Name: "etcd-headers", Unit: "calls with 1 MiB of headers", Full: 4000, Short: 400, Callers: 4, Etcd: true,
			Held: true, PerConn: 20, run: heldCalls(patient, longHeader),
		},
		{
			Name: "etcd-resets", Unit: "calls that are reset immediately", Full: 60000, Short: 20000, Callers: 4, Etcd: true,
			run: flood(16, resetCall),
		},
		{
			Name: "etcd-bombs", Unit: "puts of 1 MiB of zeros, compressed to 1 KiB", Full: 20000, Short: 400, Callers: 4,
			Etcd: true, Held: true, PerConn: 1000, run: heldCalls(patient, bomb()),
		},
		{
			Name: "etcd-txns", Unit: "transactions of 1,024 operations, of 1.4 MiB, and beyond the limits", Full: 2000,
			Short: 100, Callers: 4, Etcd: true, prepare: fillHistory, run: flood(8, hugeTxn),
		},
	}
}

// opener opens the i-th call on a connection.
type opener func(ctx context.Context, h *h2, i int) error

// heldCalls returns an attack that opens calls, PerConn on each connection, and holds them. It replaces connections
// that the node closes.
func heldCalls(l grpcLimits, open opener) func(context.Context, *attacker) error {
	return func(ctx context.Context, a *attacker) error {
		per := max(1, a.attack.PerConn)
		end := a.First + a.Size
		a.First, a.Size = a.First/per, (a.Size+per-1)/per // of the connections
		return held(func(ctx context.Context, a *attacker, conn int, placed func()) error {
			h, err := a.dialEtcd(ctx, conn, l)
			if err != nil {
				return err
			}
			defer h.conn.Close()
			var reading sync.WaitGroup
			defer reading.Wait()
			defer h.conn.Close()
			if l == (grpcLimits{}) && conn%2 == 1 {
				unread(h.conn) // others read, but never want more of a stream
			} else {
				reading.Go(func() { _ = h.read(l.stream > 0, nil) })
			}
			again := h.ping
			for i := conn * per; i < min(end, (conn+1)*per); i++ {
				_ = h.conn.SetWriteDeadline(time.Now().Add(requestTimeout))
				if err := open(ctx, h, i); errors.Is(err, errStalled) {
					again = h.failure
					break
				} else if err != nil {
					return err
				}
				a.calls.Add(1)
			}
			placed()
			a.keep(ctx, h.conn, again)
			return nil
		})(ctx, a)
	}
}

// changing returns an attack during which the big values change.
func changing(run func(context.Context, *attacker) error) func(context.Context, *attacker) error {
	return func(ctx context.Context, a *attacker) error {
		changes, stop := context.WithCancel(ctx)
		defer stop()
		if a.First == 0 {
			go a.changeValues(changes) // ends with ctx, as the process does
		}
		return run(ctx, a)
	}
}

// call opens a call, with more headers, and sends a message.
func (h *h2) call(
	ctx context.Context, i int, method string, m proto.Message, end bool, more ...hpack.HeaderField,
) error {
	body, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	id, err := h.open(i, method, more...)
	if err != nil {
		return err
	}
	return h.data(ctx, id, message(body), end)
}

func watchOf(key string) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: []byte(key), RangeEnd: []byte(key + "\xff")},
	}}
}

// idleEtcd opens a connection and makes no call on it. Every second one does not even show its protocol.
func idleEtcd(ctx context.Context, a *attacker, i int, placed func()) error {
	if i%2 == 0 {
		h, err := a.dialEtcd(ctx, i, patient)
		if err != nil {
			return err
		}
		defer h.conn.Close()
		placed()
		return a.stay(ctx, h.conn)
	}
	conn, err := a.dialTo(ctx, a.Etcd, i)
	if err != nil {
		return err
	}
	defer conn.Close()
	placed()
	return a.stay(ctx, conn)
}

// openCall opens one of four calls that do not end.
func openCall(ctx context.Context, h *h2, i int) error {
	switch i % 4 {
	case 0:
		return h.call(ctx, i, pb.Watch_Watch_FullMethodName, watchOf(fmt.Sprintf("hostile/%d/", i)), false)
	case 1:
		return h.call(ctx, i, pb.Lease_LeaseKeepAlive_FullMethodName, &pb.LeaseKeepAliveRequest{ID: int64(i)}, false)
	case 2:
		_, err := h.open(i, pb.KV_Put_FullMethodName)
		return err
	}
	id, err := h.open(i, pb.KV_Put_FullMethodName)
	if err != nil {
		return err
	}
	return h.data(ctx, id, message(make([]byte, 64<<10))[:32<<10], false)
}

func watchBig(ctx context.Context, h *h2, i int) error {
	return h.call(ctx, i, pb.Watch_Watch_FullMethodName, watchOf(bigPrefix), false)
}

func listBig(ctx context.Context, h *h2, i int) error {
	return h.call(ctx, i, pb.KV_Range_FullMethodName, rangeOf(bigPrefix), true)
}

func rangeOf(prefix string) *pb.RangeRequest {
	return &pb.RangeRequest{Key: []byte(prefix), RangeEnd: []byte(prefix + "\xff")}
}

// fillSmall writes values that are just small enough.
func fillSmall(ctx context.Context, c *cluster) error { return c.write(ctx, 4, 60<<10) }

func readSmall(ctx context.Context, h *h2, i int) error {
	r := &pb.RangeRequest{Key: fmt.Appendf(nil, "%s%d", bigPrefix, i%4)}
	return h.call(ctx, i, pb.KV_Range_FullMethodName, r, true)
}

// election makes a call of the Election service, whose requests begin with a name.
func election(ctx context.Context, h *h2, i int, method, name string) error {
	id, err := h.open(i, "/v3electionpb.Election/"+method)
	if err != nil {
		return err
	}
	m := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
	return h.data(ctx, id, message(m), true)
}

// leaderBig asks for a leader with a big value, once or as it changes. The keys of an election begin with its name.
func leaderBig(ctx context.Context, h *h2, i int) error {
	return election(ctx, h, i, [...]string{"Leader", "Observe"}[i%2], strings.TrimSuffix(bigPrefix, "/"))
}

func longName(ctx context.Context, h *h2, i int) error {
	return election(ctx, h, i, "Observe", randomText(3<<19))
}

func slowMessage(ctx context.Context, h *h2, i int) error {
	id, err := h.open(i, pb.KV_Put_FullMethodName)
	if err != nil {
		return err
	}
	m := message(make([]byte, 3<<19))
	return h.data(ctx, id, m[:len(m)-1], false)
}

// slowJSON sends the body of a put, or of a watch, but for its end.
func slowJSON(ctx context.Context, a *attacker, i int, placed func()) error {
	conn, err := a.dialTo(ctx, a.Etcd, i)
	if err != nil {
		return err
	}
	defer conn.Close()
	size := 4 << 20
	path, begin := "/v3/kv/put", `{"value":"`
	if i%2 == 0 {
		path, begin, size = "/v3/watch", `{"create_request":{"key":"`, 1<<30
	}
	_ = conn.(*net.TCPConn).SetWriteBuffer(64 << 10) // the kernel's memory for the attacker's own end counts, too
	_ = conn.SetWriteDeadline(time.Now().Add(requestTimeout))
	head := a.head(i, "POST", path, fmt.Sprintf("Content-Length: %d\r\n\r\n%s", size, begin))
	if _, err := io.WriteString(conn, head+strings.Repeat("YWFh", 1<<20-1<<10)); err != nil {
		return err
	}
	placed()
	a.keep(ctx, conn, func() error {
		_, err := io.WriteString(conn, "YWFh")
		return err
	})
	return nil
}

func longHeader(_ context.Context, h *h2, i int) error {
	_, err := h.open(i, pb.Watch_Watch_FullMethodName, hpack.HeaderField{Name: "x-long", Value: randomText(1 << 20)})
	return err
}

// resetCall makes a call and resets it.
func resetCall(ctx context.Context, a *attacker, w *worker, i int) error {
	h, err := w.etcd(ctx, a)
	if err != nil {
		return err
	}
	_ = h.conn.SetWriteDeadline(time.Now().Add(requestTimeout))
	r := &pb.PutRequest{Key: []byte("hostile/reset"), Value: []byte("x")}
	if i%2 == 0 {
		if err := h.call(ctx, w.number, pb.KV_Range_FullMethodName, &pb.RangeRequest{Key: r.Key}, true); err != nil {
			return err
		}
	} else if _, err := h.open(w.number, pb.KV_Put_FullMethodName); err != nil {
		return err
	}
	return h.reset(h.next - 2)
}

// etcd returns the worker's connection to the etcd API.
func (w *worker) etcd(ctx context.Context, a *attacker) (*h2, error) {
	if w.conn != nil {
		return w.h2, nil
	}
	h, err := a.dialEtcd(ctx, w.number, patient)
	if err != nil {
		return nil, err
	}
	w.h2, w.conn = h, h.conn
	ended := make(chan uint32, 16)
	w.ended = ended
	go func() { // ends with the connection
		defer close(ended)
		_ = h.read(true, func(id uint32) {
			select {
			case ended <- id:
			default: // no request waits
			}
		})
	}()
	return h, nil
}

// garbage sends one of some malformed things on a new connection, and waits for an answer or its end.
func garbage(ctx context.Context, a *attacker, w *worker, i int) error {
	noise := []byte(randomText(4 << 10))
	if i%8 < 2 {
		return a.garbageBytes(ctx, w, i, noise)
	}
	h, err := a.dialEtcd(ctx, w.number, patient)
	if err != nil {
		return err
	}
	defer h.conn.Close()
	_ = h.conn.(*net.TCPConn).SetLinger(0)
	_ = h.conn.SetDeadline(time.Now().Add(time.Second))
	methods := []string{pb.KV_Txn_FullMethodName, pb.Watch_Watch_FullMethodName, pb.Lease_LeaseKeepAlive_FullMethodName}
	method := methods[i/8%len(methods)]
	body := message(noise)
	switch i % 8 {
	case 2: // of no service
		method = "/etcdserverpb.KV/" + randomText(1<<10)
	case 3: // longer than anything
		body = append([]byte{0, 255, 255, 255, 255}, noise...)
	case 4: // said to be compressed
		body[0] = 1
	case 5: // shorter than it says
		body = body[:len(body)-1]
	case 6: // frames that are none
		_ = h.write(func() error { return h.frames.WriteRawFrame(http2.FrameHeaders, 0xff, 1, noise) })
	}
	id, err := h.open(w.number, method)
	if err == nil {
		err = h.data(ctx, id, body, true)
	}
	if err != nil {
		return err
	}
	_ = h.read(false, func(uint32) { _ = h.conn.Close() })
	return nil
}

// garbageBytes sends bytes that are no HTTP/2, or JSON that is no request.
func (a *attacker) garbageBytes(ctx context.Context, w *worker, i int, noise []byte) error {
	conn, err := a.dialTo(ctx, a.Etcd, w.number)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	text := append([]byte(http2.ClientPreface), noise...)
	if i%8 == 0 {
		body := strings.Repeat(`{"create_request":`, 20_000)
		text = fmt.Appendf(nil, "%sContent-Length: %d\r\n\r\n%s", a.head(i, "POST", "/v3/watch", ""), len(body), body)
	}
	if _, err := conn.Write(text); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, conn)
	return nil
}
