package raftnode

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// logRepeatInterval is how long an error message of the library is not repeated.
const logRepeatInterval = 10 * time.Second

// libraryLogger is the Raft library's logger. The library logs each of its steps at info and repeats an error at every
// retry. Here the steps are for debugging, and a repeated error is logged every logRepeatInterval.
type libraryLogger struct {
	hclog.Logger
	now func() time.Time

	mu   sync.Mutex
	last map[string]time.Time // by message, of which the library has a fixed set
}

func newLibraryLogger(l hclog.Logger, now func() time.Time) *libraryLogger {
	return &libraryLogger{Logger: l, now: now, last: map[string]time.Time{}}
}

// Info logs at debug level.
func (l *libraryLogger) Info(msg string, args ...any) { l.Logger.Debug(msg, args...) }

// Warn logs at debug level: the library warns about the steps of elections, and package consensus logs their results.
func (l *libraryLogger) Warn(msg string, args ...any) { l.Logger.Debug(msg, args...) }

// Error logs a warning, and repetitions at debug level.
func (l *libraryLogger) Error(msg string, args ...any) {
	for _, a := range args {
		if a == ErrNoopPending {
			return // this is intended, and no error
		}
	}
	if l.fresh(msg) {
		l.Logger.Warn(msg, args...)
		return
	}
	l.Logger.Debug(msg, args...)
}

// With keeps the levels for a logger with more fields.
func (l *libraryLogger) With(args ...any) hclog.Logger {
	return newLibraryLogger(l.Logger.With(args...), l.now)
}

func (l *libraryLogger) fresh(msg string) bool {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, known := l.last[msg]; known && now.Sub(last) < logRepeatInterval {
		return false
	}
	l.last[msg] = now
	return true
}
