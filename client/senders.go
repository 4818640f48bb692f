package client

import (
	"crypto/rand"
	"errors"
	"slices"
	"sync"

	"northstar/api/apiv1"
)

// maxSenders bounds the senders of one client: the cluster keeps up to apiv1.MaxNumbersAhead results of each. Beyond
// it, a write that takes long may have an unknown outcome.
const maxSenders = 16

// sender is a name under which writes are numbered.
type sender struct {
	name    string
	numbers apiv1.Numbers
}

// senders are the senders of one client. One is enough unless a write takes so long that many others overtake it: the
// cluster would forget its number before it is applied. Later writes have another sender then, until it has ended.
type senders struct {
	mu   sync.Mutex
	all  []*sender // used in turn: with each write the cluster forgets what it keeps of the sender's earlier ones
	next int
}

// begin begins a number.
func (p *senders) begin() (s *sender, number, lowest uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range p.all {
		s := p.all[p.next%len(p.all)]
		p.next++
		if number, lowest, ok := s.numbers.BeginWithin(apiv1.MaxNumbersAhead); ok {
			return s, number, lowest
		}
	}
	if len(p.all) < maxSenders {
		p.all = append(p.all, &sender{name: apiv1.SenderPrefix + rand.Text()})
	}
	s = p.all[len(p.all)-1]
	number, lowest = s.numbers.Begin()
	return s, number, lowest
}

// retire has later writes use another sender.
func (p *senders) retire(s *sender) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = slices.DeleteFunc(p.all, func(x *sender) bool { return x == s })
}

// number numbers a write, and returns what ends the use of the number: it gets the error of the write. A number with an
// unknown outcome stays in use, so that its key can be repeated. Later writes have another sender then: the cluster
// would keep the results of all of them for this one.
func (c *Client) number(q *call) (end func(error)) {
	s, number, lowest := c.senders.begin()
	q.header.Set(apiv1.HeaderIdempotencyKey, apiv1.NumberedKey(s.name, number, lowest))
	return func(err error) {
		if errors.Is(err, ErrOutcomeUnknown) {
			c.senders.retire(s)
			return
		}
		s.numbers.End(number)
	}
}
