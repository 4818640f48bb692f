package consensus

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// logRepeatInterval is how long a complaint of the library is not repeated.
const logRepeatInterval = 10 * time.Second

// libraryLogger is the Raft library's logger. The library tells each of its
// steps at info and repeats a complaint at every retry; here the steps are for
// debugging, and of a complaint that goes on the log has one line now and then.
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

// Warn logs at debug level: what the library warns of is how elections go, and
// this package logs how they end.
func (l *libraryLogger) Warn(msg string, args ...any) { l.Logger.Debug(msg, args...) }

// Error logs a warning, and repetitions at debug level.
func (l *libraryLogger) Error(msg string, args ...any) {
	for _, a := range args {
		if a == errNoopPending {
			return // as it is meant to be
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
