package hostile

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Limits are what must hold during any attack.
type Limits struct {
	Growth   int64         // of a node's resident memory, without pages of files
	TCP      int64         // growth of the kernel's memory for TCP
	Probe    time.Duration // each answer of /livez and /leader
	Transfer time.Duration // each transfer of the operator
	Write    time.Duration // 99th percentile of other clients' writes
	LogLines int           // of a node
	Entries  int           // of the log, in attacks of which nothing may reach it
}

// Promised are the limits of docs/testing.md.
var Promised = Limits{
	Growth: 200 << 20, TCP: 200 << 20, Probe: time.Second, Transfer: time.Second, Write: 200 * time.Millisecond,
	LogLines: 1000, Entries: 200,
}

// Lenient are limits that hold on a machine that does other work, too: its latencies mean nothing, and the kernel's
// memory for TCP is of all programs together.
var Lenient = Limits{
	Growth: 200 << 20, TCP: math.MaxInt64, Probe: probeTimeout, Transfer: probeTimeout, Write: probeTimeout,
	LogLines: 1000, Entries: 200,
}

// Exceeded returns what of a result exceeds the limits.
func (l Limits) Exceeded(r Result) (problems []string) {
	check := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	check(r.Growth > l.Growth, "a node grew by %d MB, at most %d", r.Growth>>20, l.Growth>>20)
	check(r.TCP > l.TCP, "the kernel's memory for TCP grew by %d MB, at most %d", r.TCP>>20, l.TCP>>20)
	check(r.Elections != 0, "%d changes of term that no operator asked for", r.Elections)
	check(r.Panics != 0, "%d nodes panicked", r.Panics)
	check(r.LogLines > l.LogLines, "a node logged %d lines, at most %d", r.LogLines, l.LogLines)
	check(r.Probes == 0, "no request to /livez or /leader ended")
	check(r.Writes == 0, "no write ended")
	check(r.Probe >= l.Probe, "/livez or /leader took %s: %v", r.Probe, r.ProbeErr)
	check(r.Transfers == 0, "no transfer was made")
	check(r.Failed != 0, "%d of %d transfers failed, as: %v", r.Failed, r.Transfers, r.TransferErr)
	check(r.Transfer >= l.Transfer, "a transfer took %s", r.Transfer)
	check(r.Missing > 0, "the audit log lacks %d of %d transfers", r.Missing, r.Transfers)
	check(r.Write >= l.Write, "writes of others took %s (99th percentile of %d; %d failed, as: %v)", r.Write, r.Writes,
		r.Refused, r.WriteErr)
	check(r.Quiet && r.Entries > l.Entries, "%d log entries that no other client made", r.Entries)
	return problems
}

// Table writes results as a Markdown table.
func Table(w io.Writer, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	row := func(cells ...string) { fmt.Fprintf(t, "| %s\t|\n", strings.Join(cells, "\t| ")) }
	row("attack", "size", "memory", "TCP", "terms", "/livez, /leader", "transfer", "write p99", "slowest", "failed")
	row(slices.Repeat([]string{"---"}, 10)...)
	for _, r := range results {
		row("`"+r.Name+"`", strconv.Itoa(r.Size), fmt.Sprintf("+%d to %d MB", r.Growth>>20, r.Peak>>20),
			fmt.Sprintf("+%d MB", r.TCP>>20), fmt.Sprintf("%+d", r.Elections), ms(r.Probe), ms(r.Transfer), ms(r.Write),
			ms(r.SlowWrite), fmt.Sprintf("%d of %d", r.Refused, r.Writes))
	}
	return t.Flush()
}

func ms(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// String returns what the attackers did.
func (r Result) String() string {
	var codes []string
	for _, code := range slices.Sorted(maps.Keys(r.Done.Codes)) {
		codes = append(codes, fmt.Sprintf("%d × %d", r.Done.Codes[code], code))
	}
	text := fmt.Sprintf("%s: %d %s: %d connections made, %d open at the end, answers: %s; %d transfers, %d entries more "+
		"than writes, %d log lines, %s", r.Name, r.Size, r.Unit, r.Done.Tried, r.Done.Open, strings.Join(codes, ", "),
		r.Transfers, r.Entries, r.LogLines, r.Took.Round(time.Millisecond))
	if r.Done.Calls > 0 {
		text += fmt.Sprintf("; %d calls were made whole", r.Done.Calls)
	}
	if r.Scaled != "" {
		text += "; " + r.Scaled
	}
	return text
}
