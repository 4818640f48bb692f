package docs_test

import (
	"encoding/csv"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// figuresFile has each round of `go run ./benchmarks failures -csv docs/failures.csv`, and consulFile those of the same
// with -consul. All pages with these times take them from there.
const (
	figuresFile = "docs/failures.csv"
	consulFile  = "docs/consul.csv"
)

var update = flag.Bool("update", false, "write the times of "+figuresFile+" into the pages")

// TestMeasuredTimes holds the times of failures on all pages against the file with their rounds, or writes them.
func TestMeasuredTimes(t *testing.T) {
	var figures figures
	for file, comparison := range map[string]string{figuresFile: "", consulFile: besideConsul} {
		if err := figures.read(read(t, file), comparison); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	repeated := 0
	for _, d := range documents(t) {
		repeated += len(measuredTime.FindAllString(d.text, -1)) + len(measuredTable.FindAllString(d.text, -1))
		if text := figures.write(d.text); *update && text != d.text {
			if err := os.WriteFile(filepath.Join(root, d.path), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		report(t, d.path, checkMeasuredTimes(d, figures))
	}
	if repeated < 10 {
		t.Errorf("found only %d times", repeated)
	}
}

var (
	measuredTime  = regexp.MustCompile(`([\d.,]+) ms measured \(([^)]+)\)`)
	measuredTable = regexp.MustCompile(
		`(?s)(<!-- failures of (\d nodes(?: beside Consul)?) -->\n).*?(<!-- end of failures -->)`)
)

// besideConsul marks the clusters of consulFile.
const besideConsul = " beside Consul"

// failureRow is a kind of failure of one system, in the clusters of one table: "3 nodes".
type failureRow struct{ kind, clusters, system string }

// figures are the gaps of each row in ms, sorted, and the rows in their order.
type figures struct {
	rows []failureRow
	gaps map[failureRow][]float64
}

// read adds the rounds of a file.
func (f *figures) read(text, comparison string) error {
	lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(lines) < 2 {
		return fmt.Errorf("no rounds: %w", err)
	}
	if f.gaps == nil {
		f.gaps = map[failureRow][]float64{}
	}
	for _, l := range lines[1:] {
		gap, err := strconv.ParseFloat(l[4], 64)
		if err != nil {
			return err
		}
		r := failureRow{l[0], l[1] + " nodes" + comparison, l[2]}
		if f.gaps[r] == nil {
			f.rows = append(f.rows, r)
		}
		f.gaps[r] = append(f.gaps[r], gap)
	}
	for _, gaps := range f.gaps {
		slices.Sort(gaps)
	}
	return nil
}

// checkMeasuredTimes finds times and tables that differ from the figures.
func checkMeasuredTimes(d document, f figures) (problems []string) {
	for _, pattern := range []*regexp.Regexp{measuredTime, measuredTable} {
		for _, found := range pattern.FindAllString(d.text, -1) {
			if want := f.write(found); want != found {
				problems = append(problems, fmt.Sprintf("has\n%s\nand not (go test ./docs -run TestMeasuredTimes -update)\n%s",
					found, want))
			}
		}
	}
	return problems
}

// write returns the text with the times and tables of the figures.
func (f figures) write(text string) string {
	text = measuredTime.ReplaceAllStringFunc(text, func(found string) string {
		kind := measuredTime.FindStringSubmatch(found)[2]
		gaps := f.gaps[failureRow{kind, "3 nodes", "northstar, Go client"}]
		if len(gaps) == 0 {
			return "unknown ms measured (" + kind + ")"
		}
		return fmt.Sprintf("%.0f ms measured (%s)", math.Round(gaps[len(gaps)/2]), kind)
	})
	return measuredTable.ReplaceAllStringFunc(text, func(found string) string {
		parts := measuredTable.FindStringSubmatch(found)
		return parts[1] + f.table(parts[2]) + parts[3]
	})
}

// table is that of some clusters: median and 99th percentile of each kind of failure.
func (f figures) table(clusters string) string {
	var kinds, systems []string
	for _, r := range f.rows {
		if r.clusters == clusters && !slices.Contains(kinds, r.kind) {
			kinds = append(kinds, r.kind)
		}
		if r.clusters == clusters && !slices.Contains(systems, r.system) {
			systems = append(systems, r.system)
		}
	}
	text := "| failure | " + strings.Join(systems, " | ") + " |\n|---|" + strings.Repeat("---|", len(systems)) + "\n"
	for _, kind := range kinds {
		text += "| " + kind
		for _, system := range systems {
			gaps := f.gaps[failureRow{kind, clusters, system}]
			cell := "–"
			if n := len(gaps); n > 0 {
				cell = milliseconds(gaps[n/2]) + " / " + milliseconds(gaps[min(n*99/100, n-1)])
			}
			text += " | " + cell
		}
		text += " |\n"
	}
	return text
}

// noWrite is how long a round waits for a write.
const noWrite = 20_000

func milliseconds(ms float64) string {
	switch {
	case ms >= noWrite:
		return "never"
	case ms >= 1000:
		return fmt.Sprintf("%d,%03.0f", int(ms)/1000, math.Floor(math.Mod(ms, 1000)))
	case ms >= 100:
		return fmt.Sprintf("%.0f", ms)
	}
	return fmt.Sprintf("%.1f", ms)
}
