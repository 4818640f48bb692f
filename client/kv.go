package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// Consistency is the consistency level of a read.
type Consistency string

// The consistency levels. The zero value is Linearizable.
const (
	// Linearizable returns every write that was acknowledged before the read began.
	Linearizable Consistency = apiv1.Linearizable
	// Lease is Linearizable without a round trip between the nodes, if the cluster has leader leases. Otherwise it
	// is the same as Linearizable.
	Lease Consistency = apiv1.Lease
	// Stale returns the state of the contacted node, also without a leader.
	Stale Consistency = apiv1.Stale
)

// param returns the value of ?consistency; "" for the server's default.
func (c Consistency) param() string {
	if c == Linearizable {
		return ""
	}
	return string(c)
}

func (c Consistency) retryClass() retryClass {
	if c == Stale {
		return localRead
	}
	return leaderRead
}

// staleParam returns the value of ?max_stale_ms; "" for 0, no bound.
func staleParam(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// Entry is the result of Get.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
	// LastContact is how long ago the node heard from its leader, for a stale read; negative if unknown.
	LastContact time.Duration
}

// Fence makes a write succeed only while Token is the role's current token.
type Fence struct {
	Role  string
	Token uint64
}

// WriteOptions are the conditions of a write. The zero value has none.
type WriteOptions struct {
	// IfRevision, if not 0, must be the key's current revision. Otherwise the write fails with ErrConditionFailed.
	// 0 is no condition: a compare-and-swap of a missing key, whose Problem.Revision is 0, must set IfAbsent instead.
	IfRevision uint64
	// IfAbsent: the key must not exist. For Put only, not with IfRevision.
	IfAbsent bool
	// IfPresent: the key must exist, at any revision; not with the other two. A Delete of an absent key then fails
	// with ErrConditionFailed instead of ErrNotFound.
	IfPresent bool
	// Fence, if not nil, must be current. Otherwise the write fails with ErrFenced.
	Fence *Fence
	// Session, if not empty, ties the key to a session: the key is deleted when the session ends. For Put only.
	Session string
	// IdempotencyKey, at most 128 bytes, identifies the write. A repeated write with the same key is applied once
	// and gets the first response. "": the client generates a key. Set one if the application itself may repeat the
	// call, for example after its restart.
	IdempotencyKey string
	// NoIdempotencyKey sends none, which saves memory in the cluster. The write is then sent again only if it
	// certainly did not happen.
	NoIdempotencyKey bool
}

// FencedBy returns the options of a write that succeeds only while l is the current tenure of its role. Set further
// conditions in the result.
func FencedBy(l *Leadership) WriteOptions { return WriteOptions{Fence: l.Fence()} }

// Get reads a key. ErrNotFound: the key does not exist.
func (c *Client) Get(ctx context.Context, key string, consistency Consistency) (Entry, error) {
	return c.getKey(ctx, key, consistency, 0)
}

// GetStale is Get with Stale and a bound: a node whose state may be older than maxStale reads as Linearizable instead.
// maxStale must be at least a millisecond. ErrNoLeader: no node is current enough, and none leads. The age counts from
// the last message of a leader. One that is cut off may send them until it notices, within the election timeout.
func (c *Client) GetStale(ctx context.Context, key string, maxStale time.Duration) (Entry, error) {
	if maxStale < time.Millisecond {
		return Entry{}, invalid("get "+key, 0, "maxStale: must be at least 1ms (got %v)", maxStale)
	}
	return c.getKey(ctx, key, Stale, maxStale)
}

func (c *Client) getKey(
	ctx context.Context, key string, consistency Consistency, maxStale time.Duration,
) (Entry, error) {
	q, err := keyCall(http.MethodGet, "get", key)
	if err != nil {
		return Entry{}, err
	}
	q.retryClass, q.plain = consistency.retryClass(), true
	q.query = params("consistency", consistency.param(), "max_stale_ms", staleParam(maxStale))
	a, err := c.do(ctx, q)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Key: key, Value: a.body, LastContact: -1}
	if e.Revision, err = a.revision(); err != nil {
		return Entry{}, fmt.Errorf("%s: revision of the value: %w", q.op, err)
	}
	if ms, err := strconv.ParseInt(a.header.Get(apiv1.HeaderLastContact), 10, 64); err == nil {
		e.LastContact = time.Duration(ms) * time.Millisecond
	}
	return e, nil
}

// Put writes a key. Its errors include those of the conditions in WriteOptions, ErrNoLeader and ErrOutcomeUnknown.
func (c *Client) Put(ctx context.Context, key string, value []byte, opts WriteOptions) (PutResult, error) {
	q, err := keyCall(http.MethodPut, "put", key)
	if err == nil && len(value) > apiv1.MaxValueBytes {
		err = invalid(q.op, http.StatusRequestEntityTooLarge, "value must be at most %d bytes (got %d)",
			apiv1.MaxValueBytes, len(value))
	}
	if err == nil {
		err = opts.apply(q)
	}
	if err != nil {
		return PutResult{}, err
	}
	q.body = value
	q.header.Set("Content-Type", apiv1.TypeBinary)
	if opts.Session != "" {
		q.query.Set("ttl_session", opts.Session)
	}
	return decode[PutResult](c.do(ctx, q))
}

