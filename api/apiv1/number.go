package apiv1

import (
	"math"
	"strconv"
	"strings"
	"sync"
)

// Numbers numbers the writes of one process, from 1. A number is in use from Begin to End. The zero value is ready. Its
// methods may be called by any goroutine.
//
// Invariant: ended holds the numbers above below, in order, and ended[0] is false.
type Numbers struct {
	mu    sync.Mutex
	below uint64 // numbers up to this one have ended
	ended []bool
}

// Begin returns the next number, and the lowest one in use.
func (n *Numbers) Begin() (number, lowest uint64) {
	number, lowest, _ = n.BeginWithin(math.MaxInt)
	return number, lowest
}

// MaxNumbersAhead bounds how far the numbers of a client's sender are ahead of the lowest one in use. The cluster keeps
// the last 1,024 results of a client, and applies no write before those.
const MaxNumbersAhead = 768

// BeginWithin is Begin, unless the number would be limit or more ahead of the lowest one in use: then ok is false.
func (n *Numbers) BeginWithin(limit int) (number, lowest uint64, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.ended) >= limit {
		return 0, 0, false
	}
	n.ended = append(n.ended, false)
	return n.below + uint64(len(n.ended)), n.below + 1, true
}

// End ends the use of a number.
func (n *Numbers) End(number uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended[number-n.below-1] = true
	for len(n.ended) > 0 && n.ended[0] {
		n.ended, n.below = n.ended[1:], n.below+1
	}
}

// SenderPrefix begins the name of a client that numbers its writes. See NumberedKey.
const SenderPrefix = "ns1."

// NumberedKey returns the idempotency key of a numbered write: the name of its sender, its number, and the lowest
// number that the sender may still repeat. A server keeps only the results from that one on.
func NumberedKey(sender string, number, lowest uint64) string {
	b := append(make([]byte, 0, 80), sender...)
	b = strconv.AppendUint(append(b, '.'), number, 10)
	return string(strconv.AppendUint(append(b, '.'), lowest, 10))
}

// ParseNumberedKey reads what NumberedKey has returned for a name that begins with SenderPrefix; false for any other
// key.
func ParseNumberedKey(key string) (sender string, number, lowest uint64, ok bool) {
	if !strings.HasPrefix(key, SenderPrefix) {
		return "", 0, 0, false
	}
	parts := strings.Split(key, ".")
	if len(parts) != 4 || parts[1] == "" {
		return "", 0, 0, false
	}
	sender = SenderPrefix + parts[1]
	number, err := strconv.ParseUint(parts[2], 10, 64)
	lowest, err2 := strconv.ParseUint(parts[3], 10, 64)
	ok = err == nil && err2 == nil && lowest >= 1 && lowest <= number && NumberedKey(sender, number, lowest) == key
	return sender, number, lowest, ok
}
