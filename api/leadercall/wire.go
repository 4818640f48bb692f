package leadercall

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"northstar/cluster"
	"northstar/state"
	"northstar/tracing"
)

// A request is its kind (1 byte), the rest of the caller's time in milliseconds (uvarint, 0: no limit) and a content:
// a batch of one command, or a message. The batch of a traced command follows the length (1 byte) and text of its
// traceparent. A response is 0 and the content, or 1 and a state.Result with an error.

// kind is the kind of a call. The numbers are on the wire.
type kind byte

const (
	propose   kind = 1 // content of the response: a state.Result
	readIndex kind = 2
	renew     kind = 3
	remaining kind = 4
	subscribe kind = 5 // to the commit index; nodes of earlier builds refuse it
	traced    kind = 6 // propose, for a command that belongs to a trace; nodes of earlier builds refuse it
)

// message is the content of a request or a response, other than commands and their results.
type message struct {
	Index uint64 `json:"index,omitempty"` // applied by the node that asks; the read index
	// Term and Incarnation of the node that asks for a read index. Earlier builds neither send nor read them.
	Term        uint64 `json:"term,omitempty"`
	Incarnation string `json:"incarnation,omitempty"`

	IDs    []string `json:"ids,omitempty"` // sessions that are asked for; those that live, or were renewed
	LeftMS int64    `json:"left_ms,omitempty"`
	// Revoked are sessions that live and were not renewed, and the milliseconds that they have left. Earlier builds
	// have them among IDs, and take those for ended that are not there.
	Revoked map[string]int64 `json:"revoked,omitempty"`
}

// The first byte of a response.
const (
	answered byte = 0
	failed   byte = 1
)

// The leader handles 1024 calls of a node at a time, or 16 MiB, and then reads no more of them. The calls of single
// callers leave 64 places to those that many share: a renewal that waits behind them could be too late for its session.
const (
	maxUnsharedBytes = 15 << 20
	leastCallBytes   = 16 << 10 // what a small call counts
)

// shared reports whether callers share the calls of a kind: there are few of them.
func (k kind) shared() bool { return !k.writes() && k != remaining }

func (k kind) writes() bool { return k == propose || k == traced }

// call sends a request and returns the content of the response. *cluster.Error: the node refuses the call, or has not
// received it. Another error says nothing.
func (c *Calls) call(ctx context.Context, to cluster.NodeID, k kind, content []byte) ([]byte, error) {
	if m, _ := c.Consensus.View().Member(to); m.Reads < Version {
		return nil, cluster.Errorf(cluster.CodeNoLeader, "node %q does not read command version %d", to, Version)
	}
	limit := uint64(0)
	if deadline, ok := ctx.Deadline(); ok {
		limit = uint64(max(1, time.Until(deadline).Milliseconds()))
	}
	if !k.shared() {
		size := int64(min(max(len(content), leastCallBytes), maxUnsharedBytes))
		if c.unshared.Acquire(ctx, size) != nil {
			return nil, cluster.Errorf(cluster.CodeNoLeader, "too many calls to node %s are in progress: %w", to,
				context.Cause(ctx))
		}
		defer c.unshared.Release(size)
	}
	request := binary.AppendUvarint([]byte{byte(k)}, limit)
	got, err := c.Call(ctx, to, append(request, content...))
	switch {
	case cluster.IsCode(err, cluster.CodeNoLeader):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("node %s has not answered: %v", to, err)
	case len(got) == 0:
		return nil, fmt.Errorf("node %s has sent an empty answer", to)
	case got[0] == answered:
		return got[1:], nil
	}
	if r, err := state.DecodeResult(got[1:]); err == nil && r.Err != nil {
		return nil, r.Err
	}
	return nil, fmt.Errorf("node %s has sent an answer that cannot be read", to)
}

func (c *Calls) proposeAt(ctx context.Context, to cluster.NodeID, cmd state.Command) (state.Result, error) {
	batch, err := state.EncodeBatch([]state.Command{cmd})
	if err != nil {
		return state.Result{}, err
	}
	got, err := c.sendBatch(ctx, to, batch)
	if err == nil {
		var result state.Result
		if result, err = state.DecodeResult(got); err == nil {
			return result, nil
		}
	}
	if refused := (*cluster.Error)(nil); errors.As(err, &refused) {
		return state.Result{}, refused
	}
	return state.Result{}, cluster.Errorf(cluster.CodeOutcomeUnknown, "leader %s: %w", to, err)
}

