package hostile

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestEachLimitCanBeExceeded(t *testing.T) {
	t.Parallel()
	good := Result{Attack: Attack{Name: "x", Quiet: true}, Transfers: 4, Entries: -9, Writes: 9, Probes: 9}
	if problems := Promised.Exceeded(good); len(problems) != 0 {
		t.Fatalf("nothing happened, and %q", problems)
	}
	for want, change := range map[string]func(*Result){
		"grew by 201 MB":              func(r *Result) { r.Growth = 201 << 20 },
		"for TCP grew by 201 MB":      func(r *Result) { r.TCP = 201 << 20 },
		"1 changes of term":           func(r *Result) { r.Elections = 1 },
		"1 nodes panicked":            func(r *Result) { r.Panics = 1 },
		"logged 1001 lines":           func(r *Result) { r.LogLines = 1001 },
		"/livez or /leader took 2s":   func(r *Result) { r.Probe = 2 * time.Second },
		"no transfer":                 func(r *Result) { r.Transfers = 0 },
		"no write ended":              func(r *Result) { r.Writes = 0 },
		"/livez or /leader ended":     func(r *Result) { r.Probes = 0 },
		"1 of 4 transfers failed":     func(r *Result) { r.Failed = 1 },
		"a transfer took 2s":          func(r *Result) { r.Transfer = 2 * time.Second },
		"lacks 2 of 4 transfers":      func(r *Result) { r.Missing = 2 },
		"writes of others took 201ms": func(r *Result) { r.Write = 201 * time.Millisecond },
		"201 log entries":             func(r *Result) { r.Entries = 201 },
	} {
		r := good
		change(&r)
		if problems := Promised.Exceeded(r); len(problems) != 1 || !strings.Contains(problems[0], want) {
			t.Errorf("%q, want one with %q", problems, want)
		}
	}
	loud := Result{Transfers: 4, Entries: 100_000, Writes: 9, Probes: 9}
	if problems := Promised.Exceeded(loud); len(problems) != 0 {
		t.Errorf("an attack that may write: %q", problems)
	}
}

// A stall counts as often as requests would have been made in it, and a failed request as a long one.
func TestLatencies(t *testing.T) {
	t.Parallel()
	var l latencies
	for range 90 {
		l.add(time.Millisecond, 20*time.Millisecond, nil)
	}
	l.add(time.Second, 20*time.Millisecond, nil)
	if p90, all := l.quantile(0.9), l.quantile(1); p90 < 500*time.Millisecond || all != time.Second {
		t.Errorf("p90 %s, slowest %s", p90, all)
	}
	l.add(time.Millisecond, 20*time.Millisecond, errors.New("refused"))
	if n, failed, last := l.counts(); n != 92 || failed != 1 || last == nil || l.quantile(1) != probeTimeout {
		t.Errorf("%d requests, %d failed, %v, slowest %s", n, failed, last, l.quantile(1))
	}
}

// A stall that lasts until the end of an attack is measured.
func TestPace_StallAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct{ stall, want time.Duration }{
			{3 * time.Second, 3 * time.Second}, {time.Millisecond, 0},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), tt.stall)
			defer cancel()
			var l latencies
			(&bystanders{}).pace(ctx, writeInterval, func(ctx context.Context, _ int) error {
				<-ctx.Done()
				return ctx.Err()
			}, &l)
			if made, failed, _ := l.counts(); l.quantile(1) != tt.want || made != 0 || failed != 0 {
				t.Errorf("stall of %v: slowest %v, %d made, %d failed", tt.stall, l.quantile(1), made, failed)
			}
		}
	})
}

func TestFit(t *testing.T) {
	t.Parallel()
	connections := Attack{Full: 20000, Short: 1500, Held: true}
	for name, tc := range map[string]struct {
		attack Attack
		form   Form
		want   int
		scaled bool
	}{
		"enough files":    {connections, Form{Full: true, Files: 20000}, 20000, false},
		"too few files":   {connections, Form{Full: true, Files: 4096}, 2048, true},
		"short form":      {connections, Form{Files: 4096}, 1500, false},
		"short, few":      {connections, Form{Files: 1024}, 512, true},
		"one at a time":   {Attack{Full: 60000}, Form{Full: true, Files: 256}, 60000, false},
		"hardly any file": {connections, Form{Full: true, Files: 1}, 1, true},
	} {
		size, why := fit(tc.attack, tc.form)
		if size != tc.want || (why != "") != tc.scaled {
			t.Errorf("%s: %d, %q", name, size, why)
		}
	}
	if n := perProcess(100); n != 1 {
		t.Errorf("%d connections with 100 files", n)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	r := Result{Attack: Attack{Name: "idle"}, Size: 7, Growth: 3 << 20, Peak: 30 << 20, Write: 5 * time.Millisecond, Writes: 9}
	if err := Table(&b, []Result{r}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| `idle` ", "| 7 ", "| +3 to 30 MB ", "| +0 ", "| 5 ms ", "| 0 of 9 "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// docs/testing.md names every attack.
func TestAttacksAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range Attacks() {
		if !strings.Contains(string(page), "| `"+a.Name+"` ") {
			t.Errorf("docs/testing.md does not name the attack %s", a.Name)
		}
	}
}