// Delete removes a key. ErrNotFound: the key does not exist.
func (c *Client) Delete(ctx context.Context, key string, opts WriteOptions) (DeleteResult, error) {
	q, err := keyCall(http.MethodDelete, "delete", key)
	if err == nil && (opts.IfAbsent || opts.Session != "") {
		err = invalid(q.op, 0, "IfAbsent and Session are for Put only")
	}
	if err == nil {
		err = opts.apply(q)
	}
	if err != nil {
		return DeleteResult{}, err
	}
	return decode[DeleteResult](c.do(ctx, q))
}

func (o WriteOptions) apply(q *call) error {
	switch {
	case o.IfAbsent && o.IfRevision != 0, o.IfPresent && (o.IfAbsent || o.IfRevision != 0):
		return invalid(q.op, 0, "IfAbsent, IfPresent and IfRevision exclude each other")
	case o.NoIdempotencyKey && o.IdempotencyKey != "":
		return invalid(q.op, 0, "IdempotencyKey and NoIdempotencyKey exclude each other")
	case len(o.IdempotencyKey) > apiv1.MaxIdempotencyKeyBytes:
		return invalid(q.op, 0, "idempotency key must be at most %d bytes (got %d)", apiv1.MaxIdempotencyKeyBytes,
			len(o.IdempotencyKey))
	}
	q.retryClass, q.query, q.header = nonIdempotentWrite, url.Values{}, http.Header{}
	if o.IfRevision != 0 {
		q.header.Set("If-Match", `"`+strconv.FormatUint(o.IfRevision, 10)+`"`)
	}
	if o.IfPresent {
		q.header.Set("If-Match", "*")
	}
	if o.IfAbsent {
		q.header.Set("If-None-Match", "*")
	}
	if o.Fence != nil {
		q.header.Set(apiv1.HeaderFence, o.Fence.Role+"="+strconv.FormatUint(o.Fence.Token, 10))
	}
	if !o.NoIdempotencyKey {
		q.retryClass, q.numbered = idempotentWrite, o.IdempotencyKey == ""
		if !q.numbered {
			q.header.Set(apiv1.HeaderIdempotencyKey, o.IdempotencyKey)
		}
	}
	return nil
}

// keyCall returns the call for one key. It escapes the whole key, slashes too, so that no proxy rewrites "//" or
// "..".
func keyCall(method, verb, key string) (*call, error) {
	op := verb + " " + key
	switch {
	case key == "" || len(key) > apiv1.MaxKeyBytes:
		return &call{op: op}, invalid(op, 0, "key must be 1 to %d bytes (got %d)", apiv1.MaxKeyBytes, len(key))
	case !utf8.ValidString(key):
		return &call{op: op}, invalid(op, 0, "key is not UTF-8")
	}
	return &call{op: op, method: method, path: apiv1.PathKVPrefix + url.PathEscape(key), hasTimeoutParam: true}, nil
}

// invalid returns the error of a request that the server would reject.
func invalid(op string, status int, format string, args ...any) error {
	e := cluster.Errorf(cluster.CodeBadRequest, format, args...)
	e.Status = status
	return &Error{Op: op, Problem: e}
}

// ListOptions are the options of List and ListPage.
type ListOptions struct {
	Consistency Consistency
	// MaxStale, if not 0, bounds a Stale list as GetStale does.
	MaxStale time.Duration
	// Limit is the maximum number of keys in a page, at most 1000; 0 leaves it to the server.
	Limit int
	// After skips keys up to and including this one.
	After string
}

// ListPage reads one page of the keys with a prefix, in order. If its Next is not empty, it is the After of the
// next page.
func (c *Client) ListPage(ctx context.Context, prefix string, opts ListOptions) (List, error) {
	query := params("limit", limitParam(opts.Limit), "after", opts.After, "consistency", opts.Consistency.param(),
		"max_stale_ms", staleParam(opts.MaxStale))
	query.Set("prefix", prefix)
	return get[List](ctx, c, &call{
		op: strings.TrimSpace("list " + prefix), retryClass: opts.Consistency.retryClass(), path: apiv1.PathKV,
		query: query, limit: maxListResponse, hasTimeoutParam: true,
	})
}

// List yields all keys with a prefix, in order. Each page is the state of one moment; different pages are not. An
// error is the last value.
func (c *Client) List(ctx context.Context, prefix string, opts ListOptions) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for {
			page, err := c.ListPage(ctx, prefix, opts)
			if err != nil {
				yield(Item{}, err)
				return
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			opts.After = page.Next
		}
	}
}
