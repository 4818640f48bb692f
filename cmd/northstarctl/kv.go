package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"northstar/api/apiv1"
	"northstar/client"
)

type kvCmd struct {
	Get   kvGetCmd   `cmd:"" help:"Print the value of a key, byte by byte."`
	Put   kvPutCmd   `cmd:"" help:"Write a key."`
	Del   kvDelCmd   `cmd:"" help:"Delete a key."`
	Ls    kvLsCmd    `cmd:"" help:"List keys."`
	Watch kvWatchCmd `cmd:"" help:"Print changes as they happen, until Ctrl-C."`
}

// keyValue is a key as JSON for programs: the value in base64, as in the API.
type keyValue struct {
	Key      string `json:"key"`
	Value    []byte `json:"value"`
	Revision uint64 `json:"revision"`
}

type kvGetCmd struct {
	Key         string `arg:"" help:"The key."`
	Consistency string `enum:"linearizable,lease,stale" default:"linearizable" help:"One of ${enum}."`
}

func (k *kvGetCmd) Run(a *app) error {
	e, err := request(a, "reading "+k.Key, func(ctx context.Context, c *client.Client) (client.Entry, error) {
		return c.Get(ctx, k.Key, client.Consistency(k.Consistency))
	})
	if err != nil {
		return err
	}
	return a.printResult(keyValue{e.Key, e.Value, e.Revision}, func() error {
		_, err := a.stdout.Write(e.Value)
		return err
	})
}

// conditions are the flags that every write takes.
type conditions struct {
	IfRevision     uint64 `placeholder:"REV" help:"Only if this is the key's revision."`
	IfPresent      bool   `help:"Only if the key exists."`
	Fence          string `placeholder:"ROLE=TOKEN" help:"Only while TOKEN is the role's current fencing token."`
	IdempotencyKey string `placeholder:"KEY" help:"Name of this write: repeated under it, it is carried out once."`
}

func (c conditions) options() (client.WriteOptions, error) {
	opts := client.WriteOptions{IfRevision: c.IfRevision, IfPresent: c.IfPresent, IdempotencyKey: c.IdempotencyKey}
	if c.Fence == "" {
		return opts, nil
	}
	role, token, ok := strings.Cut(c.Fence, "=")
	n, err := strconv.ParseUint(token, 10, 64)
	if !ok || role == "" || err != nil {
		return opts, usagef("--fence %q: want ROLE=TOKEN, the token being a number", c.Fence)
	}
	opts.Fence = &client.Fence{Role: role, Token: n}
	return opts, nil
}

type kvPutCmd struct {
	Key      string `arg:"" help:"The key."`
	Value    string `arg:"" optional:"" default:"-" help:"The value; @FILE reads it from a file, - from stdin (default)."`
	IfAbsent bool   `help:"Only if the key does not exist."`
	Session  string `placeholder:"ID" help:"Tie the key to a session."`
	conditions
}

func (k *kvPutCmd) Run(a *app) error {
	opts, err := k.options()
	if err != nil {
		return err
	}
	opts.IfAbsent, opts.Session = k.IfAbsent, k.Session
	value, err := k.readValue(a.stdin)
	if err != nil {
		return err
	}
	res, err := request(a, "writing "+k.Key, func(ctx context.Context, c *client.Client) (apiv1.PutResult, error) {
		return c.Put(ctx, k.Key, value, opts)
	})
	if err != nil {
		return err
	}
	return a.printResult(res, func() error {
		_, err := fmt.Fprintf(a.stdout, "revision %d\n", res.Revision)
		return err
	})
}

// readValue gives the value, one byte more than the largest allowed at most.
func (k *kvPutCmd) readValue(stdin io.Reader) ([]byte, error) {
	if name, ok := strings.CutPrefix(k.Value, "@"); ok {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read value: %w", err)
		}
		defer f.Close()
		stdin = f
	} else if k.Value != "-" {
		return []byte(k.Value), nil
	}
	value, err := io.ReadAll(io.LimitReader(stdin, apiv1.MaxValueBytes+1))
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
	if err != nil {
		return err
	}
	res, err := request(a, "deleting "+k.Key, func(ctx context.Context, c *client.Client) (apiv1.DeleteResult, error) {
		return c.Delete(ctx, k.Key, opts)
	})
	if err != nil {
		return err
	}
	return a.printResult(res, func() error {
		_, err := fmt.Fprintf(a.stdout, "revision %d\n", res.Revision)
		return err
	})
}

type kvLsCmd struct {
	Prefix      string `arg:"" optional:"" help:"Only keys that begin with this."`
	Limit       int    `placeholder:"N" help:"At most so many keys."`
	After       string `placeholder:"KEY" help:"Only keys after this one."`
	Consistency string `enum:"linearizable,lease,stale" default:"linearizable" help:"One of ${enum}."`
}

// Run holds what it prints in memory only for people's table; the array for
// programs goes out key by key, and has no end where the list could not be had.
func (k *kvLsCmd) Run(a *app) error {
	if k.Limit < 0 {
		return usagef("--limit: want 0 (all) or more")
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	done := a.progress("listing keys")
	defer done()
	opts := client.ListOptions{Consistency: client.Consistency(k.Consistency), Limit: min(k.Limit, apiv1.MaxListLimit), After: k.After}
	var rows [][]any
	n := 0
	for item, err := range c.List(a.ctx, k.Prefix, opts) {
		if err != nil {
			return err
		}
		if a.Output != "json" {
			rows = append(rows, []any{printable([]byte(item.Key)), item.Revision, item.Version, len(item.Value), printable(item.Value)})
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
	return a.table([]string{"key", "revision", "version", "bytes", "value"}, rows)
}

type kvWatchCmd struct {
	Prefix string  `arg:"" optional:"" help:"Only keys that begin with this."`
	Since  *uint64 `placeholder:"REV" help:"Changes after this revision; without it, from now."`
}

// changeLine is one change for programs.
type changeLine struct {
	Event string `json:"event"`
	keyValue
}

func (k *kvWatchCmd) Run(a *app) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	opts := client.WatchOptions{FromNow: k.Since == nil}
	if k.Since != nil {
		opts.Since = *k.Since
	}
	for ch, err := range c.Watch(a.ctx, k.Prefix, opts) {
		if err != nil {
			return a.untilInterrupted(err)
		}
		event := apiv1.EventPut
		if ch.Deleted {
			event = apiv1.EventDelete
		}
		if a.Output == "json" {
			err = a.printJSONLine(changeLine{event, keyValue{ch.Key, ch.Value, ch.Revision}})
		} else {
			_, err = fmt.Fprintln(a.stdout, strings.TrimRight(fmt.Sprintf("%d %-6s %s %s", ch.Revision, event, printable([]byte(ch.Key)), printable(ch.Value)), " "))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// untilInterrupted makes Ctrl-C the proper end of what goes on until then.
func (a *app) untilInterrupted(err error) error {
	if a.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// printable is a value as a table may show it: short, on one line, and without
// what a terminal would obey.
func printable(b []byte) string {
	const most = 60
	if !utf8.Valid(b) {
		return fmt.Sprintf("(%d bytes, not text)", len(b))
	}
	s, cut := string(b), ""
	if r := []rune(s); len(r) > most {
		s, cut = string(r[:most]), "…"
	}
	quoted := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`) + cut
}