// sendBatch sends a batch with the trace that it belongs to, if any.
func (c *Calls) sendBatch(ctx context.Context, to cluster.NodeID, batch []byte) ([]byte, error) {
	if parent := tracing.Traceparent(ctx); parent != "" {
		content := append([]byte{byte(len(parent))}, parent...)
		got, err := c.call(ctx, to, traced, append(content, batch...))
		if !cluster.IsCode(err, cluster.CodeBadRequest) {
			return got, err
		} // nothing was proposed, perhaps because the leader is of an earlier build
	}
	return c.call(ctx, to, propose, batch)
}

// ask sends a message and returns the one that comes back. It may be repeated after every error.
func (c *Calls) ask(ctx context.Context, to cluster.NodeID, k kind, m message) (out message, err error) {
	content, err := json.Marshal(m)
	if err != nil {
		return out, err
	}
	got, err := c.call(ctx, to, k, content)
	if err == nil {
		if err = json.Unmarshal(got, &out); err == nil {
			return out, nil
		}
	}
	if refused := (*cluster.Error)(nil); errors.As(err, &refused) {
		return message{}, refused
	}
	return message{}, cluster.Errorf(cluster.CodeNoLeader, "leader %s: %w", to, err)
}

// Handle serves a request of another node, and returns the response.
func (c *Calls) Handle(ctx context.Context, from cluster.NodeID, request []byte) []byte {
	content, err := c.handle(ctx, from, request)
	if err == nil {
		return append([]byte{answered}, content...)
	}
	var e *cluster.Error
	if !errors.As(err, &e) {
		e = cluster.Errorf(cluster.CodeBadRequest, "node %s sent a call that cannot be read: %w", from, err)
	}
	return append([]byte{failed}, state.EncodeResult(&state.Result{Err: e})...)
}

var errCall = errors.New("not a call")

func (c *Calls) handle(ctx context.Context, from cluster.NodeID, request []byte) ([]byte, error) {
	if len(request) < 2 {
		return nil, errCall
	}
	limit, n := binary.Uvarint(request[1:])
	if n <= 0 {
		return nil, errCall
	}
	content := request[1+n:]
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(min(limit, maxLimitMS))*time.Millisecond)
		defer cancel()
	}
	if err := c.Forward.MayServe(kind(request[0]).writes()); err != nil {
		return nil, err
	}
	switch kind(request[0]) {
	case propose:
		return c.proposeFor(ctx, content)
	case traced:
		return c.proposeTraced(ctx, from, content)
	}
	var in, out message
	if err := json.Unmarshal(content, &in); err != nil {
		return nil, err
	}
	var err error
	switch kind(request[0]) {
	case readIndex:
		out.Index, err = c.Consensus.ReadIndex(ctx, cluster.Asker{
			ID: from, Incarnation: in.Incarnation, Term: in.Term, Applied: in.Index,
		})
	case renew:
		out, err = c.renewHere(ctx, in.IDs)
	case remaining:
		out, err = c.remainingFor(ctx, in.IDs)
	case subscribe:
		err = c.Consensus.Subscribe(from)
	default:
		err = errCall
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

// maxLimitMS bounds the time of a call: a day, above all that a client may ask for.
const maxLimitMS = 24 * 60 * 60 * 1000

func (c *Calls) proposeFor(ctx context.Context, batch []byte) ([]byte, error) {
	cmds, err := state.DecodeBatch(batch)
	if err != nil {
		return nil, err
	}
	if len(cmds) != 1 || !cmds[0].Kind.WritesKeys() {
		return nil, errCall
	}
	result, err := c.Consensus.Propose(ctx, cmds[0])
	if err != nil {
		return nil, err
	}
	return state.EncodeResult(&result), nil
}

// proposeTraced is proposeFor for a command that belongs to a trace.
func (c *Calls) proposeTraced(ctx context.Context, from cluster.NodeID, content []byte) ([]byte, error) {
	if len(content) == 0 || len(content) <= int(content[0]) {
		return nil, errCall
	}
	end := 1 + int(content[0])
	parent, batch := string(content[1:end]), content[end:]
	ctx, span := c.Tracer.StartRequest(ctx, http.Header{"Traceparent": {parent}})
	span.SetName("leader call")
	span.Set("northstar.from", string(from))
	got, err := c.proposeFor(ctx, batch)
	span.End(err)
	return got, err
}

func (c *Calls) remainingFor(ctx context.Context, ids []string) (message, error) {
	if len(ids) != 1 {
		return message{}, errCall
	}
	left, lives, err := c.remainingHere(ctx, ids[0])
	if err != nil || !lives {
		return message{}, err
	}
	return message{IDs: ids, LeftMS: left.Milliseconds()}, nil
}
