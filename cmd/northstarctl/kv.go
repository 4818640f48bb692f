package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"northstar/api/apiv1"
	"northstar/client"
)

type kvCmd struct {
	Get   kvGetCmd   `cmd:"" help:"Print the value of a key, byte by byte; on a terminal a newline follows."`
	Put   kvPutCmd   `cmd:"" help:"Write a key."`
	Del   kvDelCmd   `cmd:"" help:"Delete a key."`
	Ls    kvLsCmd    `cmd:"" aliases:"list" help:"List keys."`
	Watch kvWatchCmd `cmd:"" help:"Print changes as they happen, until Ctrl-C."`
}

// keyValue is the JSON form of a key: the value in base64, as in the API.
type keyValue struct {
	Key      string `json:"key"`
	Value    []byte `json:"value"`
	Revision uint64 `json:"revision"`
}

type kvGetCmd struct {
	Key         string `arg:"" help:"The key."`
	Consistency string `enum:"linearizable,lease,stale" default:"linearizable" help:"One of ${enum}."`

	MaxStale time.Duration `placeholder:"DURATION" help:"With --consistency stale: a node that has not heard from its leader for so long reads as linearizable; 1ms to 24h."`
}

func (k *kvGetCmd) Run(a *app) error {
	if k.MaxStale != 0 && k.Consistency != apiv1.Stale {
		return usagef("--max-stale: needs --consistency stale")
	}
	call := with2((*client.Client).Get, k.Key, client.Consistency(k.Consistency))
	if k.MaxStale != 0 {
		call = with2((*client.Client).GetStale, k.Key, k.MaxStale)
	}
	e, err := request(a, "reading "+k.Key, call)
	if err != nil {
		return err
	}
	return a.printResult(keyValue{e.Key, e.Value, e.Revision}, func() error {
		_, err := a.stdout.Write(shown(e.Value, terminal(a.stdout)))
		return err
	})
}

// shown returns a value as kv get prints it: on a terminal it ends with a newline, elsewhere it is as it is.
func shown(value []byte, terminal bool) []byte {
	if terminal && !bytes.HasSuffix(value, []byte("\n")) {
		return append(bytes.Clone(value), '\n')
	}
	return value
}

// conditions are the flags of every write.
type conditions struct {
	IfRevision     *uint64 `xor:"condition" placeholder:"REV" help:"Only if this is the key's revision; for put, 0 means a missing key."`
	IfPresent      bool    `xor:"condition" help:"Only if the key exists."`
	Fence          string  `placeholder:"ROLE=TOKEN" help:"Only while TOKEN is the role's current fencing token."`
	IdempotencyKey string  `placeholder:"KEY" help:"Name of this write: repeated writes with the same name are applied once."`
}

// options returns the options of a write. As in the API, a key of revision 0 is a missing one.
func (c conditions) options() (client.WriteOptions, error) {
	opts := client.WriteOptions{IfPresent: c.IfPresent, IdempotencyKey: c.IdempotencyKey}
	if c.IfRevision != nil {
		opts.IfRevision, opts.IfAbsent = *c.IfRevision, *c.IfRevision == 0
	}
	if c.Fence == "" {
		return opts, nil
	}
	role, token, ok := strings.Cut(c.Fence, "=")
	n, err := strconv.ParseUint(token, 10, 64)
	if !ok || role == "" || err != nil {
		return opts, usagef("--fence: must be ROLE=TOKEN with a numeric token (got %q)", c.Fence)
	}
	opts.Fence = &client.Fence{Role: role, Token: n}
	return opts, nil
}

type kvPutCmd struct {
	Key      string `arg:"" help:"The key."`
	Value    string `arg:"" optional:"" default:"-" help:"The value; @FILE reads it from a file, - from stdin (default)."`
	IfAbsent bool   `xor:"condition" help:"Only if the key does not exist."`
	Session  string `placeholder:"ID" help:"Tie the key to a session."`
	conditions
}

func (k *kvPutCmd) Run(a *app) error {
	opts, err := k.options()
	if err != nil {
		return err
	}
	opts.IfAbsent, opts.Session = opts.IfAbsent || k.IfAbsent, k.Session
	value, err := k.readValue(a)
	if err != nil {
		return err
	}
	return show(a, "writing "+k.Key, func(c *client.Client, ctx context.Context) (apiv1.PutResult, error) {
		return c.Put(ctx, k.Key, value, opts)
	}, func(res apiv1.PutResult) error {
		return a.printf("revision %d\n", res.Revision)
	})
}

