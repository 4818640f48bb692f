package client

import (
	"context"
	"crypto/rand"
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

// Consistency says what a read may answer.
type Consistency string

// The kinds of reads. The zero value is Linearizable.
const (
	// Linearizable sees every write acknowledged before it began.
	Linearizable Consistency = apiv1.Linearizable
	// Lease is Linearizable without a round trip between the nodes, where the
	// cluster has leader leases; elsewhere the same as Linearizable.
	Lease Consistency = apiv1.Lease
	// Stale is what any node has, also without a leader.
	Stale Consistency = apiv1.Stale
)

func (c Consistency) query() url.Values {
	if c == "" || c == Linearizable {
		return url.Values{}
	}
	return url.Values{"consistency": {string(c)}}
}

func (c Consistency) retryClass() retryClass {
	if c == Stale {
		return localRead
	}
	return leaderRead
}

// Entry is a key as Get finds it.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
	// LastContact is, of a stale read, how long ago the answering node heard
	// from its leader; negative when it did not say.
	LastContact time.Duration
}

// Fence makes a write succeed only while Token is the role's current token.
type Fence struct {
	Role  string
	Token uint64
}

// WriteOptions are the conditions of a write. The zero value has none.
type WriteOptions struct {
	// IfRevision, when not 0, must be the key's current revision, else the
	// write fails with ErrConditionFailed.
	IfRevision uint64
	// IfAbsent: the key must not exist. For Put only, and not with IfRevision.
	IfAbsent bool
	// IfPresent: the key must exist, at whatever revision; not with the other
	// two. A Delete of an absent key then fails with ErrConditionFailed instead
	// of ErrNotFound.
	IfPresent bool
	// Fence, when not nil, must be current, else the write fails with ErrFenced.
	Fence *Fence
	// Session, when not empty, ties the key to a session: it goes when the
	// session ends. For Put only.
	Session string
	// IdempotencyKey, at most 128 bytes, names the write: sent again under the
	// same name it is carried out once and gets the first answer. "": this
	// call makes one up. It is worth giving where the call itself may be made
	// again, after a restart of the application for instance.
	IdempotencyKey string
	// NoIdempotencyKey sends none, which spares the cluster remembering it:
	// the write is then sent again only when it is known not to have happened.
	NoIdempotencyKey bool
}

// Get reads a key. It fails with ErrNotFound when there is none.
func (c *Client) Get(ctx context.Context, key string, consistency Consistency) (Entry, error) {
	q, err := keyCall(http.MethodGet, "get", key)
	if err != nil {
		return Entry{}, err
	}
	q.retryClass, q.query = consistency.retryClass(), consistency.query()
	a, err := c.do(ctx, q)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Key: key, Value: a.body, LastContact: -1}
	if e.Revision, err = strconv.ParseUint(a.header.Get(apiv1.HeaderRevision), 10, 64); err != nil {
		return Entry{}, malformed(q, a, apiv1.HeaderRevision)
	}
	if ms, err := strconv.ParseInt(a.header.Get(apiv1.HeaderLastContact), 10, 64); err == nil {
		e.LastContact = time.Duration(ms) * time.Millisecond
	}
	return e, nil
}

// Put writes a key. Its errors are those of WriteOptions' conditions,
// ErrNoLeader and ErrOutcomeUnknown, among others.
func (c *Client) Put(ctx context.Context, key string, value []byte, opts WriteOptions) (apiv1.PutResult, error) {
	q, err := keyCall(http.MethodPut, "put", key)
	if err == nil && len(value) > apiv1.MaxValueBytes {
		err = invalid(q.op, http.StatusRequestEntityTooLarge, "value of %d bytes: at most %d", len(value), apiv1.MaxValueBytes)
	}
	if err == nil {
		err = opts.apply(q)
	}
	if err != nil {
		return apiv1.PutResult{}, err
	}
	q.body = value
	q.header.Set("Content-Type", apiv1.TypeBinary)
	if opts.Session != "" {
		q.query.Set("ttl_session", opts.Session)
	}
	return decode[apiv1.PutResult](c.do(ctx, q))
}

