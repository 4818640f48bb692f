package northstar_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// wallClock lists the functions that convert between a time and a number or a date, and so leave the monotonic
// clock. Each entry gives the reason why a jump of the wall clock does no harm there. All other code that waits,
// expires or compares uses Go's monotonic readings or the lease clock (CLOCK_BOOTTIME).
var wallClock = map[string]string{
	"api/feed.go dashboardView":                   "shown",
	"api/history.go add":                          "shown",
	"api/leader.go audit":                         "shown: records are ordered by the log",
	"api/failover.go postAutoFailover":            "a pause with a ttl is replicated and outlives every process; docs/runbook.md says what a jump does to it",
	"api/appnodes.go wireNode":                    "shown: what is left is counted on the lease clock",
	"api/discovery.go status":                     "shown",
	"api/discovery.go unixNano":                   "shown",
	"api/roles.go wireRole":                       "shown: what is left is counted on the lease clock",
	"api/splitbrain.go wireReport":                "shown",
	"consensus/propose.go submit":                 "the time in a command: shown, and the age of idempotency keys (docs/runbook.md)",
	"consensus/leadership.go leaderStartOf":       "shown, on the clock of the state",
	"consensus/storage/setaside.go pruneArchives": "times of files, against each other",
	"consensus/storage/checksum.go checksum":      "a checksum over the entry's own field",
	"failover/leadertask.go leftDisks":            "rate limit of hand-overs for slow disks; a time in the future is passed over",
	"consensus/storage/journal.go encode":         "a field of the entry, as it is",
	"consensus/storage/journal.go decodeEntries":  "as the entry was stored",
	"node/events.go addPause":                     "shown",
	"node/failover.go failoverPhases":             "shown",
	"node/hooks.go electionFields":                "shown",
	"node/hooks.go readyEvent":                    "shown",
	"node/wire.go proposeAudit":                   "shown: no record is later than its arrival",
	"node/wire.go exportRole":                     "which roles the metrics show",
	"roles/expire.go purgeDeadNodes":              "when the record of a dead application node is removed",
	"state/view.go AutoFailover":                  "see api/failover.go",
	"state/restore.go revisionAt":                 "a lower bound of revisions, beside others (docs/decisions/055-revisions-after-a-restore.md)",
	"state/view.go Time":                          "shown",
	"consensus/storage/reserve.go HoldReserve":    "no time: the size of a file",
	"telemetry/gauges.go collectInstallation":     "shown",
	"telemetry/eventlog.go append":                "shown",
}

// TestWallClock finds functions that could depend on the wall clock and are not in the list.
func TestWallClock(t *testing.T) {
	found := map[string]bool{}
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		if e, _ := entry(path); layers[e] == 4 {
			continue // programs and tests of programs
		}
		for _, name := range p.GoFiles {
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range file.Decls {
				where := path + "/" + name
				if f, ok := decl.(*ast.FuncDecl); ok {
					where += " " + f.Name.Name
				}
				ast.Inspect(decl, func(n ast.Node) bool {
					if call, ok := n.(*ast.CallExpr); ok && leavesMonotonic(call) {
						found[where] = true
						if wallClock[where] == "" {
							t.Errorf("%s: %s goes by the wall clock, which may jump: use the time's monotonic reading or the lease clock, or say in wallClock why that is right", set.Position(n.Pos()), where)
						}
					}
					return true
				})
			}
		}
	}
	for where := range wallClock {
		if !found[where] {
			t.Errorf("wallClock lists %s, where nothing goes by the wall clock", where)
		}
	}
}

// leavesMonotonic reports whether a call removes the monotonic reading of a time, or creates a time without one. Round
// with more than 0 does so too, and is not found: durations have the same method.
func leavesMonotonic(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, _ := s.X.(*ast.Ident)
	fromTime := of != nil && of.Name == "time"
	switch s.Sel.Name {
	case "Unix", "UnixMilli", "UnixMicro":
		return fromTime || len(call.Args) == 0
	case "UnixNano", "UTC", "Local":
		return len(call.Args) == 0
	case "In", "Truncate":
		return len(call.Args) == 1
	case "AddDate":
		return len(call.Args) == 3
	case "Date", "Parse", "ParseInLocation":
		return fromTime
	case "Round":
		if len(call.Args) != 1 {
			return false
		}
		lit, ok := call.Args[0].(*ast.BasicLit)
		return ok && lit.Value == "0"
	}
	return false
}

func TestLeavesMonotonic(t *testing.T) {
	for source, want := range map[string]bool{
		"now.UnixNano()": true, "time.Now().Unix()": true, "time.Unix(0, x)": true, "t.UTC()": true, "t.Round(0)": true,
		"t.Local()": true, "t.In(zone)": true, "t.AddDate(0, 0, 1)": true, "t.Truncate(time.Hour)": true,
		"time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)": true, "time.Parse(layout, s)": true,
		"now.Sub(then)": false, "d.Round(time.Millisecond)": false, "time.Since(then)": false, "url.Parse(s)": false,
		"r.Local(ctx)": false, "os.Truncate(path, 0)": false,
	} {
		e, err := parser.ParseExpr(source)
		if err != nil {
			t.Fatal(err)
		}
		if got := leavesMonotonic(e.(*ast.CallExpr)); got != want {
			t.Errorf("%s: %v", source, got)
		}
	}
}