// readValue returns the value, at most one byte more than the maximum. It returns when the command's context
// ends: a pipe may never be written to.
func (k *kvPutCmd) readValue(a *app) ([]byte, error) {
	name, isFile := strings.CutPrefix(k.Value, "@")
	if !isFile && k.Value != "-" {
		return []byte(k.Value), nil
	}
	var value []byte
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		from := a.stdin
		if isFile {
			var f *os.File
			if f, err = os.Open(name); err != nil {
				return
			}
			defer f.Close()
			from = f
		}
		value, err = io.ReadAll(io.LimitReader(from, apiv1.MaxValueBytes+1))
	}()
	select {
	case <-ended:
	case <-a.ctx.Done():
		return nil, fmt.Errorf("read value: %w", context.Cause(a.ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("read value: %w", err)
	}
	return value, nil
}

type kvDelCmd struct {
	Key string `arg:"" help:"The key."`
	conditions
}

func (k *kvDelCmd) Run(a *app) error {
	opts, err := k.options()
	switch {
	case err != nil:
		return err
	case opts.IfAbsent:
		return usagef("--if-revision: must be 1 or more: 0 means a missing key, which cannot be deleted")
	}
	return show(a, "deleting "+k.Key, with2((*client.Client).Delete, k.Key, opts),
		func(res apiv1.DeleteResult) error { return a.printf("revision %d\n", res.Revision) })
}

type kvLsCmd struct {
	Prefix      string `arg:"" optional:"" help:"Only keys that begin with this."`
	Limit       int    `placeholder:"N" help:"Maximum number of keys."`
	After       string `placeholder:"KEY" help:"Only keys after this one."`
	Consistency string `enum:"linearizable,lease,stale" default:"linearizable" help:"One of ${enum}."`
}

// Run streams the JSON array item by item. If the list fails, the array is not closed, so that no program takes it for
// all keys. Other output is collected in memory.
func (k *kvLsCmd) Run(a *app) error {
	if k.Limit < 0 {
		return usagef("--limit: must be 0 (all) or more")
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	done := a.progress("listing keys")
	defer done()
	opts := client.ListOptions{
		Consistency: client.Consistency(k.Consistency), Limit: min(k.Limit, apiv1.MaxListLimit), After: k.After,
	}
	items := []apiv1.Item{}
	n := 0
	for item, err := range c.List(a.ctx, k.Prefix, opts) {
		if err != nil {
			return err
		}
		if a.Output != "json" {
			items = append(items, item)
		} else if err := a.printItem(n, item); err != nil {
			return err
		}
		if n++; n == k.Limit {
			break
		}
	}
	done()
	if a.Output == "json" {
		return a.closeArray(n)
	}
	return a.printResult(items, func() error {
		return tableOf(a, []string{"key", "revision", "version", "bytes", "value"}, items, func(i apiv1.Item) []any {
			return []any{printable([]byte(i.Key)), i.Revision, i.Version, len(i.Value), printable(i.Value)}
		})
	})
}

type kvWatchCmd struct {
	Prefix string  `arg:"" optional:"" help:"Only keys that begin with this."`
	Since  *uint64 `placeholder:"REV" help:"Changes after this revision; default: from now."`
}

// changeLine is the JSON form of a change.
type changeLine struct {
	Event string `json:"event"`
	keyValue
}

func (k *kvWatchCmd) Run(a *app) error {
	return follow(a, func(c *client.Client) iter.Seq2[client.Change, error] {
		return c.Watch(a.ctx, k.Prefix, watchOptions(k.Since))
	}, func(ch client.Change) (any, string) {
		event := apiv1.EventPut
		if ch.Deleted {
			event = apiv1.EventDelete
		}
		return changeLine{event, keyValue{ch.Key, ch.Value, ch.Revision}},
			fmt.Sprintf("%d %-6s %s %s", ch.Revision, event, printable([]byte(ch.Key)), printable(ch.Value))
	})
}

// watchOptions returns the options of a watch that starts after the revision since; nil: now.
func watchOptions(since *uint64) client.WatchOptions {
	if since == nil {
		return client.WatchOptions{FromNow: true}
	}
	return client.WatchOptions{Since: *since}
}

// untilInterrupted returns nil if Ctrl-C ended the command.
func (a *app) untilInterrupted(err error) error {
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(a.ctx), context.Canceled) {
		return nil
	}
	return err
}

// printable returns a value for a table: short, on one line, and without terminal control characters.
func printable(b []byte) string {
	const maxRunes = 60
	if !utf8.Valid(b) {
		return fmt.Sprintf("(%d bytes, binary)", len(b))
	}
	s, cut := string(b), ""
	if r := []rune(s); len(r) > maxRunes {
		s, cut = string(r[:maxRunes]), "…"
	}
	quoted := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`) + cut
}
