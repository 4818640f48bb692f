package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"iter"
	"net/http"
	"time"

	"northstar/state"
)

// smallAnswer is the size up to which values in an answer are not counted. Those of larger answers are limited
// together: an answer holds them until its client has read them, and the state may have other ones meanwhile.
const smallAnswer = 64 << 10

// takeAnswer counts the values of an answer, until giveAnswer or the end of the request.
func (c *request) takeAnswer(size int) error {
	if size <= smallAnswer {
		return nil
	}
	if err := c.s.answers.take(c.holder(), int64(size)); err != nil {
		return err
	}
	c.answerBytes += int64(size)
	return nil
}

func (c *request) giveAnswer() {
	if c.answerBytes > 0 {
		c.s.answers.give(c.holder(), c.answerBytes)
		c.answerBytes = 0
	}
}

// Between two tries of takeAnswer an answer waits, twice as long each time.
const (
	minAnswerRetry = 20 * time.Millisecond
	maxAnswerRetry = 160 * time.Millisecond
)

// awaitAnswer waits until an answer of size bytes may be made: it is not made for each try. When ctx ends it returns
// last, or the cause if that is nil.
func (c *request) awaitAnswer(ctx context.Context, size int, last error) error {
	timer := time.NewTimer(minAnswerRetry)
	defer timer.Stop()
	for step := minAnswerRetry; ; timer.Reset(step) {
		select {
		case <-timer.C:
		case <-ctx.Done():
			if last != nil {
				return last
			}
			return context.Cause(ctx)
		}
		if c.takeAnswer(size) == nil {
			c.giveAnswer()
			return nil
		}
		step = min(2*step, maxAnswerRetry)
	}
}

// listChunk is how much of a list is in memory. A longer list is sent as it is made.
const listChunk = 32 << 10

type listWriter struct {
	c       *request
	buf     []byte
	started bool
	err     error
}

// flush sends the buffer if it has full bytes, and reports whether the client is still there.
func (w *listWriter) flush(full int) bool {
	if len(w.buf) < full {
		return true
	}
	if !w.started {
		w.started = true
		h := w.c.Header()
		h["Content-Type"], h["Cache-Control"], h["X-Content-Type-Options"] = typeJSON, noStore, noSniff
	}
	_, w.err = w.c.Write(w.buf)
	w.buf = w.buf[:0]
	return w.err == nil
}

// base64 adds a value, and reports whether the client is still there.
func (w *listWriter) base64(value []byte) bool {
	for len(value) > 0 {
		n := min(len(value), listChunk/4*3) // without padding but for the last
		w.buf = base64.StdEncoding.AppendEncode(w.buf, value[:n])
		value = value[n:]
		if !w.flush(listChunk) {
			return false
		}
	}
	return true
}

// end adds the end of a list. A short list is a whole response with its length.
func (w *listWriter) end(next string) error {
	w.buf = append(appendJSONString(append(w.buf, `],"next":`...), next), "}\n"...)
	if !w.started {
		return w.c.replyJSON(w.buf)
	}
	w.flush(0)
	return w.c.ignoreWriteError(w.err)
}

// listing is a list of records of the state, in order of their keys.
type listing[T any] struct {
	after func(v *state.View, key string) iter.Seq[T] // the records with a greater key
	key   func(T) string
	want  func(T) bool // nil: all of them
}

func (l *listing[T]) next(v *state.View, after string) (item T, ok bool) {
	for item = range l.after(v, after) {
		if l.want == nil || l.want(item) {
			return item, true
		}
	}
	return item, false
}

// replyItems answers with at most limit records after a key. It takes each one from the state at that time: a slow
// client holds no old state in memory.
func replyItems[T, W any](
	c *request, list listing[T], limit int, after string, wire func(*state.View, T) W,
) error {
	w := listWriter{c: c}
	w.buf = append(w.buf, `{"items":[`...)
	for n := 0; ; n++ {
		view := c.s.reads.View()
		item, ok := list.next(view, after)
		if !ok {
			return w.end("")
		}
		if n == limit {
			return w.end(after)
		}
		body, err := json.Marshal(wire(view, item))
		if err != nil && w.started {
			panic(http.ErrAbortHandler) // only a broken connection shows that the list is incomplete
		}
		if err != nil {
			return err
		}
		if n > 0 {
			w.buf = append(w.buf, ',')
		}
		after = list.key(item)
		if w.buf = append(w.buf, body...); !w.flush(listChunk) {
			return c.ignoreWriteError(w.err)
		}
	}
}