// Delete removes a key. It fails with ErrNotFound when there is none.
func (c *Client) Delete(ctx context.Context, key string, opts WriteOptions) (apiv1.DeleteResult, error) {
	q, err := keyCall(http.MethodDelete, "delete", key)
	if err == nil && (opts.IfAbsent || opts.Session != "") {
		err = invalid(q.op, 0, "IfAbsent and Session are for Put only")
	}
	if err == nil {
		err = opts.apply(q)
	}
	if err != nil {
		return apiv1.DeleteResult{}, err
	}
	return decode[apiv1.DeleteResult](c.do(ctx, q))
}

func (o WriteOptions) apply(q *call) error {
	switch {
	case o.IfAbsent && o.IfRevision != 0, o.IfPresent && (o.IfAbsent || o.IfRevision != 0):
		return invalid(q.op, 0, "IfAbsent, IfPresent and IfRevision exclude each other")
	case o.NoIdempotencyKey && o.IdempotencyKey != "":
		return invalid(q.op, 0, "IdempotencyKey and NoIdempotencyKey exclude each other")
	case len(o.IdempotencyKey) > apiv1.MaxIdempotencyKeyBytes:
		return invalid(q.op, 0, "idempotency key of %d bytes: at most %d", len(o.IdempotencyKey), apiv1.MaxIdempotencyKeyBytes)
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
		q.retryClass = idempotentWrite
		key := o.IdempotencyKey
		if key == "" {
			key = rand.Text()
		}
		q.header.Set(apiv1.HeaderIdempotencyKey, key)
	}
	return nil
}

// keyCall starts the call for one key. The key is escaped in full, slashes
// too, so that no proxy between takes its "//" or ".." for a path's.
func keyCall(method, verb, key string) (*call, error) {
	op := verb + " " + key
	switch {
	case key == "" || len(key) > apiv1.MaxKeyBytes:
		return &call{op: op}, invalid(op, 0, "key of %d bytes: want 1 to %d", len(key), apiv1.MaxKeyBytes)
	case !utf8.ValidString(key):
		return &call{op: op}, invalid(op, 0, "key is not UTF-8")
	}
	return &call{op: op, method: method, path: apiv1.PathKVPrefix + url.PathEscape(key), hasTimeoutParam: true}, nil
}

// invalid is a request that this client refuses as the server would.
func invalid(op string, status int, format string, args ...any) error {
	e := cluster.Errorf(cluster.CodeBadRequest, format, args...)
	e.Status = status
	return &Error{Op: op, Problem: e}
}

func malformed(q *call, a *response, what string) error {
	return &Error{Op: q.op, Endpoint: a.node, Problem: cluster.Errorf(cluster.CodeBadRequest, "answer of %s has no valid %s: is it a NorthStar node?", a.node, what)}
}

// ListOptions of List and ListPage.
type ListOptions struct {
	Consistency Consistency
	// Limit is the most keys of a page, at most 1000; 0 leaves it to the server.
	Limit int
	// After leaves out keys up to and including this one.
	After string
}

// ListPage reads one page of the keys with a prefix, in order. Its Next, when
// not empty, is the After of the following page.
func (c *Client) ListPage(ctx context.Context, prefix string, opts ListOptions) (apiv1.List, error) {
	query := opts.Consistency.query()
	query.Set("prefix", prefix)
	if opts.Limit > 0 {
		query.Set("limit", strconv.Itoa(opts.Limit))
	}
	if opts.After != "" {
		query.Set("after", opts.After)
	}
	return decode[apiv1.List](c.do(ctx, &call{
		op: strings.TrimSpace("list " + prefix), retryClass: opts.Consistency.retryClass(), method: http.MethodGet, path: apiv1.PathKV,
		query: query, limit: maxListResponse, hasTimeoutParam: true,
	}))
}

// List goes through all keys with a prefix, in order, page by page. Each page
// is one moment's state, and the pages are not of the same moment. An error
// ends it, as the last thing it yields.
func (c *Client) List(ctx context.Context, prefix string, opts ListOptions) iter.Seq2[apiv1.Item, error] {
	return func(yield func(apiv1.Item, error) bool) {
		for {
			page, err := c.ListPage(ctx, prefix, opts)
			if err != nil {
				yield(apiv1.Item{}, err)
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
