package hostile

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"northstar/chaos/proc"
)

// memory follows the memory of each node, and what the kernel holds for all TCP connections of the machine.
// The last is of both ends, and of other programs, too. Results are read when run has returned.
type memory struct {
	c            *cluster
	before, peak []int64
	tcpBefore    int64
	tcpPeak      int64
}

func watchMemory(c *cluster) (*memory, error) {
	tcp, err := tcpMemory()
	if err != nil {
		return nil, err
	}
	m := &memory{c: c, tcpBefore: tcp, tcpPeak: tcp}
	for _, n := range c.Nodes {
		size, err := anonymous(n)
		if err != nil {
			return nil, fmt.Errorf("memory of %s: %w", n.ID, err)
		}
		m.before = append(m.before, size)
	}
	m.peak = append(m.peak, m.before...)
	return m, nil
}

func (m *memory) run(ctx context.Context) {
	for ctx.Err() == nil {
		for i, n := range m.c.Nodes {
			if size, err := anonymous(n); err == nil {
				m.peak[i] = max(m.peak[i], size)
			}
		}
		if tcp, err := tcpMemory(); err == nil {
			m.tcpPeak = max(m.tcpPeak, tcp)
		}
		wait(ctx, 20*time.Millisecond)
	}
}

// growth returns how much the node grew that grew most, and its peak.
func (m *memory) growth() (grown, peak int64) {
	for i := range m.peak {
		if d := m.peak[i] - m.before[i]; d >= grown {
			grown, peak = d, m.peak[i]
		}
	}
	return grown, peak
}

// anonymous returns the resident memory of a node without pages of files (Linux): the log file is mapped, and the
// kernel takes its pages back when it needs them.
func anonymous(n *proc.Node) (int64, error) {
	kb, err := field(fmt.Sprintf("/proc/%d/status", n.Cmd.Process.Pid), "RssAnon:")
	return kb << 10, err
}

// tcpMemory returns the bytes that the kernel holds for TCP connections (Linux).
func tcpMemory() (int64, error) {
	pages, err := field("/proc/net/sockstat", "TCP:", "mem")
	return pages * int64(os.Getpagesize()), err
}

// field returns the number after the words, in the line of a file that begins with the first of them.
func field(path string, words ...string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, words[0]) {
			continue
		}
		f := strings.Fields(line)
		if i := slices.Index(f, words[len(words)-1]); i >= 0 && i+1 < len(f) {
			return strconv.ParseInt(f[i+1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, strings.Join(words, " "))
}
