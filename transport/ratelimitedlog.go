package transport

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// rateLimitedLog logs what unauthenticated peers can cause: each kind at most once per logInterval, with the number of
// dropped messages. Kinds come from a small fixed set. Safe for concurrent use.
type rateLimitedLog struct {
	log hclog.Logger

	mu    sync.Mutex
	kinds map[string]*logKind
}

type logKind struct {
	last    time.Time
	dropped int
}

const logInterval = 10 * time.Second

func newLimitedLog(log hclog.Logger) *rateLimitedLog {
	return &rateLimitedLog{log: log, kinds: make(map[string]*logKind)}
}

// warn logs, unless a message of that kind was logged recently.
func (l *rateLimitedLog) warn(kind, msg string, args ...any) {
	dropped, ok := l.due(kind, time.Now())
	if !ok {
		return
	}
	if dropped > 0 {
		args = append(args, "not_logged", dropped)
	}
	l.log.Warn(msg, args...)
}

func (l *rateLimitedLog) due(kind string, now time.Time) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kinds[kind]
	if k == nil {
		k = &logKind{}
		l.kinds[kind] = k
	}
	if !k.last.IsZero() && now.Sub(k.last) < logInterval {
		k.dropped++
		return 0, false
	}
	dropped = k.dropped
	*k = logKind{last: now}
	return dropped, true
}
