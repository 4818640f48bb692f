package main

import (
	"context"
	"iter"
	"strings"

	"northstar/client"
)

// callFunc is a command's call to the cluster: a method of the client, whose further arguments with and with2 bind.
type callFunc[T any] func(c *client.Client, ctx context.Context) (T, error)

func with[A, T any](method func(*client.Client, context.Context, A) (T, error), arg A) callFunc[T] {
	return func(c *client.Client, ctx context.Context) (T, error) { return method(c, ctx, arg) }
}

func with2[A, B, T any](method func(*client.Client, context.Context, A, B) (T, error), a A, b B) callFunc[T] {
	return func(c *client.Client, ctx context.Context) (T, error) { return method(c, ctx, a, b) }
}

// request makes one call to the cluster, with a progress line if it takes long.
func request[T any](a *app, what string, call callFunc[T]) (T, error) {
	c, err := a.connect()
	if err != nil {
		var none T
		return none, err
	}
	defer c.Close()
	defer a.progress(what)()
	return call(c, a.ctx)
}

// show makes one call to the cluster and prints its result: as JSON, or by text.
func show[T any](a *app, what string, call callFunc[T], text func(T) error) error {
	v, err := request(a, what, call)
	if err != nil {
		return err
	}
	return a.printResult(v, func() error { return text(v) })
}

// list is show for a table of items.
func list[T any](a *app, what string, call callFunc[[]T], header []string, row func(T) []any) error {
	return show(a, what, call, func(items []T) error { return tableOf(a, header, items, row) })
}

// allPages returns a call that reads a list page by page. page returns the items after an item, and the item that
// the next page starts after; "" at the end.
func allPages[T any](
	page func(c *client.Client, ctx context.Context, after string) (items []T, next string, err error),
) callFunc[[]T] {
	return func(c *client.Client, ctx context.Context) ([]T, error) {
		all := []T{} // [] as JSON, not null
		for after := ""; ; {
			items, next, err := page(c, ctx, after)
			if err != nil {
				return nil, err
			}
			all = append(all, items...)
			if after = next; after == "" {
				return all, nil
			}
		}
	}
}

// follow prints what stream yields until Ctrl-C. line returns the JSON form and the text of an item; nil skips it.
func follow[T any](a *app, stream func(*client.Client) iter.Seq2[T, error], line func(T) (v any, text string)) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for item, err := range stream(c) {
		if err != nil {
			return a.untilInterrupted(err)
		}
		v, text := line(item)
		switch {
		case v == nil:
			continue
		case a.Output != "table":
			err = a.printStreamed(v)
		default:
			err = a.printf("%s\n", strings.TrimRight(text, " "))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
