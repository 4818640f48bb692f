package testenv

import (
	"flag"
	"os"
	"testing"
	"time"
)

func TestSlowdown(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 1, "x": 1, "-3": 1, "0": 1, "1": 1, "3": 3, "100": maxSlowdown,
	} {
		if got := slowdown(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestRepeats(t *testing.T) {
	t.Setenv(fewerEnv, "")
	if got := Repeats(7); got != 7 {
		t.Errorf("%d of 7", got)
	}
	t.Setenv(fewerEnv, "1")
	for n, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 20: 7} {
		if got := Repeats(n); got != want {
			t.Errorf("%d of %d, want %d", got, n, want)
		}
	}
}

func TestInMemory(t *testing.T) {
	if _, err := os.Stat(memory); err != nil {
		t.Skip(err)
	}
	for _, tt := range []struct {
		before string
		room   uint64
		want   string
	}{
		{"", 1, memory},
		{"", 1 << 62, ""},
		{"/elsewhere", 1, "/elsewhere"},
	} {
		t.Setenv("TMPDIR", tt.before)
		InMemory(tt.room)
		if got := os.Getenv("TMPDIR"); got != tt.want {
			t.Errorf("%+v: TMPDIR is %q", tt, got)
		}
	}
}

func TestParallel(t *testing.T) {
	value := flag.Lookup("test.parallel").Value
	before := value.String()
	for slow, want := range map[string]string{"1": "17", "3": "5", "5": "3"} {
		t.Setenv(slowdownEnv, slow)
		Parallel(17)
		if got := value.String(); got != want {
			t.Errorf("%s times as slow: -parallel is %s, want %s", slow, got, want)
		}
	}
	if err := value.Set(before); err != nil {
		t.Fatal(err)
	}
}
