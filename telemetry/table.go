package telemetry

import (
	"fmt"
	"strings"
)

// Table lists every metric as a Markdown table, for docs/metrics.md.
func Table() string {
	var b strings.Builder
	b.WriteString("| name | type | labels | meaning |\n|---|---|---|---|\n")
	for _, d := range metricDefs {
		fmt.Fprintf(&b, "| `%s%s` | %s | %s | %s |\n", Prefix, d.Name, d.Kind, strings.Join(d.Labels, ", "), d.Help)
	}
	return b.String()
}
