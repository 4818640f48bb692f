package traffic

import (
	"sync"
	"time"

	"northstar/chaos/check"
)

// RoleHistory collects what clients observed of the role.
type RoleHistory struct {
	mu      sync.Mutex
	tenures []check.Tenure
	writes  []check.FencedWrite
	over    map[string]time.Duration // by session: its latest possible end
	waits   []check.WaitInterval
}

func (h *RoleHistory) left(session string, over time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over == nil {
		h.over = map[string]time.Duration{}
	}
	h.over[session] = over
}

func (h *RoleHistory) waited(from, to time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waits = append(h.waits, check.WaitInterval{From: from, To: to})
}

func (h *RoleHistory) Won(t check.Tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tenures = append(h.tenures, t)
}

func (h *RoleHistory) Wrote(f check.FencedWrite) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writes = append(h.writes, f)
}

// Check returns the violations. It checks vacancies only if no fault prevents elections.
func (h *RoleHistory) Check(vacancies bool) []check.Violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	violations := check.CheckMutualExclusion(h.tenures, h.writes)
	if vacancies {
		violations = append(violations, check.CheckVacancies(h.tenures, h.over, h.waits)...)
	}
	return violations
}
