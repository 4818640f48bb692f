package check

import (
	"testing"
	"time"
)

func TestAudited(t *testing.T) {
	calls := []AdminCall{
		{"a", 1, 2, true, true},
		{"b", 3, 4, true, false},
		{"c", 5, 6, false, false},
		{"d", 7, 8, true, false},
		{"e", 9, 9, true, false},
		{"f", 10, 11, true, true},
	}
	rest := []AuditEntry{{"d", "n1", "ok"}, {"e", "n1", "ok"}, {"f", "n1", "ok"}}
	for _, tt := range []struct {
		log  []AuditEntry
		want string
	}{
		{append([]AuditEntry{{"a", "n1", "ok"}, {"b", "n2", "ok"}, {"c", "n1", "ok"}}, rest...), ""},
		{append([]AuditEntry{{"a", "n1", "ok"}, {"b", "n2", "ok"}}, rest...), ""},
		{append([]AuditEntry{{"a", "n1", "ok"}, {"b", "n2", "ok"}, {"c", "n1", "ok"}, {"c", "n2", "ok"}}, rest...), ""},
		{
			append([]AuditEntry{
				{"a", "n1", "ok"},
				{"b", "n2", "ok"},
				{"c", "n3", "ok"},
				{"c", "n3", "unknown"},
			}, rest...),
			"",
		},
		{append([]AuditEntry{{"b", "n2", "ok"}, {"a", "n1", "ERR_NO_LEADER"}}, rest...), ""},
		{append([]AuditEntry{{"b", "n2", "ok"}}, rest...), `"a", answered at 2ns, has 0 records`},
		{append([]AuditEntry{{"a", "n1", "ok"}, {"b", "n2", "ok"}, {"b", "n1", "ok"}}, rest...), `"b", answered at 4ns, has 2 records`},
		{append([]AuditEntry{{"a", "n1", "ok"}, {"b", "n2", "ok"}, {"c", "n3", "ok"}, {"c", "n3", "ok"}}, rest...), `"c" has two records of n3 with ok`},
		{append([]AuditEntry{{"b", "n2", "ok"}, {"a", "n1", "ok"}}, rest...), `"b" stands before "a", which was answered at 2ns, before the other was asked`},
		{[]AuditEntry{{"a", "n1", "ok"}, {"b", "n2", "ok"}, {"e", "n1", "ok"}, {"d", "n1", "ok"}, {"f", "n1", "ok"}}, `"e" stands before "d", which was answered at 8ns, before the other was asked`},
		{
			[]AuditEntry{{"a", "n1", "ok"}, {"b", "n2", "ok"}, {"e", "n2", "ok"}, {"d", "n1", "ok"}, {"f", "n1", "ok"}},
			"",
		},
		{
			[]AuditEntry{{"a", "n1", "ok"}, {"b", "n2", "ok"}, {"d", "n1", "ok"}, {"f", "n1", "ok"}, {"e", "n1", "ok"}},
			"",
		},
	} {
		got := CheckAuditLog(calls, tt.log)
		if len(got) > 1 || len(got) == 0 != (tt.want == "") || len(got) == 1 && got[0].Detail != tt.want {
			t.Errorf("%v: %v, want %q", tt.log, got, tt.want)
		}
	}
}

func TestCheckAttachedSessionsEnd(t *testing.T) {
	held := []AttachedSession{{"s1", "n1", 10 * time.Second}, {"s2", "n2", 10 * time.Second}}
	alive := map[string]bool{"s2": true}
	for _, tt := range []struct {
		hits, without []FaultInterval
		want          int
	}{
		{nil, nil, 1},
		{[]FaultInterval{{"n1", 9 * time.Second, 11 * time.Second}}, nil, 1},
		{[]FaultInterval{{"n2", 8 * time.Second, 9 * time.Second}, {"n2", 14 * time.Second, 15 * time.Second}}, nil, 1},
		{[]FaultInterval{{"n2", 12 * time.Second, 15 * time.Second}}, nil, 0},
		{[]FaultInterval{{"", 9 * time.Second, 10 * time.Second}}, nil, 0},
		// For three of six seconds there was no leader to report to.
		{[]FaultInterval{{"n2", 15900 * ms, 17 * time.Second}}, []FaultInterval{
			{"", 8 * time.Second, 11 * time.Second},
			{"", 12 * time.Second, 14 * time.Second},
			{"", 16 * time.Second, 20 * time.Second},
		}, 0},
		{[]FaultInterval{{"n2", 16100 * ms, 17 * time.Second}}, []FaultInterval{
			{"", 8 * time.Second, 11 * time.Second},
			{"", 12 * time.Second, 14 * time.Second},
			{"", 16500 * ms, 20 * time.Second},
		}, 1},
	} {
		if got := CheckAttachedSessionsEnd(held, alive, tt.hits, tt.without); len(got) != tt.want {
			t.Errorf("%v, %v: %v", tt.hits, tt.without, got)
		}
	}
}
